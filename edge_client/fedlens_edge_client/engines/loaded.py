"""The common base of loaded programs, for any runtime."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from fedlens_edge_client.engines import BundleUnusable
from fedlens_proto.errors import ManifestError
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

DTYPES: dict[blob_pb2.Dtype, torch.dtype] = {
    blob_pb2.DTYPE_FLOAT32: torch.float32,
    blob_pb2.DTYPE_INT64: torch.int64,
}


class LoadedProgram(ABC):
    """A function over flat tensors, with the slots of its arguments and results.

    Attributes:
        name: As in the manifest.
        inputs: The slots of the arguments, in order.
        outputs: The slots of the results, in order.
        optional: The references that need not be bound.
    """

    def __init__(self, message: pb.Program) -> None:
        """Take the manifest's slots, without tensors that the file contains."""
        self.name, self.outputs, self.optional = message.name, message.outputs, message.optional
        self.inputs: Sequence[pb.Slot] = message.inputs
        self._checked = False

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
