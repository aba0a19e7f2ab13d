import asyncio
from collections import Counter
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.faults import Fault, FaultKind, FaultPlan, FaultPlanError
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport, with_nan
from fedlens_edge_client.errors import BadResponse
from fedlens_proto import blob, wire
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import blob_pb2, check_in_pb2, update_pb2
from tests.edge_client.emulation.transports import RecordingTransport

BLOB = blob.encode({"fc.weight": np.ones((2, 3), np.float32), "steps": np.array([5])})
HEADER = wire.frame_update(
    update_pb2.UpdateHeader(
        protocol=1,
        num_examples=4,
        uploads=[update_pb2.UploadedBlob(name="weights", sha256=sha256(BLOB).digest(), size=len(BLOB))],
    )
)


def plan_of(tmp_path: Path, text: str) -> FaultPlan:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return FaultPlan.load(path)


def faulty(tmp_path: Path, kind: str, inner: Transport, more: str = "") -> FaultyTransport:
    return FaultyTransport(
        inner, plan_of(tmp_path, f'[[fault]]\nclient = 3\nround = 2\nkind = "{kind}"\n{more}'), index=3
    )


def test_a_plan_names_one_client_in_one_round(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[[fault]]\nclient = 3\nround = 2\nkind = "delay"\nseconds = 1.5\n')

    assert plan.of(3, 2) == Fault(FaultKind.DELAY, 1.5)
    assert plan.of(3, 1) is None
    assert plan.of(2, 2) is None


def test_rates_are_met_and_drawn_alike_each_time(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "[rates]\nseed = 4\nvanish = 0.1\ncorrupt = 0.3\ndelay = 0.05\ndelay_seconds = 2.0\n")

    faults = [plan.of(client, r) for client in range(100) for r in range(1, 51)]

    # 5,000 draws: 500 +- 21, 1500 +- 32, 250 +- 15; 5 sigma either side.
    kinds = Counter(fault.kind for fault in faults if fault)
    assert abs(kinds[FaultKind.VANISH] - 500) < 105
    assert abs(kinds[FaultKind.CORRUPT] - 1500) < 160
    assert abs(kinds[FaultKind.DELAY] - 250) < 75
    assert kinds.keys() == {FaultKind.VANISH, FaultKind.CORRUPT, FaultKind.DELAY}
    assert {fault.seconds for fault in faults if fault and fault.kind is FaultKind.DELAY} == {2.0}
    assert faults == [plan.of(client, r) for client in range(100) for r in range(1, 51)]


def test_an_entry_comes_before_the_rates(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[rates]\nvanish = 1.0\n[[fault]]\nclient = 0\nround = 1\nkind = "nan"\n')

    assert plan.of(0, 1) == Fault(FaultKind.NAN)
    assert plan.of(0, 2) == Fault(FaultKind.VANISH)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[fault]]\nclient = 1\nround = 1\nkind = "nan"\n' * 2, "found two faults for client 1 in round 1"),
        ("[rates]\nvanish = 2", r"rates\.vanish: found 2, must be a number from 0 to 1"),
        ("[rates]\nvanish = 0.6\nnan = 0.6", r"rates: found rates that add up to 1\.2"),
        ("[rates]\nvanihs = 0.1", r"rates\.vanihs: unknown key; did you mean vanish\?"),
        ("faults = 3", r"faults: unknown key; did you mean fault\?"),
        ("[fault", r"cannot be read as TOML"),
    ],
)
def test_a_wrong_plan_names_the_key_what_was_found_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FaultPlanError, match=rf"plan\.toml: .*{message}"):
        plan_of(tmp_path, text)


def test_a_plan_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FaultPlanError, match=r"nowhere\.toml"):
        FaultPlan.load(tmp_path / "nowhere.toml")


async def test_without_a_fault_an_update_passes_unchanged(tmp_path: Path) -> None:
    server = RecordingTransport()
    path = tmp_path / "blob"
    path.write_bytes(BLOB)

    await faulty(tmp_path, "nan", server).put_update(1, 1, HEADER, [path])

    assert server.bodies == [HEADER + BLOB]


