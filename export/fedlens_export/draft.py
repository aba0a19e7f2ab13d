"""An unfinished bundle: programs are lowered and compared one by one, and written together at the end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from fedlens_export import bundle, display_names, objectives, public_photos
from fedlens_export.network import Network
from fedlens_export.programs import (
    concatenated,
    lowering,
    onnx_program,
    optimisers,
    parity,
    pte_program,
    quantisation,
    steps,
    view,
)
from fedlens_export.programs.derivations.derivation import Setting
from fedlens_export.programs.pte_program import Delegation
from fedlens_export.programs.steps import ProgramSource
from fedlens_export.report import FileReport, OnFile, OnStage
from fedlens_export.training import Training, check_training
from fedlens_proto import blob
from fedlens_proto.manifest import FORMAT, Bundle
from fedlens_proto.photos import PREPROCESSING_VERSION
from fedlens_proto.v1 import manifest_pb2 as pb

DERIVE_BATCH = 64
"""Rows in a run of programs that derive: without gradients, larger batches are faster."""


@dataclass(frozen=True)
class _File:
    """A lowered program; without a function if no installed package runs it."""

    format: pb.ProgramFormat
    raw: bytes
    function: lowering.Function | None
    delegation: Delegation | None = None


class Draft:
    """An unfinished bundle; all of it is checked before any file is written."""

    def __init__(self, network: Network, training: Training, on_stage: OnStage, on_file: OnFile) -> None:
        check_training(training)
        self.network = network
        self.training = training
        self.on_stage = on_stage
        self.on_file = on_file
        self.parts: dict[bytes, bytes] = {}
        self.programs: list[pb.Program] = []
        self.frozen = b""
        self.objective = objectives.by_name(training.objective)
        if self.objective.needs_features:
            network.check_features()
        self.optimiser = optimisers.by_name(training.optimiser)
        self.public: pb.PublicRows | None = None
        self.hyper = training.hyper

    def add(
        self,
        source: ProgramSource,
        known: Mapping[str, Tensor],
        *,
        trains_head: bool = False,
        for_phones: quantisation.ForPhones | None = None,
    ) -> None:
        """Lower a program to every format, compare each file with its source, and add it to the bundle.

        Args:
            source: The program.
            known: Values of weights and frozen tensors, by name.
            trains_head: Also compare an epoch of training, with a `step`.
            for_phones: For a quantised `embed`, the program for phones, which the source only emulates.

        Raises:
            NotExportable: It cannot be lowered to a format, or `parity.check` refuses it.
            ParityBroken: A file computes something else.
        """
        name = source.name
        self.on_stage(f"lowering {name}")
        traced = lowering.trace(name, source.function, parity.examples(source, known, self.hyper, seed=0))
        raw = lowering.save(name, traced)
        files = [_File(pb.PROGRAM_FORMAT_PT2, raw, lowering.load(raw))]
        if self.training.onnx and name in onnx_program.PROGRAMS:
            self.on_stage(f"lowering {name} for the server")
            raw = onnx_program.lower(name, traced)
            files.append(_File(pb.PROGRAM_FORMAT_ONNX, raw, onnx_program.load(raw)))
        if self.training.pte:
            self.on_stage(f"lowering {name} for phones")
            integers = for_phones.integers if for_phones else pte_program.bind(source, traced, known)
            raw, delegation = pte_program.lower(name, integers)
            function = pte_program.load(source, raw)
            files.append(_File(pb.PROGRAM_FORMAT_PTE, raw, function, delegation))
        self.on_stage(f"comparing {name} with the model")
        parity.check(source, known, self.hyper, masked=not self.network.has_batch_norm)
        for file in files:
            self._compare(source, file, known, trains_head, for_phones)
        self.programs.append(
            pb.Program(
                name=name,
                inputs=source.inputs,
                outputs=source.outputs,
                makes=source.makes,
                optional=source.optional,
                objective=source.objective,
                optimiser=source.optimiser,
                files=[pb.ProgramFile(format=file.format, sha256=self.add_part(file.raw)) for file in files],
            )
        )

    def add_part(self, content: bytes) -> bytes:
        """Add a file to the bundle; returns its digest."""
        digest = sha256(content).digest()
        self.parts[digest] = content
        return digest

    def add_public(self, side: int, as_rows: Callable[[Tensor], Tensor] = lambda photo: photo) -> None:
        """Add the public photos, if the settings name any.

        Args:
            side: Of the photos, in pixels.
            as_rows: From a photo, float32 [1, 3, side, side] in 0..1, to a row as programs take it.

        Raises:
            NotExportable: There is no readable photo.
        """
        if self.training.public is None:
            return
        self.on_stage("reading the public photos")
        found = public_photos.load(self.training.public, side, self.training.class_names)
        if found.unreadable:
            self.on_stage(f"note: left out of the public photos, because unreadable: {found.unreadable}")
        with torch.no_grad():
            rows = torch.cat([as_rows(photo) for photo in torch.split(found.photos, 1)])
        content = blob.encode({"input": rows.numpy(), "label": found.labels})
        self.public = pb.PublicRows(sha256=self.add_part(content), rows=len(rows))

    def _compare(
        self,
        source: ProgramSource,
        file: _File,
        known: Mapping[str, Tensor],
        trains_head: bool,
        for_phones: quantisation.ForPhones | None,
    ) -> None:
        difference = allowed = after_epoch = None
        if file.function is not None:
            what = f"{source.name!r} as {pb.ProgramFormat.Name(file.format).removeprefix('PROGRAM_FORMAT_')}"
            allowed = f"{parity.TOLERANCE:g}"
            if for_phones and file.format != pb.PROGRAM_FORMAT_PT2:
                difference = parity.compare_emulation(source, file.function, for_phones.original, known, what)
                allowed += f", or {parity.MOST_OF_QUANTISING:g} of what quantising changes"
            else:
                # An emulation rounds to levels, so its float64 result does not show the rounding error of float32.
                rounds = source.name == "embed" and for_phones is None
                difference = parity.compare(source, file.function, known, self.hyper, what, rounds=rounds)
                if rounds:
                    allowed += f", or {parity.ROUNDINGS} x the model's own rounding"
            if trains_head:
                masked = not self.network.has_batch_norm
                after_epoch = parity.compare_epoch(source, file.function, known, self.hyper, what, masked=masked)
        size = len(file.raw)
        self.on_file(FileReport(source.name, file.format, size, difference, allowed, after_epoch, file.delegation))

    def write(self, folder: Path, bundle_class: pb.BundleClass, name: str, input_size: int) -> Bundle:
        """Add programs that train, predict and derive, and the initial weights, and write the whole."""
        training, network = self.training, self.network
        classes = len(training.class_names)
        network.describe()  # refuses layers that cannot be exchanged, before the model runs
        network.check_logits(classes)
        if training.concatenated:
            given = {**network.weights, **network.buffers}
            self.add(concatenated.extract(network, training.batch), given)
            network = concatenated.classifier(network, training.concatenated, training.seed)
        tensors = network.describe()
        initial = {**network.weights, **network.buffers}
        views, is_frozen = training.views, bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE
        if views:
            augmentation = training.augmentation or view.CONTRAST
            self.add(view.view(augmentation, (3, input_size, input_size), 1 if is_frozen else training.batch), {})
        for source in steps.trains(network, self.objective, self.optimiser, training.batch, classes, views):
            self.add(source, initial, trains_head=is_frozen and source.name == "step")
        self.add(steps.predict(network, training.batch, classes), initial)
        setting = Setting(network, DERIVE_BATCH, classes, training.candidates)
        for derivation in training.derivations:
            self.add(derivation.build(setting), initial)
        self.on_stage("writing the bundle")
        manifest = pb.Manifest(
            format=FORMAT,
            bundle_class=bundle_class,
            model=name,
            preprocessing=pb.Preprocessing(version=PREPROCESSING_VERSION, height=input_size, width=input_size),
            class_names=training.class_names,
            batch=training.batch,
            tensors=tensors,
            hyper_parameters=[h.message() for h in self.hyper.values()],
            last_batch=pb.LAST_BATCH_FILLED if network.has_batch_norm else pb.LAST_BATCH_MASKED,
            programs=self.programs,
            initial=self.add_part(blob.encode({key: tensor.numpy() for key, tensor in initial.items()})),
            frozen=self.frozen,
            tools=_tools(training),
            concatenated=training.concatenated,
            views=views,
            stored_views=training.stored_views if views and is_frozen else 0,
            public=self.public,
            display_names=display_names.messages(training.display_names, training.class_names),
        )
        manifest.parts.extend(pb.Part(sha256=digest, size=len(raw)) for digest, raw in sorted(self.parts.items()))
        return bundle.write(folder, manifest, self.parts)


def _tools(training: Training) -> list[pb.ToolVersion]:
    names = ("fedlens", "torch", *(("executorch",) if training.pte else ()))
    # Without the build's suffix (+cpu, +cu130): the programs are the same.
    return [pb.ToolVersion(name=name, version=version(name).partition("+")[0]) for name in names]
