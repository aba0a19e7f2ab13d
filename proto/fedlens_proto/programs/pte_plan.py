"""What a `.pte` program would do, read without running or loading it: its calls, and the memory that it plans.

The file is a FlatBuffer (the program: an execution plan for each method) and behind it segments, with constants and
with what belongs to XNNPACK: graphs of its own operators, each called by one instruction of the plan.

Sources: `schema/program.fbs` and `backends/xnnpack/serialization/runtime_schema.fbs` of ExecuTorch 1.4. Both only grow
at their ends, so files of later versions are read too, with numbers for operators that have no name here.
"""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pte
from fedlens_proto.programs.flatbuffer import FlatbufferError, Table

XNNPACK = "XnnpackBackend"

# Fields by their numbers in the schema.
_PLANS, _DELEGATE_DATA, _SEGMENTS = 1, 3, 4
_NAME, _CHAINS, _OPERATORS, _DELEGATES, _BUFFER_SIZES = 0, 5, 6, 7, 8
_INSTRUCTIONS, _KERNEL_CALL, _DELEGATE_CALL = 2, 1, 2
_BACKEND, _PROCESSED, _LOCATION, _INDEX, _IN_SEGMENT = 0, 1, 0, 1, 1
_XNODES = 1

_SEGMENT_BASE_AT, _SEGMENT_BASE = 24, struct.Struct("<Q")  # see `pte`
_XNN_VERSIONS = (b"XN01", b"XN00")  # constants in segments of the program, or behind the graph
_XNN_HEADER_AT = 4
_XNN_HEADER = struct.Struct("<4sHII")  # XH00, its length, offset and length of the FlatBuffer
T = TypeVar("T")

_XNN_NODES = """
    Add FullyConnected Softmax Sigmoid StaticTranspose Clamp Conv2d Div StaticResizeBilinear2D StaticConstantPad
    AvgPooling2d Minimum DepthwiseConv2d MaxPooling2d Multiply Subtract Floor Convert GlobalAvgPooling2d StaticReshape
    ArgMaxPooling2d SquareRoot Ceiling Hardswish LeakyReLU Maximum Negate Square ELU Abs PReLU Concatenate2 Concatenate3
    Concatenate4 StaticSlice ScaledDotProductAttention BatchMatrixMultiply Concatenate5 ConvTranspose2d
    ReciprocalSquareRoot Log Gelu Tanh Exp Sin Copy Cos
""".split()


@dataclass(frozen=True)
class Plan:
    """What a program's one method calls and needs.

    Attributes:
        method: Its name.
        portable: How often each operator is called as a kernel of its own, by name such as `aten.mul.out`.
        delegated: How often each operator is called inside of XNNPACK, by XNNPACK's names; after fusion.
        delegates: Calls of a backend, by the backend's name; each runs a whole graph.
        planned_bytes: Of the buffers that the runtime needs for outputs and what is computed in between, outside of
            backends, and for inputs too if the program was lowered so; ours leaves them where the caller has them. A
            backend's own memory is known only to it.
        segment_bytes: Of constants and backends' graphs behind the program itself, in the file.
        file_bytes: Of the whole file.
    """

    method: str
    portable: Mapping[str, int]
    delegated: Mapping[str, int]
    delegates: Mapping[str, int]
    planned_bytes: int
    segment_bytes: int
    file_bytes: int

    @property
    def delegated_share(self) -> float:
        """Of all calls of operators, the share that XNNPACK makes; 0 of none."""
        delegated = sum(self.delegated.values())
        return delegated / max(1, delegated + sum(self.portable.values()))


def read(raw: bytes) -> Plan:
    """The plan of a program.

    Raises:
        ProgramRefused: It is no `.pte` with one method, or it is damaged.
    """
    try:
        return _read(raw)
    except FlatbufferError as error:
        raise ProgramRefused(f"program refused: it is no readable .pte: {error}") from error