async def test_a_vanished_client_waits_for_the_end_of_the_round_and_others_get_their_assignment(tmp_path: Path) -> None:
    request = check_in_pb2.CheckInRequest(protocol=1)
    vanished, other = [
        await faulty(tmp_path, kind, RecordingTransport()).check_in(request) for kind in ("vanish", "nan")
    ]

    wait = check_in_pb2.Wait(retry_after_ms=1500, reason=check_in_pb2.WAIT_REASON_NEXT_ROUND)
    assert vanished == check_in_pb2.CheckInResponse(wait=wait)
    assert other.assignment.round == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('round = 0\nkind = "nan"', r"fault\[0\]\.round: found 0, must be an integer from 1"),
        ('client = "a"\nkind = "nan"', r"fault\[0\]\.client: found 'a', must be an integer from 0"),
        ('kind = "no"', r"fault\[0\]\.kind: found 'no', must be one of vanish, delay"),
        ("", r"fault\[0\]\.kind: found nothing, must be one of vanish"),
        ('kind = "delay"', r"fault\[0\]: found kind 'delay' with no seconds"),
        ('kind = "loss"', r"fault\[0\]: found kind 'loss' with no seconds"),
        ('kind = "nan"\nseconds = 2', r"found kind 'nan' with seconds = 2; a delay"),
    ],
)
def test_a_wrong_entry_names_the_key_what_was_found_and_what_is_allowed(
    tmp_path: Path, text: str, message: str
) -> None:
    usual = "".join(f"{key} = 1\n" for key in ("client", "round") if key not in text)
    with pytest.raises(FaultPlanError, match=rf"plan\.toml: .*{message}"):
        plan_of(tmp_path, f"[[fault]]\n{usual}{text}")


async def test_a_nan_blob_keeps_everything_else_in_order(tmp_path: Path) -> None:
    server = RecordingTransport()

    await faulty(tmp_path, "nan", server).put_update(1, 2, HEADER, [BLOB])

    (body,) = server.bodies
    header = update_pb2.UpdateHeader.FromString(body[4 : len(HEADER)])
    sent = body[len(HEADER) :]
    assert header.uploads[0].sha256 == sha256(sent).digest()
    assert (header.num_examples, header.uploads[0].size) == (4, len(BLOB))
    with pytest.raises(BlobError, match=r"'fc\.weight' holds a NaN"):
        blob.Blob.from_bytes(sent)


def test_an_int8_blob_gets_a_nan_as_its_first_scale() -> None:
    raw = blob.encode({"fc.weight": np.ones((2, 3), np.float32)}, floats=blob_pb2.DTYPE_INT8)

    _, (sent,) = with_nan(HEADER, [raw])

    with pytest.raises(BlobError, match="a scale that is a NaN"):
        blob.Blob.from_bytes(sent)


async def test_a_corrupt_blob_is_well_formed_but_has_another_digest(tmp_path: Path) -> None:
    server = RecordingTransport()

    await faulty(tmp_path, "corrupt", server).put_update(1, 2, HEADER, [BLOB])

    sent = server.bodies[0][len(HEADER) :]
    assert server.bodies[0].startswith(HEADER)
    assert blob.Blob.from_bytes(sent).digest != sha256(BLOB).digest()


async def test_a_duplicate_is_sent_twice(tmp_path: Path) -> None:
    server = RecordingTransport()

    receipt = await faulty(tmp_path, "duplicate", server).put_update(1, 2, HEADER, [BLOB])

    assert server.bodies == [HEADER + BLOB] * 2
    assert receipt.body_sha256 == sha256(HEADER + BLOB).digest()


async def test_a_duplicate_with_another_receipt_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadResponse, match="two different receipts"):
        await faulty(tmp_path, "duplicate", RecordingTransport(forgetful=True)).put_update(1, 2, HEADER, [BLOB])


async def test_a_delayed_update_is_not_sent_before_its_time(tmp_path: Path) -> None:
    server = RecordingTransport()
    loop = asyncio.get_running_loop()
    start = loop.time()

    await faulty(tmp_path, "delay", server, "seconds = 0.05\n").put_update(1, 2, HEADER, [BLOB])

    assert loop.time() - start >= 0.05
    assert server.bodies == [HEADER + BLOB]


async def test_an_update_whose_receipt_is_lost_is_sent_again_later(tmp_path: Path) -> None:
    server = RecordingTransport()
    bodies_before: list[int] = []

    async def sleep(seconds: float) -> None:
        assert seconds == 600
        bodies_before.append(len(server.bodies))

    plan = plan_of(tmp_path, "[rates]\nloss = 1.0\ndelay_seconds = 600")
    receipt = await FaultyTransport(server, plan, 3, sleep).put_update(1, 2, HEADER, [BLOB])

    assert (bodies_before, server.bodies) == ([1], [HEADER + BLOB] * 2)
    assert receipt.body_sha256 == sha256(HEADER + BLOB).digest()
