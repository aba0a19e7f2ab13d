"""A program of a bundle as a plain function over flat tensors."""

import io
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch.export.pt2_archive._package import load_pt2

from fedlens_edge_client.engines import BundleUnusable
from fedlens_edge_client.engines.flat import flat_function
from fedlens_proto import pt2
from fedlens_proto.errors import ManifestError, ProgramRefused
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

DTYPES: dict[blob_pb2.Dtype, torch.dtype] = {
    blob_pb2.DTYPE_FLOAT32: torch.float32,
    blob_pb2.DTYPE_INT64: torch.int64,
}

# What torch raises for operators with arguments that they do not take.
_CONTRADICTIONS = (RuntimeError, TypeError, ValueError, IndexError)
# What stays the same over the steps of a stage.
_CONSTANT = (pb.SLOT_KIND_HYPER, pb.SLOT_KIND_REFERENCE, pb.SLOT_KIND_FROZEN, pb.SLOT_KIND_EXTRACTOR)


class Program:
    """A loaded program and where everything stands in its arguments and results."""

    def __init__(self, bundle: Bundle, name: str, device: torch.device | None = None) -> None:
        """Vet and load the `.pt2` of program `name`; no code from the bundle is run.

        On a `device`, arguments are brought there and results stay there.

        Raises:
            BundleUnusable: There is none, it is refused, or it is not what the manifest says.
        """
        try:
            message = program(bundle.manifest, name)
            raw = pt2.canonical(bundle.program_file(name, pb.PROGRAM_FORMAT_PT2).read_bytes())
        except (ManifestError, ProgramRefused) as error:
            raise BundleUnusable(f"program {name!r} cannot be used: {error}") from error
        except OSError as error:
            # The server is told, and a path may hold the name of the client's owner.
            raise BundleUnusable(f"program {name!r} cannot be read: {error.strerror}") from error
        self.name = name
        self.inputs: Sequence[pb.Slot] = message.inputs
        self.outputs: Sequence[pb.Slot] = message.outputs
        graph = _load(name, raw)
        _check_slots(name, self.inputs, self.outputs, graph)
        self._device = device
        if device is not None:
            _make_tensors_on(device, graph)
        replaced = {(slot.kind, slot.name) for slot in self.outputs}
        self._function = flat_function(
            graph,
            constant=[i for i, slot in enumerate(self.inputs) if slot.kind in _CONSTANT],
            donated=[i for i, slot in enumerate(self.inputs) if (slot.kind, slot.name) in replaced],
        )
        self._checked = False

    def prepare(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What `run` takes beside its arguments; to be made anew when a hyper-parameter changes.

        Raises:
            BundleUnusable: The program contradicts itself.
        """
        try:
            return self._function.prepare(*self._brought(arguments))
        except _CONTRADICTIONS as error:
            raise self._contradiction(error) from error

    def run(self, arguments: Sequence[Tensor], prepared: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The program's outputs; it may write over arguments that have an output of the same kind and name.

        Raises:
            BundleUnusable: The program contradicts itself, or gives something else than its manifest says.
        """
        try:
            results = self._function.run(*self._brought(arguments), *prepared)
        except _CONTRADICTIONS as error:
            raise self._contradiction(error) from error
        if not self._checked:
            # Shapes are fixed, so that once is enough.
            for slot, result in zip(self.outputs, results, strict=True):
                _check_tensor(self.name, "outputs", slot, result)
            self._checked = True
        return results

    def _brought(self, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
        device = self._device
        return arguments if device is None else [argument.to(device) for argument in arguments]

    def _contradiction(self, error: Exception) -> BundleUnusable:
        return BundleUnusable(f"program {self.name!r} cannot be run: {type(error).__name__}: {error}")

    def input_index(self, kind: pb.SlotKind) -> int:
        """Where the only input of this kind stands.

        Raises:
            BundleUnusable: There is none, or more than one.
        """
        return self._only(kind, self.inputs)

    def output_index(self, kind: pb.SlotKind) -> int:
        """Where the only output of this kind stands; errors as in `input_index`."""
        return self._only(kind, self.outputs)

    def _only(self, kind: pb.SlotKind, slots: Sequence[pb.Slot]) -> int:
        found = [i for i, slot in enumerate(slots) if slot.kind == kind]
        if len(found) != 1:
            raise BundleUnusable(
                f"program {self.name!r} has {len(found)} slots of kind {pb.SlotKind.Name(kind)} where one is needed"
            )
        return found[0]


def _load(name: str, vetted: bytes) -> fx.Graph:
    try:
        with warnings.catch_warnings():
            # torch warns about its own deprecations while it reads the file.
            warnings.simplefilter("ignore")
            loaded = load_pt2(io.BytesIO(vetted)).exported_programs["model"]
    except Exception as error:  # the loader raises whatever a contradiction in the file leads to
        raise BundleUnusable(f"program {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    graph: fx.Graph = loaded.graph
    return graph


def _make_tensors_on(device: torch.device, graph: fx.Graph) -> None:
    """Have what the program makes out of nothing made there: its graph says where it was exported."""
    for node in graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}


def _check_slots(name: str, inputs: Sequence[pb.Slot], outputs: Sequence[pb.Slot], graph: fx.Graph) -> None:
    given = [node for node in graph.nodes if node.op == "placeholder"]
    returned = list(graph.output_node().args[0])  # type: ignore[arg-type]  # a flat tuple, says the vetting
    for what, slots, nodes in (("inputs", inputs, given), ("outputs", outputs, returned)):
        if len(slots) != len(nodes):
            raise BundleUnusable(f"program {name!r} has {len(nodes)} {what}, its manifest says {len(slots)}")
        for slot, node in zip(slots, nodes, strict=True):
            _check_tensor(name, what, slot, node.meta["val"])


def _check_tensor(name: str, what: str, slot: pb.Slot, found: Tensor) -> None:
    if tuple(found.shape) != tuple(slot.shape) or found.dtype != DTYPES[slot.dtype]:
        raise BundleUnusable(
            f"program {name!r}: {what} hold {found.dtype}{list(found.shape)} where its manifest says "
            f"{DTYPES[slot.dtype]}{list(slot.shape)} ({slot.name or pb.SlotKind.Name(slot.kind)})"
        )
