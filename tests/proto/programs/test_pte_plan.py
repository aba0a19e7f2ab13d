import struct
from collections.abc import Sequence
from importlib import import_module

import pytest
import torch
from torch import Tensor

from fedlens_export.programs import lowering, pte_program
from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pte_plan
from fedlens_proto.programs.pte_plan import MAX_TABLES, Plan


def _function(weight: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return torch.relu(torch.bmm(x, weight)), (x > 0).to(torch.float32).sum(-1)


@pytest.fixture(scope="module")
def lowered() -> tuple[bytes, pte_program.Delegation]:
    program = lowering.trace("small", _function, [torch.zeros(1, 4, 3), torch.zeros(1, 2, 4)])
    return pte_program.lower("small", program)


@pytest.fixture(scope="module")
def raw(lowered: tuple[bytes, pte_program.Delegation]) -> bytes:
    return lowered[0]


def test_a_plan_tells_what_runs_where(raw: bytes) -> None:
    plan = pte_plan.read(raw)

    # The product and the rectifier (a clamp at 0); what is left compares, converts and sums.
    assert plan.delegated == {"BatchMatrixMultiply": 1, "Clamp": 1}
    assert {"aten.gt.Scalar_out", "aten.sum.IntList_out"} <= plan.portable.keys()
    assert plan.delegated_share == 2 / (2 + sum(plan.portable.values()))


def test_the_compiler_counts_the_same(lowered: tuple[bytes, pte_program.Delegation]) -> None:
    raw, delegation = lowered

    plan = pte_plan.read(raw)

    assert sum(plan.delegated.values()) == delegation.delegated
    assert sum(plan.portable.values()) == sum(delegation.portable.values())


def test_executorchs_own_reader_finds_the_same_plan(raw: bytes) -> None:
    program = import_module("executorch.exir._serialize._program").deserialize_pte_binary(raw).program
    (theirs,) = program.execution_plan

    plan = pte_plan.read(raw)

    assert plan.planned_bytes == sum(theirs.non_const_buffer_sizes)
    assert set(plan.portable) == {f"{op.name.replace('::', '.')}.{op.overload}" for op in theirs.operators}
    assert sum(plan.portable.values()) + plan.delegate_calls == len(theirs.chains[0].instructions)


def test_memory_has_room_for_all_inputs_and_outputs(raw: bytes) -> None:
    plan = pte_plan.read(raw)

    # float32: 4 x 3 and 2 x 4 in, 2 x 3 and 2 out; the comparison's result is between.
    assert 4 * (12 + 8) <= plan.planned_bytes <= 1024
    assert 0 < plan.segment_bytes < len(raw)


def _file(root: int, body: bytes) -> bytes:
    """A file without segments, whose root table stands at `root`, at 32 or behind."""
    length = 32 + len(body)
    return struct.pack("<I4s4sIQQ", root, b"ET12", b"eh00", 24, length, 0) + body


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "begins with nothing"),
        (b"PK\3\4" + bytes(60), "begins with"),
        (_file(32, b"\xff\xff\xff\x7f" + bytes(60)), r"damaged, or no \.pte with one method \(bad number"),
        (_file(32, bytes(64)), r"damaged, or no \.pte with one method \(not enough values"),
    ],
)
def test_what_is_no_program_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ProgramRefused, match=reason):
        pte_plan.read(content)


def test_a_list_longer_than_any_of_a_program_is_refused() -> None:
    # Behind a vtable of 8 bytes a table at 40; its second field, at 44, says that the list of plans begins 4 bytes on.
    vtable = struct.pack("<HHHH", 8, 8, 0, 4)
    table = struct.pack("<iI", 8, 4)
    names = struct.pack("<I", MAX_TABLES + 1) + bytes(4 * (MAX_TABLES + 1))

    with pytest.raises(ProgramRefused, match=f"it has {MAX_TABLES + 1} tables or more; at most"):
        pte_plan.read(_file(40, vtable + table + names))


def _with(raw: bytes, path: Sequence[int], value: int) -> bytes:
    """The program with this number, of 8 bytes, in the field that a path of fields leads to, of each list the last."""
    reader = pte_plan._Reader(raw)
    table = reader._at(0)
    *lists, field = path
    for each in lists:
        *_, table = reader._tables(table, each)
    offset = table.Offset(field)
    is_list = field == pte_plan._BUFFER_SIZES
    changed = bytearray(raw)
    struct.pack_into("<Q", changed, table.Vector(offset) if is_list else table.Pos + offset, value % 2**64)
    return bytes(changed)


def test_a_buffer_of_negative_size_does_not_make_room_for_another(raw: bytes) -> None:
    hostile = _with(raw, (pte_plan._PLANS, pte_plan._BUFFER_SIZES), -(1 << 40))

    with pytest.raises(ProgramRefused, match="it plans a buffer of -1099511627776 bytes"):
        pte_plan.read(hostile)


def test_a_segment_beyond_every_file_is_refused() -> None:
    tensors = [torch.zeros(1, 4, 3), torch.zeros(1, 2, 4)]
    # Constants come first, then XNNPACK's graph, so that its offset is in the file.
    program = lowering.trace("shifted", lambda weight, x: (torch.bmm(x, weight) + 0.5,), tensors)
    hostile = _with(pte_program.lower("shifted", program)[0], (pte_plan._SEGMENTS, pte_plan._OFFSET), 1 << 63)

    with pytest.raises(ProgramRefused, match="it is damaged"):
        pte_plan.read(hostile)


def test_a_file_that_is_cut_short_is_refused_wherever_it_ends(raw: bytes) -> None:
    # At the very end stands padding that nothing points to.
    refused = [length for length in range(len(raw)) if _read(raw[:length]) is None]

    assert len(refused) > 0.9 * len(raw)
    assert refused == list(range(len(refused)))


def test_whatever_byte_is_damaged_reading_ends(raw: bytes) -> None:
    variants = [raw[:at] + bytes([raw[at] ^ change]) + raw[at + 1 :] for at in range(len(raw)) for change in (1, 255)]

    results = [_read(variant) for variant in variants]

    assert None in results
    assert any(results)


def _read(content: bytes) -> Plan | None:
    """The plan, or None where it is refused; any other exception is a failure."""
    try:
        return pte_plan.read(content)
    except ProgramRefused:
        return None
