"""A `.pt2` program of a bundle as a function over flat tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from fedlens_edge_client.engines import BundleUnusable
from fedlens_edge_client.engines.flat import flat_function
from fedlens_edge_client.engines.loaded import OwnProgram, check_slots
from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pt2_loading, pt2_values
from fedlens_proto.v1 import manifest_pb2 as pb

# Raised by torch for an operator with arguments that it does not take.
_CONTRADICTIONS = (RuntimeError, TypeError, ValueError, IndexError)
# Inputs that do not change between the batches of an instruction.
_CONSTANT = (
    *(pb.SLOT_KIND_HYPER, pb.SLOT_KIND_REFERENCE, pb.SLOT_KIND_PRESENT),
    *(pb.SLOT_KIND_FROZEN, pb.SLOT_KIND_EXTRACTOR),
)


class Program(OwnProgram):
    """A loaded `.pt2`."""

    def __init__(self, message: pb.Program, raw: bytes, device: torch.device | None = None) -> None:
        """Vet and load the `.pt2` of the program that `message` describes, without running code from the bundle.

        With a `device`, arguments are moved to it and results stay on it.

        Raises:
            BundleUnusable: The file is refused, or contradicts the manifest.
        """
        super().__init__(message)
        name = self.name
        constant = [i for i, slot in enumerate(self.inputs) if slot.kind in _CONSTANT]
        try:
            graph = _load(name, pt2_values.vetted(raw, constant))
        except ProgramRefused as error:
            raise BundleUnusable(f"program {name!r} cannot be used: {error}") from error
        _check_slots(name, self.inputs, self.outputs, graph)
        self._device = device
        if device is not None:
            _make_tensors_on(device, graph)
        replaced = {(slot.kind, slot.name) for slot in self.outputs}
        self._function = flat_function(
            graph,
            constant=constant,
            donated=[i for i, slot in enumerate(self.inputs) if (slot.kind, slot.name) in replaced],
        )

    def prepare(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """As `OwnProgram.prepare`."""
        try:
            return self._function.prepare(*self._brought(arguments))
        except _CONTRADICTIONS as error:
            raise self._contradiction(error) from error

    def run(self, arguments: Sequence[Tensor], prepared: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """As `OwnProgram.run`."""
        try:
            results = self._function.run(*self._brought(arguments), *prepared)
        except _CONTRADICTIONS as error:
            raise self._contradiction(error) from error
        self._check_results(results)
        return results

    def _brought(self, arguments: Sequence[Tensor]) -> Sequence[Tensor]:
        device = self._device
        return arguments if device is None else [argument.to(device) for argument in arguments]


def _load(name: str, vetted: bytes) -> fx.Graph:
    try:
        graph: fx.Graph = pt2_loading.load(vetted).graph
    except Exception as error:  # a contradictory file makes the loader raise anything
        raise BundleUnusable(f"program {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return graph


def _make_tensors_on(device: torch.device, graph: fx.Graph) -> None:
    """Create the program's new tensors on this device: the graph names the device of the export."""
    for node in graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}


def _check_slots(name: str, inputs: Sequence[pb.Slot], outputs: Sequence[pb.Slot], graph: fx.Graph) -> None:
    given = [node for node in graph.nodes if node.op == "placeholder"]
    returned = list(graph.output_node().args[0])  # type: ignore[arg-type]  # a flat tuple, says the vetting
    for what, slots, nodes in (("inputs", inputs, given), ("outputs", outputs, returned)):
        values = [node.meta["val"] for node in nodes]
        check_slots(name, what, slots, [(tuple(value.shape), value.dtype) for value in values])
