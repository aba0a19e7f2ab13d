"""Lowering of traced programs to ExecuTorch's `.pte`, for phones, with XNNPACK for most operators.

Frozen tensors are constants inside the file, so that XNNPACK can fold and pack them; all other tensors are inputs, in
the order of the slots. executorch takes seconds to import, so it is imported only when a program is lowered.
"""

import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node

from fedlens_export.errors import NotExportable
from fedlens_export.programs import lowering, pte_graph
from fedlens_export.programs.steps import ProgramSource
from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pt2, pte, pte_rules, pte_runtime
from fedlens_proto.v1 import manifest_pb2 as pb

_NOT_CORE = re.compile(r"Operator torch\._ops\.([\w.]+) is not in Core ATen")
_ADVICE = "build the model from other operators, or do without .pte"


@dataclass(frozen=True)
class Delegation:
    """The operators of a program that XNNPACK and portable kernels run.

    Attributes:
        delegated: Number of operators that XNNPACK runs.
        portable: Number of each operator that portable kernels run, by name such as `aten.mul.Tensor`, the greatest
            first.
    """

    delegated: int
    portable: Mapping[str, int]

    def __str__(self) -> str:
        """A line for people."""
        left = ", ".join(f"{name} {count}" for name, count in self.portable.items())
        others = f"portable kernels {sum(self.portable.values())}: {left}" if left else "portable kernels none"
        return f"XNNPACK runs {self.delegated} operators, {others}"


def check_installed() -> None:
    """Check that programs can be lowered.

    Raises:
        NotExportable: executorch is not installed.
    """
    if find_spec("executorch") is None:
        raise NotExportable(
            "programs for phones need ExecuTorch, which is not installed; run pip install 'fedlens[export]', "
            "or leave out --target pte"
        )


def bind(source: ProgramSource, program: ExportedProgram, known: Mapping[str, Tensor]) -> ExportedProgram:
    """Make the frozen tensors of a traced program constants instead of inputs.

    Args:
        source: Source of the program.
        program: From `lowering.trace`, as it is saved as `.pt2`.
        known: Values of the frozen tensors, by name.
    """
    frozen = [slot.kind == pb.SLOT_KIND_FROZEN for slot in source.inputs]
    constants = [known[slot.name] for slot in source.inputs if slot.kind == pb.SLOT_KIND_FROZEN]
    described = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    examples = tuple(
        torch.zeros(value.shape, dtype=value.dtype)
        for value, is_frozen in zip(described, frozen, strict=True)
        if not is_frozen
    )
    return torch.export.export(_Bound(pte_graph.rewritten(program), frozen, constants), examples)


def lower(name: str, program: ExportedProgram) -> tuple[bytes, Delegation]:
    """The `.pte` of a program from `bind`, the same bytes each time.

    Raises:
        NotExportable: executorch is not installed or lacks an operator, or clients refuse the program.
    """
    check_installed()
    with quietly():
        partitioner: Any = import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
        exir: Any = import_module("executorch.exir")  # its types are not those of what it gives
        passes: Any = import_module("executorch.exir.passes")
        try:
            edge = exir.to_edge_transform_and_lower(program, partitioner=[partitioner.XnnpackPartitioner()])
            delegation = _delegation(edge.exported_program())
            # The program reads inputs where the caller has them, instead of copying them into its own memory.
            memory = passes.MemoryPlanningPass(alloc_graph_input=False)
            lowered = edge.to_executorch(exir.ExecutorchBackendConfig(memory_planning_pass=memory))
        except Exception as error:  # whatever the compiler raises for an operator that it does not know
            raise _not_lowered(name, error) from error
    plan = lowered.executorch_program.execution_plan[0]
    used = {".".join(filter(None, (operator.name, operator.overload))) for operator in plan.operators}
    if lacking := sorted(used - _runtime().operator_registry.operator_names):
        raise NotExportable(f"program {name!r} uses {', '.join(lacking)}, which ExecuTorch's runtime lacks; {_ADVICE}")
    raw = bytes(lowered.buffer)
    try:
        pte_rules.check(raw)
    except ProgramRefused as error:
        raise NotExportable(f"program {name!r} was lowered, but clients refuse it ({error}); {_ADVICE}") from error
    return raw, delegation


def _not_lowered(name: str, error: Exception) -> NotExportable:
    if unknown := sorted(set(_NOT_CORE.findall(str(error)))):
        return NotExportable(f"program {name!r} uses {', '.join(unknown)}, which ExecuTorch cannot lower; {_ADVICE}")
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return NotExportable(f"program {name!r} cannot be lowered to ExecuTorch: {first.strip()}; {_ADVICE}")


def load(source: ProgramSource, raw: bytes) -> lowering.Function:
    """The function in a `.pte` made here, over all inputs of its source; it ignores frozen tensors.

    Raises:
        NotExportable: The runtime cannot load it, for example because it lacks an operator. The function raises it too.
    """
    is_input = [slot.kind != pb.SLOT_KIND_FROZEN for slot in source.inputs]
    runtime = _runtime()
    try:
        program = runtime.load_program(raw)
        method = program.load_method(pte.METHOD)
    except RuntimeError as error:
        raise _refused(source.name, error) from error

    def run(*tensors: Tensor, _alive: Any = program) -> tuple[Tensor, ...]:
        # `_alive`: while the method runs, it reads the program's bytes.
        given = [tensor.contiguous() for tensor, is_given in zip(tensors, is_input, strict=True) if is_given]
        try:
            return tuple(method.execute(given))
        except RuntimeError as error:
            raise _refused(source.name, error) from error

    return run


def _refused(name: str, error: RuntimeError) -> NotExportable:
    return NotExportable(f"program {name!r} was lowered, but ExecuTorch's runtime does not run it ({error}); {_ADVICE}")


class _Bound(nn.Module):
    """A traced program with some of its inputs as parameters, since only parameters are folded and packed."""

    def __init__(self, traced: nn.Module, frozen: Sequence[bool], constants: Sequence[Tensor]) -> None:
        super().__init__()
        self.traced = traced
        self.frozen = tuple(frozen)
        self.constants = nn.ParameterList(nn.Parameter(tensor, requires_grad=False) for tensor in constants)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        constants, given = iter(self.constants), iter(tensors)
        result: tuple[Tensor, ...] = self.traced(
            *(next(constants) if is_frozen else next(given) for is_frozen in self.frozen)
        )
        return result


def _delegation(program: ExportedProgram) -> Delegation:
    delegated = 0
    portable: Counter[str] = Counter()
    for node in program.graph.nodes:
        if node.op == "get_attr":
            delegated += sum(map(_is_operator, getattr(program.graph_module, node.target).original_module.graph.nodes))
        elif _is_operator(node) and "executorch_call_delegate" not in str(node.target):
            portable[_name(node)] += 1
    return Delegation(delegated, pt2.by_frequency(portable))


def _is_operator(node: Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") != "getitem"


def _name(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return str(node.target)
    overload = schema.overload_name or "default"
    return f"{schema.name.replace('::', '.')}.{overload}"


def _runtime() -> Any:
    pte_runtime.library()  # sets the runtime to one thread
    with quietly():
        return import_module("executorch.runtime").Runtime.get()


@contextmanager
def quietly() -> Iterator[None]:
    """Silence executorch's warnings about deprecations in torch."""
    chatter = logging.getLogger("torch.utils._pytree")
    level = chatter.level
    chatter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        chatter.setLevel(level)
