"""A bundle's own `predict`, and `embed` where it has one, run by the server with weights that a client has sent.

onnxruntime, one thread, one fixed batch after the other: the same weights and photos give the same bits on one machine.
It takes a while to import, so that happens when a method first asks for logits.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.manifest import program, program_part
from fedlens_proto.v1 import manifest_pb2 as pb
from fedlens_server.methods import TensorSet
from fedlens_server.store import Store

Floats = NDArray[np.float32]
_Run = Callable[[Iterable[Array]], list[Floats]]


class Inference:
    """Logits by the programs of one bundle; see `Tools.infer`. Nothing is loaded before the first call."""

    def __init__(self, manifest: pb.Manifest, store: Store) -> None:
        """A bundle whose parts are in `store`; see `methods.fitting.need_onnx`."""
        self._manifest = manifest
        self._store = store
        # The features of the last photos: a method asks for many clients' logits of the same ones.
        self._photos: Floats | None = None
        self._rows: Floats = np.empty((0, 0), np.float32)

    def __call__(self, weights: TensorSet, photos: Floats) -> Floats:
        """Logits, float32 [N, classes], of photos, float32 [N, 3, H, W] in 0..1, with these exchangeable tensors.

        Photos are taken to be unchanged where the same array comes again.

        Raises:
            ManifestError: The bundle has no ONNX.
        """
        rows = self._inputs(photos)
        batch = self._manifest.batch
        slots = program(self._manifest, "predict").inputs
        fixed = {slot.name: np.asarray(weights[slot.name]) for slot in slots if slot.kind == pb.SLOT_KIND_WEIGHT}
        logits = np.empty((len(rows), len(self._manifest.class_names)), np.float32)
        for start in range(0, len(rows), batch):
            real = min(batch, len(rows) - start)
            given = np.zeros((batch, *rows.shape[1:]), np.float32)
            given[:real] = rows[start : start + real]
            mask = (np.arange(batch) < real).astype(np.float32)
            values = {pb.SLOT_KIND_INPUT: given, pb.SLOT_KIND_MASK: mask}
            (found,) = self._predict(fixed[s.name] if s.kind == pb.SLOT_KIND_WEIGHT else values[s.kind] for s in slots)
            logits[start : start + real] = found[:real]
        return logits

    def _inputs(self, photos: Floats) -> Floats:
        """What `predict` takes: the photos, or their features."""
        if self._manifest.bundle_class != pb.BUNDLE_CLASS_FROZEN_BACKBONE:
            return photos
        if self._photos is not photos:
            slots = program(self._manifest, "embed").inputs
            frozen = self._frozen
            fixed = [None if s.kind == pb.SLOT_KIND_INPUT else np.asarray(frozen[s.name]) for s in slots]
            features = [self._embed(photo[None] if value is None else value for value in fixed)[0] for photo in photos]
            self._rows, self._photos = np.concatenate(features), photos
        return self._rows

    @cached_property
    def _predict(self) -> _Run:
        return self._load("predict")

    @cached_property
    def _embed(self) -> _Run:
        return self._load("embed")

    @cached_property
    def _frozen(self) -> TensorSet:
        return self._store.tensors(self._manifest.frozen) if self._manifest.frozen else {}

    def _load(self, name: str) -> _Run:
        """A program that takes the values of its slots, in their order."""
        runtime: Any = import_module("onnxruntime")  # it ships no types
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        found = self._store.blobs.locate(program_part(self._manifest, name, pb.PROGRAM_FORMAT_ONNX))
        raw = found.raw if found.path is None else found.path.read_bytes()
        session = runtime.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]

        def run(values: Iterable[Array]) -> list[Floats]:
            outputs: list[Floats] = session.run(None, dict(zip(names, values, strict=True)))
            return outputs

        return run
