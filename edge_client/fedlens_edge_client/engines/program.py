"""A program of a bundle as a plain function over flat tensors."""

import io
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export.pt2_archive._package import load_pt2

from fedlens_edge_client.engines import BundleUnusable
from fedlens_proto import pt2
from fedlens_proto.errors import ManifestError, ProgramRefused
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

Function = Callable[..., tuple[Tensor, ...]]

DTYPES: dict[blob_pb2.Dtype, torch.dtype] = {
    blob_pb2.DTYPE_FLOAT32: torch.float32,
    blob_pb2.DTYPE_INT64: torch.int64,
}


class Program:
    """A loaded program and where everything stands in its arguments and results."""

    def __init__(self, bundle: Bundle, name: str) -> None:
        """Vet and load the `.pt2` of program `name`; no code from the bundle is run.

        Raises:
            BundleUnusable: There is none, it is refused, or it is not what the manifest says.
        """
        try:
            message = program(bundle.manifest, name)
            raw = pt2.canonical(bundle.program_file(name, pb.PROGRAM_FORMAT_PT2).read_bytes())
        except (ManifestError, ProgramRefused, OSError) as error:
            raise BundleUnusable(f"program {name!r} cannot be used: {error}") from error
        self.name = name
        self.inputs: Sequence[pb.Slot] = message.inputs
        self.outputs: Sequence[pb.Slot] = message.outputs
        graph = _load(name, raw)
        _check_slots(name, self.inputs, self.outputs, graph)
        self.run = flat_function(graph)

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


def flat_function(graph: fx.Graph) -> Function:
    """A function that runs a vetted graph: arguments and results flat, each tensor let go after its last use.

    torch's own module checks and reorders its arguments at each call, which takes a part of a small head's time.
    Nothing of the file stands in the generated source: tensors are numbered, and all else is bound by number.
    """
    names: dict[fx.Node, str] = {}
    bound: dict[str, Any] = {}
    lines: list[str] = []
    results = "()"

    def written(value: Any) -> str:
        if isinstance(value, fx.Node):
            return names[value]
        if isinstance(value, list | tuple):
            return "[" + ", ".join(written(item) for item in value) + "]"
        constant = f"c{len(bound)}"
        bound[constant] = value
        return constant

    last_use = {used: node for node in graph.nodes for used in node.all_input_nodes}
    for node in graph.nodes:
        if node.op == "output":
            results = written(node.args[0])
            continue
        names[node] = f"v{len(names)}"
        if node.op == "placeholder":
            continue
        if node.target is operator.getitem:
            lines.append(f"{names[node]} = {names[node.args[0]]}[{int(node.args[1])}]")
        else:
            positional = [written(value) for value in node.args]
            # Keywords come from torch's own table of operators, to which the loader has matched them.
            keywords = [f"{key}={written(value)}" for key, value in node.kwargs.items()]
            operation = f"c{len(bound)}"
            bound[operation] = node.target._op
            lines.append(f"{names[node]} = {operation}({', '.join(positional + keywords)})")
        if done := [
            names[used] for used in node.all_input_nodes if last_use[used] is node and used.op != "placeholder"
        ]:
            lines.append(f"del {', '.join(done)}")
    arguments = ", ".join(names[node] for node in graph.nodes if node.op == "placeholder")
    source = "\n    ".join([f"def run({arguments}):", *lines, f"return {results}"])
    exec(compile(source, "<program>", "exec"), bound)
    run: Function = bound["run"]
    return run


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


def _check_slots(name: str, inputs: Sequence[pb.Slot], outputs: Sequence[pb.Slot], graph: fx.Graph) -> None:
    given = [node for node in graph.nodes if node.op == "placeholder"]
    returned = list(graph.output_node().args[0])  # type: ignore[arg-type]  # a flat tuple, says the vetting
    for what, slots, nodes in (("inputs", inputs, given), ("outputs", outputs, returned)):
        if len(slots) != len(nodes):
            raise BundleUnusable(f"program {name!r} has {len(nodes)} {what}, its manifest says {len(slots)}")
        for slot, node in zip(slots, nodes, strict=True):
            found = node.meta["val"]
            if tuple(found.shape) != tuple(slot.shape) or found.dtype != DTYPES[slot.dtype]:
                raise BundleUnusable(
                    f"program {name!r}: {what} hold {found.dtype}{list(found.shape)} where its manifest says "
                    f"{DTYPES[slot.dtype]}{list(slot.shape)} ({slot.name or pb.SlotKind.Name(slot.kind)})"
                )
