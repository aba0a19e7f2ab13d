"""Calls of a method: what it is given beside its arguments, inference included, and what becomes of its mistakes."""

import logging
from collections.abc import Callable, Iterable
from functools import cached_property
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedlens_proto import keyed_hash, plugins
from fedlens_proto.blob import Array
from fedlens_proto.manifest import program, program_part
from fedlens_proto.v1 import manifest_pb2 as pb
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.errors import StorageFull, Unavailable
from fedlens_server.planning.method import BadState, NothingToAggregate, TensorSet, Tools
from fedlens_server.store import Store

log = logging.getLogger(__name__)
T = TypeVar("T")
Floats = NDArray[np.float32]
_Run = Callable[[Iterable[Array]], list[Floats]]


class MethodFailed(Exception):
    """A method raised an error that it must not raise; the text is for the operator."""


def of_method(call: Callable[[], T], is_over: Callable[[], bool] = lambda: False) -> T:
    """The result of a method's function, for what may be over while it is called.

    Raises:
        NothingToAggregate, StorageFull, Unavailable: As the method or the store under it says; the first also if what
            it read has been deleted, because `is_over`.
        MethodFailed: Anything else; the traceback is in the log.
    """
    try:
        return call()
    except (NothingToAggregate, StorageFull, Unavailable):
        raise
    except BadState as error:
        raise MethodFailed(f"the method's state cannot be stored: {error}") from error
    except Exception as error:
        if is_over():
            raise NothingToAggregate("the round has ended meanwhile") from error
        log.exception("a method failed")
        raise MethodFailed(f"the method failed: {plugins.told(error)}") from error


def tools(federation: Federation, task: Task, phase: int, number: int, population: tuple[bytes, ...]) -> Tools:
    """The tools of a method in a round of a phase, by its index; number 0 is before the first."""
    first = task.bundles_of(phase)[0].manifest
    return Tools(
        generator=keyed_hash.server_generator(task.seed, number),
        population=population,
        initial=federation.store.tensors(first.initial),
        infer=Inference(first, federation.store),
        photo_shape=(3, first.preprocessing.height, first.preprocessing.width),
    )


class Inference:
    """Logits by a bundle's own `predict`, and `embed` where it has one; see `Tools.infer`.

    onnxruntime, one thread, one fixed batch after the other: the same weights and photos give the same bits on one
    machine. Nothing is loaded before the first call, as importing it takes a while.
    """

    def __init__(self, manifest: pb.Manifest, store: Store) -> None:
        """For a bundle whose parts are in `store`; see `planning.bundles.need_onnx`."""
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
        """The photos, or their features, as `predict` takes them."""
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
