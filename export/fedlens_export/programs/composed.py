"""A bundle's programs in a row, with the tensors of a trained model inside: from photos to logits.

Programs take a fixed number of rows; most can be rewritten to take any number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedlens_export.errors import NotExportable
from fedlens_export.programs import lowering
from fedlens_proto import manifest as manifests
from fedlens_proto.blob import Array, Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb

_TENSORS = (pb.SLOT_KIND_WEIGHT, pb.SLOT_KIND_FROZEN, pb.SLOT_KIND_EXTRACTOR)
_RESHAPES = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Attributes:
        bundle: Its bundle.
        weights: Every exchangeable tensor.
        extractors: For a bundle that concatenates extractors, the tensors of each in order, None for an absent one.
    """

    bundle: Bundle
    weights: Mapping[str, Array]
    extractors: Sequence[Mapping[str, Array] | None] = ()


class Composed(nn.Module):
    """The programs of a bundle, one after the other."""

    def __init__(self, trained: Trained) -> None:
        """Load the bundle's programs and give them the model's tensors.

        Raises:
            NotExportable: The model belongs to another bundle.
            ProgramRefused: A program is not safe to load.
        """
        super().__init__()
        bundle, manifest = trained.bundle, trained.bundle.manifest
        if len(trained.extractors) != manifest.concatenated:
            raise NotExportable(
                f"the model has {len(trained.extractors)} extractors, bundle {bundle.folder} takes "
                f"{manifest.concatenated} side by side; give the task's own bundle"
            )
        frozen = Blob.open(bundle.part(manifest.frozen), manifest.frozen) if manifest.frozen else {}
        has_backbone = manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE
        self.embed = _Stage(bundle, "embed", frozen) if has_backbone else None
        # A list of modules holds no None: the identity stands for an absent extractor.
        self.extract = nn.ModuleList(
            nn.Identity() if extractor is None else _Stage(bundle, "extract", extractor)
            for extractor in trained.extractors
        )
        self.predict = _Stage(bundle, "predict", trained.weights)

    @property
    def is_quantised(self) -> bool:
        """True if the backbone emulates the integers that phones compute with."""
        return self.embed is not None and self.embed.is_for_phones and self.embed.rounds

    def forward(self, photos: Tensor) -> Tensor:
        """Logits, float32 [N, classes], of photos, float32 [N, 3, H, W] in 0..1."""
        # The programs were traced with contiguous photos, and some view them in other shapes.
        rows = photos.clone(memory_format=torch.contiguous_format)
        if self.embed is not None:
            rows = self.embed(rows)
        if self.extract:
            width = self.predict.row_shape[0] // len(self.extract)
            absent = rows.new_zeros(rows.shape[0], width)
            rows = torch.cat([stage(rows) if isinstance(stage, _Stage) else absent for stage in self.extract], 1)
        logits: Tensor = self.predict(rows)
        return logits

    def take_any_number(self) -> None:
        """Rewrite the programs for any number of photos; whether one still depends on its number, only a run tells."""
        for stage in self.modules():
            if isinstance(stage, _Stage):
                stage.take_any_number()


class _Stage(nn.Module):
    """A program of the bundle with the tensors that it reads."""

    def __init__(self, bundle: Bundle, name: str, tensors: Mapping[str, Array]) -> None:
        super().__init__()
        program = manifests.program(bundle.manifest, name)
        self.slots = program.inputs
        self.is_for_phones = any(file.format == pb.PROGRAM_FORMAT_PTE for file in program.files)
        self.graph = lowering.load(bundle.program_file(name, pb.PROGRAM_FORMAT_PT2).read_bytes())
        # No dot may be in the name of a parameter.
        self.tensors = nn.ParameterDict(
            {
                slot.name.replace(".", "/"): nn.Parameter(torch.from_numpy(np.array(tensors[slot.name])), False)
                for slot in self.slots
                if slot.kind in _TENSORS
            }
        )
        batch, *self.row_shape = next(slot.shape for slot in self.slots if slot.kind == pb.SLOT_KIND_INPUT)
        self.batch: int | None = batch

    @property
    def rounds(self) -> bool:
        """True if the program rounds."""
        return any(node.target == torch.ops.aten.round.default for node in self.graph.graph.nodes)

    def take_any_number(self) -> None:
        """Rewrite the program for any number of rows."""
        self.batch = None
        for node in self.graph.graph.nodes:
            if node.target in _RESHAPES and -1 not in node.args[1]:
                node.args = (node.args[0], [-1, *node.args[1][1:]])
        self.graph.recompile()

    def forward(self, rows: Tensor) -> Tensor:
        """The program's output for each row, in batches padded with zeros if their size is fixed."""
        mask = rows.new_ones(rows.shape[0])
        if self.batch is None:
            return self._run(rows, mask)
        missing = -rows.shape[0] % self.batch
        padded = functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, missing)), functional.pad(mask, (0, missing))
        batches = zip(*(torch.split(tensor, self.batch) for tensor in padded), strict=True)
        return torch.cat([self._run(*batch) for batch in batches])[: rows.shape[0]]

    def _run(self, rows: Tensor, mask: Tensor) -> Tensor:
        given = {pb.SLOT_KIND_INPUT: rows, pb.SLOT_KIND_MASK: mask}
        (found,) = self.graph(
            *(
                self.tensors[slot.name.replace(".", "/")] if slot.kind in _TENSORS else given[slot.kind]
                for slot in self.slots
            )
        )
        assert isinstance(found, Tensor)
        return found
