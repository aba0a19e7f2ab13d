"""The engine that runs `.pt2` programs with torch on one core."""

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens_edge_client.engines import BadInput, BundleUnusable, NonFinite, NoSuchDevice, Rows
from fedlens_edge_client.engines.program import DTYPES, Program
from fedlens_proto.blob import Array, Blob
from fedlens_proto.errors import BlobError
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

_NUMPY = {blob_pb2.DTYPE_FLOAT32: np.dtype(np.float32), blob_pb2.DTYPE_INT64: np.dtype(np.int64)}
# What a step hands on to the next one.
_CARRIED = (pb.SLOT_KIND_WEIGHT, pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_COUNTER)


class TorchEngine:
    """An `Engine`. May be used by several threads, which then take turns at Python's lock: use processes instead."""

    def __init__(self, bundle: Bundle, device: str = "cpu") -> None:
        """Programs are vetted and loaded when first used.

        Args:
            bundle: Whose programs run.
            device: Where, as torch names it. The same bytes come out again on a CPU only.

        Raises:
            NoSuchDevice: There is none here.

        Torch is set to one thread, for the whole process: results then do not depend on the number of cores, and
        processes that train side by side do not slow each other down.
        """
        torch.set_num_threads(1)
        self._device = device_of(device)
        self._bundle = bundle
        self._programs: dict[str, Program] = {}
        self._frozen: dict[str, Tensor] | None = None
        self._loading = threading.Lock()

    @property
    def bundle(self) -> Bundle:
        """The bundle whose programs run."""
        return self._bundle

    def embed(self, photo: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `Engine.embed`."""
        if self._bundle.manifest.bundle_class != pb.BUNDLE_CLASS_FROZEN_BACKBONE:
            raise BadInput("the bundle has no frozen backbone: it takes photos, not features")
        program = self._program("embed")
        at = program.input_index(pb.SLOT_KIND_INPUT)
        _check_array("the photo", photo, tuple(program.inputs[at].shape), blob_pb2.DTYPE_FLOAT32)
        frozen = self._frozen_tensors()
        arguments = [
            frozen[slot.name] if slot.kind == pb.SLOT_KIND_FROZEN else _copied(photo) for slot in program.inputs
        ]
        with torch.inference_mode():
            features = (
                program.run(arguments, program.prepare(arguments))[program.output_index(pb.SLOT_KIND_FEATURES)]
                .cpu()
                .numpy()
            )
        if not np.isfinite(features).all():
            raise NonFinite("the features of a photo hold a NaN or an infinity")
        return np.ascontiguousarray(features[0])

    def view(self, photos: NDArray[np.float32], uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `Engine.view`."""
        if not self._bundle.manifest.views:
            raise BadInput("the bundle has no views of photos")
        program = self._program("view")
        given = {pb.SLOT_KIND_INPUT: ("the photos", photos), pb.SLOT_KIND_UNIFORM: ("the uniforms", uniforms)}
        arguments = []
        for slot in program.inputs:
            what, array = given[slot.kind]
            _check_array(what, array, (len(photos), *slot.shape[1:]), slot.dtype)
            arguments.append((array, torch.zeros(tuple(slot.shape))))
        tensors = [tensor for _, tensor in arguments]
        batch = program.inputs[0].shape[0]
        views = np.empty_like(photos)
        with torch.inference_mode():
            prepared = program.prepare(tensors)
            for start in range(0, len(photos), batch):
                count = min(batch, len(photos) - start)
                for array, tensor in arguments:
                    tensor.numpy()[:count] = array[start : start + count]
                views[start : start + count] = program.run(tensors, prepared)[0].cpu().numpy()[:count]
        if not np.isfinite(views).all():
            raise NonFinite("a view of a photo holds a NaN or an infinity")
        return views

    def train(
        self,
        program: str,
        weights: Mapping[str, Array],
        rows: Rows,
        batches: Iterable[NDArray[np.int64]],
        hyper: Mapping[str, float],
        references: Mapping[str, Mapping[str, Array]],
        on_step: Callable[[float], None] | None = None,
    ) -> dict[str, Array]:
        """As `Engine.train`."""
        loaded = self._program(program)
        loss_at = loaded.output_index(pb.SLOT_KIND_LOSS)
        values = self._hyper(hyper)
        if bool(self._bundle.manifest.views) != (rows.views is not None):
            raise BadInput(f"the bundle's step takes {self._bundle.manifest.views or 'no'} views of each photo")
        feed = _Feed(loaded, rows, len(self._bundle.manifest.class_names), self._fills())
        arguments = [_argument(slot, feed, weights, values, references) for slot in loaded.inputs]
        where = {(slot.kind, slot.name): i for i, slot in enumerate(loaded.inputs)}
        carried = [(i, where[slot.kind, slot.name]) for i, slot in enumerate(loaded.outputs) if slot.kind in _CARRIED]
        with torch.inference_mode():
            prepared = loaded.prepare(arguments)
            for number, batch in enumerate(batches, start=1):
                feed.fill(batch)
                results = loaded.run(arguments, prepared)
                for source, target in carried:
                    arguments[target] = results[source]
                loss = results[loss_at].item()
                if not math.isfinite(loss):
                    raise NonFinite(f"the loss of step {number} is {loss}; a smaller learning rate may help")
                if on_step is not None:
                    on_step(loss)
            trained = {
                slot.name: np.ascontiguousarray(value.cpu().numpy()).reshape(value.shape)
                for slot, value in zip(loaded.inputs, arguments, strict=True)
                if slot.kind == pb.SLOT_KIND_WEIGHT
            }
        for name, array in trained.items():
            if not np.isfinite(array).all():
                raise NonFinite(f"tensor {name!r} holds a NaN or an infinity after training")
        return trained

    def predict(self, weights: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `Engine.predict`."""
        return self._in_batches("predict", pb.SLOT_KIND_LOGITS, weights, inputs, "the logits")

    def extract(self, extractor: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `Engine.extract`."""
        return self._in_batches("extract", pb.SLOT_KIND_FEATURES, extractor, inputs, "the extractor's outputs")

    def _in_batches(
        self, name: str, kind: pb.SlotKind, weights: Mapping[str, Array], inputs: NDArray[np.float32], what: str
    ) -> NDArray[np.float32]:
        """The output of this kind for each row, float32 [N, ...]."""
        program = self._program(name)
        at = program.output_index(kind)
        classes = len(self._bundle.manifest.class_names)
        feed = _Feed(program, Rows(inputs, np.zeros(len(inputs), np.int64)), classes, filled=False)
        arguments = [_argument(slot, feed, weights, {}, {}) for slot in program.inputs]
        found = np.empty((feed.count, *program.outputs[at].shape[1:]), np.float32)
        with torch.inference_mode():
            prepared = program.prepare(arguments)
            for start in range(0, feed.count, feed.batch):
                batch = np.arange(start, min(start + feed.batch, feed.count))
                feed.fill(batch)
                found[batch] = program.run(arguments, prepared)[at].cpu().numpy()[: len(batch)]
        if not np.isfinite(found).all():
            raise NonFinite(f"{what} hold a NaN or an infinity")
        return found

    def _program(self, name: str) -> Program:
        with self._loading:
            if name not in self._programs:
                self._programs[name] = Program(self._bundle, name, self._device)
            return self._programs[name]

    def _frozen_tensors(self) -> dict[str, Tensor]:
        with self._loading:
            if self._frozen is None:
                self._frozen = self._read_frozen(self._programs["embed"])
            return self._frozen

    def _read_frozen(self, program: Program) -> dict[str, Tensor]:
        slots = [slot for slot in program.inputs if slot.kind == pb.SLOT_KIND_FROZEN]
        if not slots:
            return {}
        digest = self._bundle.manifest.frozen
        try:
            blob = Blob.open(self._bundle.part(digest), digest)
            frozen = {slot.name: _tensor(slot, blob, "the frozen backbone") for slot in slots}
        except (BlobError, BadInput) as error:
            raise BundleUnusable(f"the frozen backbone cannot be read: {error}") from error
        except OSError as error:
            raise BundleUnusable(f"the frozen backbone cannot be read: {error.strerror}") from error
        if self._device is None:
            return frozen
        return {name: tensor.to(self._device) for name, tensor in frozen.items()}

    def _fills(self) -> bool:
        return self._bundle.manifest.last_batch == pb.LAST_BATCH_FILLED

    def _hyper(self, given: Mapping[str, float]) -> dict[str, float]:
        known = {h.name: h for h in self._bundle.manifest.hyper_parameters}
        for name, value in given.items():
            if name not in known:
                raise BadInput(f"hyper-parameter {name!r} is unknown; the bundle has {', '.join(known)}")
            low, high = known[name].minimum, known[name].maximum
            if not low <= value <= high:
                raise BadInput(f"hyper-parameter {name!r} is {value}; allowed are {low} to {high}")
        return {name: given.get(name, h.default_value) for name, h in known.items()}


def device_of(name: str) -> torch.device | None:
    """A device by its name; None for the CPU, on which everything is anyway.

    Raises:
        NoSuchDevice: There is none here.
    """
    if name == "cpu":
        return None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise NoSuchDevice(f"device {name!r} is not known; cpu, cuda and cuda:N are") from error
    if device.type != "cuda" or not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise NoSuchDevice(f"there is no device {name!r} here that torch can use; take cpu")
    return device


class _Feed:
    """The tensors through which batches reach a program; filled anew for each call, so that nothing is allocated."""

    def __init__(self, program: Program, rows: Rows, classes: int, filled: bool) -> None:
        slot = program.inputs[program.input_index(pb.SLOT_KIND_INPUT)]
        self.batch, self.count, self.filled = slot.shape[0], len(rows.labels), filled
        if rows.views is None:
            _check_array("the rows' inputs", rows.inputs, (self.count, *slot.shape[1:]), slot.dtype)
        elif rows.views.shape != (self.count, *slot.shape[1:]):
            found, taken = list(rows.views.shape), [self.count, *slot.shape[1:]]
            raise BadInput(f"the rows' views: found {found}, the bundle takes {taken}")
        _check_array("the rows' labels", rows.labels, (self.count,), blob_pb2.DTYPE_INT64)
        wrong = rows.labels[(rows.labels < 0) | (rows.labels >= classes)]
        if len(wrong):
            raise BadInput(f"label {wrong[0]} is not one of 0 to {classes - 1}")
        self._rows = rows
        self.inputs = torch.zeros(tuple(slot.shape))
        self.labels = torch.zeros(self.batch, dtype=torch.int64)
        self.mask = torch.ones(self.batch)
        self._inputs, self._labels, self._mask = self.inputs.numpy(), self.labels.numpy(), self.mask.numpy()
        self._real = self.batch

    def fill(self, indices: NDArray[np.int64]) -> None:
        """Put these rows first and mask the rest."""
        real = len(indices)
        if not 1 <= real <= self.batch or (self.filled and real != self.batch):
            allowed = f"exactly {self.batch}" if self.filled else f"1 to {self.batch}"
            raise BadInput(f"a batch of {real} rows; the bundle takes {allowed}")
        if indices.min() < 0 or indices.max() >= self.count:
            raise BadInput(f"a batch asks for a row outside 0 to {self.count - 1}")
        # What is left of an earlier batch behind them has no effect: the programs mask their inputs.
        if self._rows.views is None:
            self._rows.inputs.take(indices, axis=0, out=self._inputs[:real], mode="clip")
        else:
            self._rows.views.take(indices, self._inputs[:real])
        self._rows.labels.take(indices, out=self._labels[:real], mode="clip")
        if real != self._real:
            self._mask[:real] = 1
            self._mask[real:] = 0
            self._real = real


def _argument(
    slot: pb.Slot,
    feed: _Feed,
    weights: Mapping[str, Array],
    hyper: Mapping[str, float],
    references: Mapping[str, Mapping[str, Array]],
) -> Tensor:
    match slot.kind:
        case pb.SLOT_KIND_WEIGHT:
            return _tensor(slot, weights, "the weights")
        case pb.SLOT_KIND_EXTRACTOR:
            return _tensor(slot, weights, "the extractor")
        case pb.SLOT_KIND_REFERENCE:
            reference, _, name = slot.name.partition("/")
            if reference not in references:
                raise BadInput(f"reference {reference!r} is missing; the bundle's step compares with it")
            return _tensor(slot, references[reference], f"reference {reference!r}", name)
        case pb.SLOT_KIND_OPTIMISER | pb.SLOT_KIND_COUNTER:
            return torch.zeros(tuple(slot.shape), dtype=DTYPES[slot.dtype])
        case pb.SLOT_KIND_INPUT:
            return feed.inputs
        case pb.SLOT_KIND_LABEL:
            return feed.labels
        case pb.SLOT_KIND_MASK:
            return feed.mask
        case pb.SLOT_KIND_HYPER:
            return torch.tensor(hyper[slot.name], dtype=torch.float32)
        case _:
            raise BundleUnusable(f"an input of kind {pb.SlotKind.Name(slot.kind)} is not known to this engine")


def _tensor(slot: pb.Slot, tensors: Mapping[str, Array], where: str, name: str = "") -> Tensor:
    name = name or slot.name
    if name not in tensors:
        raise BadInput(f"tensor {name!r} is missing from {where}")
    array = tensors[name]
    _check_array(f"tensor {name!r} of {where}", array, tuple(slot.shape), slot.dtype)
    return _copied(array)


def _copied(array: Array) -> Tensor:
    # A copy, because blobs are read-only and torch must not share what others may change.
    return torch.from_numpy(np.array(array, order="C"))


def _check_array(what: str, array: Array, shape: Sequence[int], dtype: blob_pb2.Dtype) -> None:
    wanted = _NUMPY[dtype]
    if tuple(array.shape) != tuple(shape) or array.dtype != wanted:
        raise BadInput(f"{what}: found {array.dtype}{list(array.shape)}, the bundle takes {wanted}{list(shape)}")
