"""A program of a bundle that has been loaded, whichever runtime runs it."""

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
    """A plain function over flat tensors, and where everything stands in its arguments and results.

    Attributes:
        name: As in the manifest.
        inputs: The slots of its arguments, in their order.
        outputs: The slots of its results, in their order.
    """

    def __init__(self, name: str, inputs: Sequence[pb.Slot], outputs: Sequence[pb.Slot]) -> None:
        """`inputs` and `outputs` are of the manifest, but for those that the file has inside."""
        self.name, self.inputs, self.outputs = name, inputs, outputs
        self._checked = False

    @abstractmethod
    def prepare(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What `run` takes beside its arguments; to be made anew when a hyper-parameter changes.

        Raises:
            BundleUnusable: The program contradicts itself.
        """

    @abstractmethod
    def run(self, arguments: Sequence[Tensor], prepared: Sequence[Tensor]) -> Sequence[Tensor]:
        """The program's outputs, which stay as they are until their arguments are written over.

        It may write over arguments that have an output of the same kind and name.

        Raises:
            BundleUnusable: The program contradicts itself, or gives something else than its manifest says.
        """

    def input_index(self, kind: pb.SlotKind) -> int:
        """Where the only input of this kind stands.

        Raises:
            BundleUnusable: There is none, or more than one.
        """
        return self._only(kind, self.inputs)

    def output_index(self, kind: pb.SlotKind) -> int:
        """Where the only output of this kind stands; errors as in `input_index`."""
        return self._only(kind, self.outputs)

    def _check_results(self, results: Sequence[Tensor]) -> None:
        # Shapes are fixed, so that once is enough.
        if not self._checked:
            for slot, result in zip(self.outputs, results, strict=True):
                check_tensor(self.name, "outputs", slot, tuple(result.shape), result.dtype)
            self._checked = True

    def _contradiction(self, error: Exception) -> BundleUnusable:
        return BundleUnusable(f"program {self.name!r} cannot be run: {type(error).__name__}: {error}")

    def _only(self, kind: pb.SlotKind, slots: Sequence[pb.Slot]) -> int:
        found = [i for i, slot in enumerate(slots) if slot.kind == kind]
        if len(found) != 1:
            raise BundleUnusable(
                f"program {self.name!r} has {len(found)} slots of kind {pb.SlotKind.Name(kind)} where one is needed"
            )
        return found[0]


def read(bundle: Bundle, name: str, kind: pb.ProgramFormat) -> tuple[pb.Program, bytes]:
    """What the manifest says of a program, and its file in one format.

    Raises:
        BundleUnusable: The bundle has no such program or format, or its file is gone.
    """
    try:
        return program(bundle.manifest, name), bundle.program_file(name, kind).read_bytes()
    except ManifestError as error:
        raise BundleUnusable(f"program {name!r} cannot be used: {error}") from error
    except OSError as error:
        # The server is told, and a path may hold the name of the client's owner.
        raise BundleUnusable(f"program {name!r} cannot be read: {error.strerror}") from error


def check_tensor(name: str, what: str, slot: pb.Slot, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """See that a program's tensor is what the manifest says of it.

    Raises:
        BundleUnusable: It is not.
    """
    if shape != tuple(slot.shape) or dtype != DTYPES[slot.dtype]:
        raise BundleUnusable(
            f"program {name!r}: {what} hold {dtype}{list(shape)} where its manifest says "
            f"{DTYPES[slot.dtype]}{list(slot.shape)} ({slot.name or pb.SlotKind.Name(slot.kind)})"
        )


def check_count(name: str, what: str, slots: Sequence[pb.Slot], found: int) -> None:
    """See that a program has as many inputs or outputs as the manifest says.

    Raises:
        BundleUnusable: It has not.
    """
    if len(slots) != found:
        raise BundleUnusable(f"program {name!r} has {found} {what}, its manifest says {len(slots)}")
