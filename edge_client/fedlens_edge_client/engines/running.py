"""The common base of engines that run programs over flat tensors; subclasses load the programs."""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlens_edge_client.engines import BadInput, BundleUnusable, NonFinite, Rows
from fedlens_edge_client.engines.feed import NUMPY, Feed, References, Uniforms, argument, check_array, copied, tensor
from fedlens_edge_client.engines.loaded import LoadedProgram
from fedlens_proto import manifest
from fedlens_proto.blob import Array, Blob
from fedlens_proto.errors import BlobError
from fedlens_proto.manifest import Bundle, takes_views
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb


class ProgramEngine(ABC):
    """An `Engine`; threads may share it, but Python's lock makes them take turns, so prefer processes."""

    def __init__(self, bundle: Bundle) -> None:
        """Load programs on first use.

        Torch is set to one thread for the whole process: results then do not depend on the number of cores, and
        processes that train side by side do not slow each other down.
        """
        torch.set_num_threads(1)
        self._bundle = bundle
        self._programs: dict[str, LoadedProgram] = {}
        self._frozen: Mapping[str, Tensor] | None = None
        self._loading = threading.Lock()

    @property
    def bundle(self) -> Bundle:
        """As `Engine.bundle`."""
        return self._bundle

    @abstractmethod
    def _load(self, name: str) -> LoadedProgram:
        """Load a program of the bundle.

        Raises:
            BundleUnusable: It cannot be loaded.
        """

    def _read_frozen(self, program: LoadedProgram) -> Mapping[str, Tensor]:
        """The tensors of the frozen backbone that `program` takes, by name.

        Raises:
            BundleUnusable: They cannot be read.
        """
        slots = [slot for slot in program.inputs if slot.kind == pb.SLOT_KIND_FROZEN]
        if not slots:
            return {}
        digest = self._bundle.manifest.frozen
        try:
            blob = Blob.open(self._bundle.part(digest), digest)
            return {slot.name: tensor(slot, blob, "the frozen backbone") for slot in slots}
        except (BlobError, BadInput) as error:
            raise BundleUnusable(f"the frozen backbone cannot be read: {error}") from error
        except OSError as error:
            raise BundleUnusable(f"the frozen backbone cannot be read: {error.strerror}") from error

    def embed(self, photo: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `Engine.embed`."""
        if self._bundle.manifest.bundle_class != pb.BUNDLE_CLASS_FROZEN_BACKBONE:
            raise BadInput("the bundle has no frozen backbone: it takes photos, not features")
        program = self._program("embed")
        at = program.index(program.inputs, pb.SLOT_KIND_INPUT)
        check_array("the photo", photo, tuple(program.inputs[at].shape), blob_pb2.DTYPE_FLOAT32)
        frozen = self._frozen_tensors()
        arguments = [
            frozen[slot.name] if slot.kind == pb.SLOT_KIND_FROZEN else copied(photo) for slot in program.inputs
        ]
        with torch.inference_mode():
            (results,) = program.runs(arguments, [None])
            features = results[program.index(program.outputs, pb.SLOT_KIND_FEATURES)].cpu().numpy()
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
            check_array(what, array, (len(photos), *slot.shape[1:]), slot.dtype)
            arguments.append((array, torch.zeros(tuple(slot.shape))))
        tensors = [filled for _, filled in arguments]
        batch = program.inputs[0].shape[0]
        views = np.empty_like(photos)
        parts = [slice(start, min(start + batch, len(photos))) for start in range(0, len(photos), batch)]

        def refills() -> Iterator[None]:
            for part in parts:
                for array, filled in arguments:
                    filled.numpy()[: part.stop - part.start] = array[part]
                yield

        with torch.inference_mode():
            for part, results in zip(parts, program.runs(tensors, refills()), strict=True):
                views[part] = results[0].cpu().numpy()[: part.stop - part.start]
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
        references: References,
        on_step: Callable[[float], None] | None = None,
        uniforms: Uniforms | None = None,
    ) -> dict[str, Array]:
        """As `Engine.train`."""
        loaded, bundle = self._program(program), self._bundle.manifest
        loss_at = loaded.index(loaded.outputs, pb.SLOT_KIND_LOSS)
        values = self._hyper(hyper)
        views = takes_views(manifest.program(bundle, program), bundle)
        if views != (rows.views is not None):
            raise BadInput(f"{program} takes {bundle.views if views else 'no'} views of each photo")
        filled = bundle.last_batch == pb.LAST_BATCH_FILLED
        feed = Feed(loaded, rows, len(bundle.class_names), references, filled=filled, uniforms=uniforms)
        arguments = [argument(slot, feed, weights, values, references, loaded.optional) for slot in loaded.inputs]
        with torch.inference_mode():
            for number, results in enumerate(loaded.runs(arguments, map(feed.fill, batches)), start=1):
                loss = results[loss_at].item()
                if not math.isfinite(loss):
                    raise NonFinite(f"the loss of step {number} is {loss}; a smaller learning rate may help")
                if on_step is not None:
                    on_step(loss)
            trained = {
                slot.name: _array(value)
                for slot, value in zip(loaded.inputs, arguments, strict=True)
                if slot.kind == pb.SLOT_KIND_WEIGHT
            }
        for name, array in trained.items():
            if not np.isfinite(array).all():
                raise NonFinite(f"tensor {name!r} holds a NaN or an infinity after training")
        return trained

    def derive(
        self, program: str, hyper: Mapping[str, float], references: References, rows: Rows | None = None
    ) -> dict[str, Array]:
        """As `Engine.derive`."""
        loaded = self._program(program)
        feed = None
        if any(slot.kind == pb.SLOT_KIND_INPUT for slot in loaded.inputs):
            if rows is None or not len(rows.labels):
                raise BadInput(f"program {program!r} runs over rows, and there are none")
            # Over rows as they are, without views.
            feed = self._feed(loaded, Rows(rows.inputs, rows.labels), references)
        elif rows is not None:
            raise BadInput(f"program {program!r} runs without rows")
        found = _outputs(loaded, feed, {}, self._hyper(hyper), references)
        for name, array in found.items():
            if not np.isfinite(array).all():
                raise NonFinite(f"tensor {name!r} of program {program!r} holds a NaN or an infinity")
        return found

    def predict(
        self,
        weights: Mapping[str, Array],
        inputs: NDArray[np.float32],
        program: str = "predict",
        references: References = MappingProxyType({}),
    ) -> NDArray[np.float32]:
        """As `Engine.predict`."""
        return self._of_rows(program, weights, inputs, references, "the logits")

    def extract(self, extractor: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """As `Engine.extract`."""
        return self._of_rows("extract", extractor, inputs, {}, "the extractor's outputs")

    def _of_rows(
        self,
        program: str,
        weights: Mapping[str, Array],
        inputs: NDArray[np.float32],
        references: References,
        what: str,
    ) -> NDArray[np.float32]:
        """The only output of a program for each row, float32 [N, ...]."""
        loaded = self._program(program)
        feed = self._feed(loaded, Rows(inputs, np.zeros(len(inputs), np.int64)), references)
        (found,) = _outputs(loaded, feed, weights, {}, references).values()
        if not np.isfinite(found).all():
            raise NonFinite(f"{what} hold a NaN or an infinity")
        return found

    def _feed(self, loaded: LoadedProgram, rows: Rows, references: References) -> Feed:
        return Feed(loaded, rows, len(self._bundle.manifest.class_names), references)

    def _program(self, name: str) -> LoadedProgram:
        with self._loading:
            if name not in self._programs:
                self._programs[name] = self._load(name)
            return self._programs[name]

    def _frozen_tensors(self) -> Mapping[str, Tensor]:
        with self._loading:
            if self._frozen is None:
                self._frozen = self._read_frozen(self._programs["embed"])
            return self._frozen

    def _hyper(self, given: Mapping[str, float]) -> dict[str, float]:
        known = {h.name: h for h in self._bundle.manifest.hyper_parameters}
        for name, value in given.items():
            if name not in known:
                raise BadInput(f"hyper-parameter {name!r} is unknown; the bundle has {', '.join(known)}")
            low, high = known[name].minimum, known[name].maximum
            if not low <= value <= high:
                raise BadInput(f"hyper-parameter {name!r} is {value}; allowed are {low} to {high}")
        return {name: given.get(name, h.default_value) for name, h in known.items()}


def _outputs(
    loaded: LoadedProgram,
    feed: Feed | None,
    weights: Mapping[str, Array],
    hyper: Mapping[str, float],
    references: References,
) -> dict[str, Array]:
    """The outputs of a program that does not train, by name: for each row, or at the end."""
    arguments = [argument(slot, feed, weights, hyper, references, loaded.optional) for slot in loaded.inputs]
    with torch.inference_mode():
        if feed is None:
            (results,) = loaded.runs(arguments, [None])
            values = [*results]
            for source, target in loaded.carried:
                values[source] = arguments[target]
            return {slot.name: _array(value) for slot, value in zip(loaded.outputs, values, strict=True)}
        batches = np.split(np.arange(feed.count), range(feed.batch, feed.count, feed.batch))
        carried = {i for i, _ in loaded.carried}
        of_rows = [(i, slot) for i, slot in enumerate(loaded.outputs) if i not in carried]
        found = {slot.name: np.empty((feed.count, *slot.shape[1:]), NUMPY[slot.dtype]) for _, slot in of_rows}
        for batch, results in zip(batches, loaded.runs(arguments, map(feed.fill, batches)), strict=True):
            for place, slot in of_rows:
                found[slot.name][batch] = results[place].cpu().numpy()[: len(batch)]
        ends = {
            slot.name: _array(value)
            for slot, value in zip(loaded.inputs, arguments, strict=True)
            if slot.kind == pb.SLOT_KIND_ACCUMULATOR
        }
    return found | ends


def _array(value: Tensor) -> Array:
    return np.ascontiguousarray(value.cpu().numpy()).reshape(value.shape)