def _read(raw: bytes) -> Plan:
    pte.check(raw)
    program = Table.root(raw, raw[4:8])
    (base,) = _SEGMENT_BASE.unpack_from(raw, _SEGMENT_BASE_AT)
    segments = [(table.number(0, "u64"), table.number(1, "u64")) for table in program.tables(_SEGMENTS)]
    for offset, size in segments:
        if base + offset + size > len(raw):
            raise FlatbufferError(f"a segment of {size} bytes leads outside of the file, which is cut short")
    _within_file(raw, sum(size for _, size in segments))
    plans = list(program.tables(_PLANS))
    if len(plans) != 1:
        raise FlatbufferError(f"it has {len(plans)} methods, a program has one")
    plan = plans[0]
    chains = list(plan.tables(_CHAINS))
    if len(chains) != 1:
        raise FlatbufferError(f"its method has {len(chains)} parts, a program's has one")
    kernels, delegate_calls = _calls(chains[0])
    operators = list(plan.tables(_OPERATORS))
    delegates = list(plan.tables(_DELEGATES))
    portable: Counter[str] = Counter()
    for index, count in kernels.items():
        portable[_operator_name(_at(operators, index))] += count
    inside: Counter[str] = Counter()
    by_backend: Counter[str] = Counter()
    graphs = _Graphs(program, segments, base)
    for index, count in delegate_calls.items():
        delegate = _at(delegates, index)
        backend = delegate.text(_BACKEND)
        by_backend[backend] += count
        if backend == XNNPACK:
            for name, nodes in graphs.nodes(delegate).items():
                inside[name] += count * nodes
    sizes = plan.numbers(_BUFFER_SIZES, "i64")
    if any(size < 0 for size in sizes):
        raise FlatbufferError(f"it plans a buffer of {min(sizes)} bytes")
    return Plan(
        method=plan.text(_NAME),
        portable=_sorted(portable),
        delegated=_sorted(inside),
        delegates=_sorted(by_backend),
        planned_bytes=sum(sizes),
        segment_bytes=sum(size for _, size in segments),
        file_bytes=len(raw),
    )


def _operator_name(operator: Table) -> str:
    return f"{operator.text(0).replace('::', '.')}.{operator.text(1) or 'default'}"


def _within_file(raw: bytes, used: int) -> None:
    """See that parts of a file do not overlap; reading them all could take forever."""
    if used > len(raw):
        raise FlatbufferError(f"its parts have {used} bytes, the file {len(raw)}")


def _calls(chain: Table) -> tuple[Counter[int], Counter[int]]:
    """How often each operator and each delegate is called, by its number."""
    kernels: Counter[int] = Counter()
    delegates: Counter[int] = Counter()
    for instruction in chain.tables(_INSTRUCTIONS):
        kind, call = instruction.union(0)
        if call is not None and kind == _KERNEL_CALL:
            kernels[call.number(0, "i32")] += 1
        elif call is not None and kind == _DELEGATE_CALL:
            delegates[call.number(0, "i32")] += 1
    return kernels, delegates


class _Graphs:
    """The XNNPACK graphs of a program, each read once; several calls may share one."""

    def __init__(self, program: Table, segments: list[tuple[int, int]], base: int) -> None:
        self._raw = program.raw
        self._segments = segments
        self._base = base
        self._inline = list(program.tables(_DELEGATE_DATA))
        self._read: dict[tuple[int, int], Counter[str]] = {}
        self._bytes = 0

    def nodes(self, delegate: Table) -> Counter[str]:
        """How many operators of each name the graph of a delegate has."""
        reference = delegate.table(_PROCESSED)
        if reference is None:
            raise FlatbufferError("a backend is given nothing to run")
        place = (reference.number(_LOCATION, "u8"), reference.number(_INDEX, "u32"))
        if place not in self._read:
            graph = self._graph(*place)
            self._bytes += len(graph)
            _within_file(self._raw, self._bytes)
            self._read[place] = _xnn_nodes(graph)
        return self._read[place]

    def _graph(self, location: int, index: int) -> bytes:
        if location != _IN_SEGMENT:
            return _at(self._inline, index).bytes(0)
        offset, size = _at(self._segments, index)
        return self._raw[self._base + offset : self._base + offset + size]


def _xnn_nodes(raw: bytes) -> Counter[str]:
    """How many operators of each name an XNNPACK graph has."""
    if raw[_XNN_HEADER_AT : _XNN_HEADER_AT + 4] == b"XH00" and len(raw) >= _XNN_HEADER_AT + _XNN_HEADER.size:
        _, _, offset, size = _XNN_HEADER.unpack_from(raw, _XNN_HEADER_AT)
        raw = raw[offset : offset + size]
    found: Counter[str] = Counter()
    version = raw[4:8] if raw[4:8] in _XNN_VERSIONS else _XNN_VERSIONS[0]
    for node in Table.root(raw, version).tables(_XNODES):
        kind, _ = node.union(0)
        found[_XNN_NODES[kind - 1] if 1 <= kind <= len(_XNN_NODES) else f"operator {kind}"] += 1
    return found


def _at(items: list[T], index: int) -> T:
    if not 0 <= index < len(items):
        raise FlatbufferError(f"number {index} of {len(items)} is called")
    return items[index]


def _sorted(counts: Counter[str]) -> dict[str, int]:
    """The most frequent first."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
