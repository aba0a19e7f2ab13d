"""The programs of a bundle in a row, from photos to logits.

They have a fixed number of rows, which most can be freed of.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor, fx

from fedlens_export.errors import NotExportable
from fedlens_export.network import Tensors
from fedlens_export.programs import lowering
from fedlens_export.programs.steps import Arguments, ProgramSource, slots_of
from fedlens_proto import manifest as manifests
from fedlens_proto.blob import Array, Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

NAME = "whole model"
"""Of the programs as one, in errors."""

_TENSORS = (pb.SLOT_KIND_WEIGHT, pb.SLOT_KIND_FROZEN, pb.SLOT_KIND_EXTRACTOR)
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.reshape.default)


@dataclass(frozen=True)
class Trained:
    """A model and where it was trained.

    Attributes:
        bundle: Its programs are composed.
        weights: Every exchangeable tensor.
        extractors: Of a bundle that concatenates them, the tensors of each in order, None for one that is absent.
    """

    bundle: Bundle
    weights: Mapping[str, Array]
    extractors: Sequence[Mapping[str, Array] | None] = ()


@dataclass(frozen=True)
class _Stage:
    """A program of the bundle with the tensors that it reads.

    Attributes:
        slots: Its inputs.
        graph: From these to one tensor.
        tensors: By their names in the whole.
        prefix: What these names have in front of the slot's.
        rows: How many it takes; None: any number.
    """

    slots: Sequence[pb.Slot]
    graph: fx.GraphModule
    tensors: Tensors
    prefix: str
    rows: int | None

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Of one row."""
        return tuple(next(slot.shape for slot in self.slots if slot.kind == pb.SLOT_KIND_INPUT)[1:])

    def __call__(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """Its output for these rows, in batches if it has to be, with the tensors of the whole."""
        if self.rows is None:
            return self._run(tensors, rows, rows.new_ones(rows.shape[:1]))
        found = []
        for part in torch.split(rows, self.rows):
            missing = self.rows - len(part)
            padded, mask = (_padded(tensor, missing) for tensor in (part, part.new_ones(len(part))))
            found.append(self._run(tensors, padded, mask)[: len(part)])
        return torch.cat(found)

    def _run(self, tensors: Tensors, rows: Tensor, mask: Tensor) -> Tensor:
        batch = {pb.SLOT_KIND_INPUT: rows, pb.SLOT_KIND_MASK: mask}
        given = [tensors[self.prefix + slot.name] if slot.kind in _TENSORS else batch[slot.kind] for slot in self.slots]
        (found,) = self.graph(*given)
        assert isinstance(found, Tensor)
        return found

    def freed(self) -> Self:
        """The same for any number of rows, if nothing but the first sizes of its views tells how many it takes."""
        graph = deepcopy(self.graph)
        for node in graph.graph.nodes:
            if node.target in _VIEWS and -1 not in node.args[1]:
                node.args = (node.args[0], [-1, *node.args[1][1:]])
        graph.recompile()
        return replace(self, graph=graph, rows=None)


@dataclass(frozen=True)
class Composed:
    """The programs of a bundle in a row.

    Attributes:
        bundle: Theirs.
        embed: None without a frozen backbone.
        extract: One an extractor side by side, None for one that is absent; empty where none are concatenated.
        predict: From features to logits.
    """

    bundle: Bundle
    embed: _Stage | None
    extract: tuple[_Stage | None, ...]
    predict: _Stage

    @classmethod
    def of(cls, trained: Trained) -> Self:
        """The bundle's programs as they are, with the tensors of a model.

        Raises:
            NotExportable: The model is one of another bundle.
            ProgramRefused: A program is not safe to load.
        """
        bundle, manifest = trained.bundle, trained.bundle.manifest
        if len(trained.extractors) != manifest.concatenated:
            raise NotExportable(
                f"the model has {len(trained.extractors)} extractors, bundle {bundle.folder} takes "
                f"{manifest.concatenated} side by side; give the task's own bundle"
            )
        frozen = Blob.open(bundle.part(manifest.frozen), manifest.frozen) if manifest.frozen else {}
        has_backbone = manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE
        return cls(
            bundle=bundle,
            embed=_stage(bundle, "embed", "embed", frozen) if has_backbone else None,
            extract=tuple(
                None if extractor is None else _stage(bundle, "extract", f"extract_{i}", extractor)
                for i, extractor in enumerate(trained.extractors)
            ),
            predict=_stage(bundle, "predict", "predict", trained.weights),
        )

    def __call__(self, tensors: Tensors, photos: Tensor) -> Tensor:
        """Logits [N, classes] of photos [N, 3, H, W] in 0..1, with tensors by their names in the whole."""
        rows = self.embed(tensors, photos) if self.embed else photos
        if self.extract:
            absent = rows.new_zeros(rows.shape[0], self.predict.row_shape[0] // len(self.extract))
            rows = torch.cat([absent if stage is None else stage(tensors, rows) for stage in self.extract], 1)
        return self.predict(tensors, rows)

    @property
    def tensors(self) -> Tensors:
        """All that it reads, by their names in the whole."""
        stages = (self.embed, *self.extract, self.predict)
        return {name: tensor for stage in stages if stage for name, tensor in stage.tensors.items()}

    @property
    def is_quantised(self) -> bool:
        """Whether the backbone emulates the integers that phones compute with: it rounds."""
        if self.embed is None:
            return False
        formats = [file.format for file in manifests.program(self.bundle.manifest, "embed").files]
        rounds = any(node.target == torch.ops.aten.round.default for node in self.embed.graph.graph.nodes)
        return rounds and pb.PROGRAM_FORMAT_PTE in formats

    def freed(self) -> Self:
        """The same for any number of photos, see `_Stage.freed`."""
        return replace(
            self,
            embed=self.embed and self.embed.freed(),
            extract=tuple(stage and stage.freed() for stage in self.extract),
            predict=self.predict.freed(),
        )

    @property
    def photo_shape(self) -> tuple[int, int, int]:
        """Of one photo."""
        rule = self.bundle.manifest.preprocessing
        return 3, rule.height, rule.width

    def source(self, photos: int) -> ProgramSource:
        """It as a program for so many photos, of which all tensors are inputs."""
        tensors, floats = self.tensors, blob_pb2.DTYPE_FLOAT32
        inputs = (
            *slots_of(pb.SLOT_KIND_FROZEN, tensors),
            pb.Slot(kind=pb.SLOT_KIND_INPUT, dtype=floats, shape=(photos, *self.photo_shape)),
        )
        classes = len(self.bundle.manifest.class_names)
        logits = pb.Slot(kind=pb.SLOT_KIND_LOGITS, dtype=floats, shape=(photos, classes))

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            arguments = Arguments(inputs, given)
            return (self(arguments.named(pb.SLOT_KIND_FROZEN), arguments.one(pb.SLOT_KIND_INPUT)),)

        return ProgramSource(NAME, inputs, (logits,), function)


def _stage(bundle: Bundle, program: str, name: str, tensors: Mapping[str, Array]) -> _Stage:
    slots = manifests.program(bundle.manifest, program).inputs
    graph = lowering.load(bundle.program_file(program, pb.PROGRAM_FORMAT_PT2).read_bytes())
    rows = next(slot.shape[0] for slot in slots if slot.kind == pb.SLOT_KIND_INPUT)
    prefix = f"{name}/"
    read = {
        prefix + slot.name: torch.from_numpy(np.array(tensors[slot.name])) for slot in slots if slot.kind in _TENSORS
    }
    return _Stage(slots, graph, read, prefix, rows)


def _padded(tensor: Tensor, missing: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])]) if missing else tensor
