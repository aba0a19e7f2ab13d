"""The calls of a `.pte` program and the memory that it plans, read without loading or running it.

The file is a FlatBuffer (the program, with an execution plan for its method) followed by segments: constants, and the
graphs that XNNPACK runs, each called by one instruction of the plan. The package `flatbuffers`, which ExecuTorch and
onnxruntime bring along, reads single fields; ExecuTorch's own deserialiser builds the whole program in memory, which
lists that overlap make as large as they like, and takes 5 s to import. In Python an offset that leads outside of the
bytes is an exception, and a limit on tables bounds the work.

Sources: `schema/program.fbs` and `backends/xnnpack/serialization/runtime_schema.fbs` of ExecuTorch 1.4. Both only grow
at their ends, so files of later versions are read too; an operator that is unknown here appears as its number.
"""

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pte
from fedlens_proto.programs.pt2 import by_frequency

XNNPACK = "XnnpackBackend"
MAX_TABLES = 1 << 18
"""Tables that are read of one file; programs of large backbones have a few thousand."""

_MAX_TEXT_BYTES = 1 << 10
# Fields by their places in a table's index: 4, 6, 8 ... in the order of the schema.
_PLANS, _SEGMENTS = 6, 12
_CHAINS, _OPERATORS, _DELEGATES, _BUFFER_SIZES = 14, 16, 18, 20
_INSTRUCTIONS, _CALL_KIND, _CALL, _CALLED = 8, 4, 6, 4
_KERNEL_CALL, _DELEGATE_CALL = 1, 2
_OPERATOR, _OVERLOAD, _BACKEND, _PROCESSED, _SEGMENT = 4, 6, 4, 6, 6
_OFFSET, _SIZE = 4, 6
_XNODES, _XNODE_KIND = 6, 4

_XNN_NODES = """
    Add FullyConnected Softmax Sigmoid StaticTranspose Clamp Conv2d Div StaticResizeBilinear2D StaticConstantPad
    AvgPooling2d Minimum DepthwiseConv2d MaxPooling2d Multiply Subtract Floor Convert GlobalAvgPooling2d StaticReshape
    ArgMaxPooling2d SquareRoot Ceiling Hardswish LeakyReLU Maximum Negate Square ELU Abs PReLU Concatenate2 Concatenate3
    Concatenate4 StaticSlice ScaledDotProductAttention BatchMatrixMultiply Concatenate5 ConvTranspose2d
    ReciprocalSquareRoot Log Gelu Tanh Exp Sin Copy Cos
""".split()


@dataclass(frozen=True)
class Plan:
    """The calls and the memory of a program's one method.

    Attributes:
        portable: Calls of each operator as a kernel of its own, by name such as `aten.mul.out`.
        delegated: Calls of each operator inside XNNPACK, after fusion, by XNNPACK's names.
        delegate_calls: Calls of a backend; each runs a whole graph.
        planned_bytes: Size of the buffers that the runtime needs for outputs and intermediate results outside of
            backends, and for inputs if the program was lowered so; ours reads inputs where the caller has them. Only a
            backend knows its own memory.
        segment_bytes: Size of the constants and the backends' graphs behind the program, in the file.
        backends: Names of the backends that it calls.
        other_instructions: Kinds of its instructions that call neither a kernel nor a backend, by the schema's numbers;
            they jump, or move and free values.
    """

    portable: Mapping[str, int]
    delegated: Mapping[str, int]
    delegate_calls: int
    planned_bytes: int
    segment_bytes: int
    backends: Set[str]
    other_instructions: Set[int]

    @property
    def delegated_share(self) -> float:
        """XNNPACK's share of all calls of operators, 0 if there are none."""
        delegated = sum(self.delegated.values())
        return delegated / max(1, delegated + sum(self.portable.values()))


def read(raw: bytes) -> Plan:
    """The plan of a program.

    Raises:
        ProgramRefused: It is no `.pte` with one method, or it is damaged.
        ModuleNotFoundError: `flatbuffers` is not installed.
    """
    pte.check(raw)
    try:
        return _Reader(raw).plan()
    except (
        IndexError,
        OverflowError,
        struct.error,
        TypeError,
        ValueError,
    ) as error:  # flatbuffers has no error of its own
        raise ProgramRefused(f"program refused: it is damaged, or no .pte with one method ({error})") from error


