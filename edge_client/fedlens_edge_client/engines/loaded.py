"""The common bases of loaded programs, for any runtime."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256

import torch
from torch import Tensor

from fedlens_edge_client.engines import BundleUnusable
from fedlens_proto.errors import ManifestError
from fedlens_proto.manifest import Bundle, program, program_part
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

DTYPES: dict[blob_pb2.Dtype, torch.dtype] = {
    blob_pb2.DTYPE_FLOAT32: torch.float32,
    blob_pb2.DTYPE_INT64: torch.int64,
}
# Outputs that become the inputs of the next run.
_CARRIED = (
    *(pb.SLOT_KIND_WEIGHT, pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_COUNTER),
    pb.SLOT_KIND_ACCUMULATOR,
)


class LoadedProgram(ABC):
    """A function over flat tensors, with the slots of its arguments and results.

    Attributes:
        name: As in the manifest.
        inputs: The slots of the arguments, in order.
        outputs: The slots of the results, in order.
        optional: The references that need not be bound.
    """

    def __init__(self, message: pb.Program, *, contains_frozen: bool = False) -> None:
        """Take the manifest's slots, without the frozen tensors if the file contains them."""
        self.name, self.outputs, self.optional = message.name, message.outputs, message.optional
        self.inputs: Sequence[pb.Slot] = [
            slot for slot in message.inputs if not (contains_frozen and slot.kind == pb.SLOT_KIND_FROZEN)
        ]

    @cached_property
    def carried(self) -> list[tuple[int, int]]:
        """The outputs that replace an input of the next run: the index of each, and of its input."""
        where = {(slot.kind, slot.name): i for i, slot in enumerate(self.inputs)}
        names = [(slot.kind, slot.name) for slot in self.outputs]
        return [(i, where[name]) for i, name in enumerate(names) if name[0] in _CARRIED and name in where]

    @abstractmethod
    def runs(self, arguments: list[Tensor], refills: Iterable[object]) -> Iterator[Sequence[Tensor]]:
        """The outputs of one run after another.

        Args:
            arguments: Values of the inputs. After the last run it holds the outputs that replaced an input.
            refills: Gives one item for each run, when the inputs of a batch hold the values of that run. It may be
                asked for the next item before the outputs of the last run are there.

        Yields:
            The outputs; those that replace an input may be missing, and are then an empty tensor.

        Raises:
            BundleUnusable: The program contradicts itself or its manifest.
        """

    def index(self, slots: Sequence[pb.Slot], kind: pb.SlotKind) -> int:
        """The index of the only slot of this kind among the inputs or outputs.

        Raises:
            BundleUnusable: There is none, or more than one.
        """
        found = [i for i, slot in enumerate(slots) if slot.kind == kind]
        if len(found) != 1:
            raise BundleUnusable(
                f"program {self.name!r} has {len(found)} slots of kind {pb.SlotKind.Name(kind)} where one is needed"
            )
        return found[0]


class OwnProgram(LoadedProgram):
    """A program that runs in this process."""

    _checked = False

    @abstractmethod
    def prepare(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Compute the second argument of `run`; do so again when a hyper-parameter changes.

        Raises:
            BundleUnusable: The program contradicts itself.
        """

    @abstractmethod
    def run(self, arguments: Sequence[Tensor], prepared: Sequence[Tensor]) -> Sequence[Tensor]:
        """Run the program; its outputs stay valid until the arguments are overwritten.

        The program may overwrite an argument that has an output of the same kind and name.

        Raises:
            BundleUnusable: The program contradicts itself or its manifest.
        """

    def runs(self, arguments: list[Tensor], refills: Iterable[object]) -> Iterator[Sequence[Tensor]]:
        """As `LoadedProgram.runs`."""
        carried = self.carried
        prepared = self.prepare(arguments)
        for _ in refills:
            results = self.run(arguments, prepared)
            for source, target in carried:
                arguments[target] = results[source]
            yield results

    def _check_results(self, results: Sequence[Tensor]) -> None:
        # Shapes are fixed: one check is enough.
        if not self._checked:
            for slot, result in zip(self.outputs, results, strict=True):
                check_tensor(self.name, "outputs", slot, tuple(result.shape), result.dtype)
            self._checked = True

    def _contradiction(self, error: Exception) -> BundleUnusable:
        return BundleUnusable(f"program {self.name!r} cannot be run: {type(error).__name__}: {error}")


def read(bundle: Bundle, name: str, kind: pb.ProgramFormat) -> tuple[pb.Program, bytes]:
    """The manifest's description of a program, and its file in one format.

    Raises:
        BundleUnusable: The bundle has no such program or format, or the file is missing.
    """
    try:
        return program(bundle.manifest, name), bundle.program_file(name, kind).read_bytes()
    except ManifestError as error:
        raise BundleUnusable(f"program {name!r} cannot be used: {error}") from error
    except OSError as error:
        # The text goes to the server, and a path may contain the name of the client's owner.
        raise BundleUnusable(f"program {name!r} cannot be read: {error.strerror}") from error


def read_intact(bundle: Bundle, name: str, kind: pb.ProgramFormat) -> tuple[pb.Program, bytes]:
    """As `read`; the file has the digest that the manifest names.

    Raises:
        BundleUnusable: As in `read`, or the file is damaged.
    """
    message, raw = read(bundle, name, kind)
    digest = program_part(bundle.manifest, name, kind)
    if sha256(raw).digest() != digest:
        raise BundleUnusable(f"program {name!r} cannot be used: its file, part {digest.hex()}, is damaged")
    return message, raw


def check_tensor(name: str, what: str, slot: pb.Slot, shape: tuple[int, ...], dtype: object) -> None:
    """Check a program's tensor against its slot in the manifest.

    Raises:
        BundleUnusable: The shape or the dtype differs.
    """
    if shape != tuple(slot.shape) or dtype != DTYPES[slot.dtype]:
        raise BundleUnusable(
            f"program {name!r}: {what} hold {dtype}{list(shape)} where its manifest says "
            f"{DTYPES[slot.dtype]}{list(slot.shape)} ({slot.name or pb.SlotKind.Name(slot.kind)})"
        )


def check_slots(
    name: str, what: str, slots: Sequence[pb.Slot], found: Sequence[tuple[tuple[int, ...], object]]
) -> None:
    """Check the number, shapes and dtypes of a program's inputs or outputs against the manifest.

    Raises:
        BundleUnusable: One of them differs.
    """
    if len(slots) != len(found):
        raise BundleUnusable(f"program {name!r} has {len(found)} {what}, its manifest says {len(slots)}")
    for slot, (shape, dtype) in zip(slots, found, strict=True):
        check_tensor(name, what, slot, shape, dtype)