class _Reader:
    """The bytes of a file, of which at most `MAX_TABLES` tables are read."""

    def __init__(self, raw: bytes) -> None:
        from flatbuffers.table import Table  # type: ignore[import-untyped]  # it ships no types

        self._raw = raw
        self._table = Table
        self._tables_read = 0

    def plan(self) -> Plan:
        """The plan; it raises what `read` catches."""
        program = self._at(0)
        (plan,) = self._tables(program, _PLANS)
        (chain,) = self._tables(plan, _CHAINS)
        operators, delegates = list(self._tables(plan, _OPERATORS)), list(self._tables(plan, _DELEGATES))
        (base,) = struct.unpack_from("<Q", self._raw, pte.SEGMENT_BASE_AT)
        segments = [
            (self._number(segment, _OFFSET, "Q"), self._number(segment, _SIZE, "Q"))
            for segment in self._tables(program, _SEGMENTS)
        ]
        calls = Counter(self._call(instruction) for instruction in self._tables(chain, _INSTRUCTIONS))
        portable: Counter[str] = Counter()
        inside: Counter[str] = Counter()
        delegate_calls = 0
        backends: set[str] = set()
        for (kind, index), count in calls.items():
            if kind == _KERNEL_CALL:
                name, overload = (self._text(operators[index], field) for field in (_OPERATOR, _OVERLOAD))
                portable[f"{name.replace('::', '.')}.{overload or 'default'}"] += count
            elif kind == _DELEGATE_CALL:
                delegate_calls += count
                backends.add(self._text(delegates[index], _BACKEND))
                if self._text(delegates[index], _BACKEND) == XNNPACK:
                    graph = self._part(delegates[index], _PROCESSED)
                    offset, _ = segments[self._number(graph, _SEGMENT, "I")]
                    for node in self._xnn_nodes(base + offset):
                        inside[node] += count
        sizes = self._sizes(plan)
        if negative := [size for size in sizes if size < 0]:
            raise ValueError(f"it plans a buffer of {negative[0]} bytes")
        return Plan(
            portable=by_frequency(portable),
            delegated=by_frequency(inside),
            delegate_calls=delegate_calls,
            planned_bytes=sum(sizes),
            segment_bytes=sum(size for _, size in segments),
            backends=backends,
            other_instructions={kind for kind, _ in calls} - {_KERNEL_CALL, _DELEGATE_CALL},
        )

    def _call(self, instruction: Any) -> tuple[int, int]:
        """The kind of an instruction, and the number of the operator or delegate that it calls."""
        called = self._number(self._part(instruction, _CALL), _CALLED, "I")
        return self._number(instruction, _CALL_KIND, "B"), called

    def _xnn_nodes(self, start: int) -> Iterator[str]:
        """Names of the operators in an XNNPACK graph, behind a header with the graph's offset."""
        magic, offset = struct.unpack_from("<4x4s2xI", self._raw, start)
        if magic != b"XH00":
            raise ValueError(f"an XNNPACK graph begins with {magic!r} where b'XH00' is expected")
        for node in self._tables(self._at(start + offset), _XNODES):
            kind = self._number(node, _XNODE_KIND, "B")
            yield _XNN_NODES[kind - 1] if 1 <= kind <= len(_XNN_NODES) else f"operator {kind}"

    def _sizes(self, plan: Any) -> tuple[int, ...]:
        """The sizes of the buffers that a plan has."""
        start, count = self._list(plan, _BUFFER_SIZES)
        return struct.unpack_from(f"<{count}q", self._raw, start)

    def _tables(self, table: Any, field: int) -> Iterator[Any]:
        start, count = self._list(table, field)
        for at in range(start, start + 4 * count, 4):
            yield self._at(at)

    def _list(self, table: Any, field: int) -> tuple[int, int]:
        """Where the list in a field begins, and its length; 0 and 0 if there is none."""
        if not (offset := table.Offset(field)):
            return 0, 0
        count = table.VectorLen(offset)
        self._tables_read += count
        if self._tables_read > MAX_TABLES:
            raise ValueError(f"it has {self._tables_read} tables or more; at most {MAX_TABLES} are allowed")
        return table.Vector(offset), count

    def _part(self, table: Any, field: int) -> Any:
        """The table in a field."""
        if not (offset := table.Offset(field)):
            raise ValueError("it calls something and does not say what")
        return self._at(table.Pos + offset)

    def _at(self, place: int) -> Any:
        """The table that is pointed to from a place in the bytes."""
        return self._table(self._raw, place + struct.unpack_from("<I", self._raw, place)[0])

    def _number(self, table: Any, field: int, form: str) -> int:
        offset = table.Offset(field)
        return int(struct.unpack_from(f"<{form}", self._raw, table.Pos + offset)[0]) if offset else 0

    def _text(self, table: Any, field: int) -> str:
        found = b""
        if offset := table.Offset(field):
            start = table.Vector(offset)
            found = self._raw[start : start + min(table.VectorLen(offset), _MAX_TEXT_BYTES)]
        return found.decode("utf-8", "replace")
