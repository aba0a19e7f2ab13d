"""Updates over HTTP: what is accepted, what is refused and why, and that nothing is left behind."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from sqlalchemy import text

from fedlens_proto.blob import encode
from fedlens_proto.v1 import admin_pb2, assignment_pb2, blob_pb2, error_pb2, update_pb2
from fedlens_proto.wire import LENGTH, MAX_UPDATE_HEADER_BYTES, MEDIA_TYPE, frame_update
from tests.server.bundles import tiny_bundle
from tests.server.http.running import Client, Server, round_path, running, trained, until, update

LARGE = 200_000  # features; 2 * 200 000 * 4 bytes reach a temporary file before they are all there


async def member(server: Server, features: int = 3, **settings: Any) -> tuple[Client, assignment_pb2.Assignment]:
    """One of two members of an open round."""
    await server.create(tiny_bundle(features), **settings)
    client = await server.client(1)
    await server.client(2)
    return client, await client.assignment()


async def states(server: Server) -> dict[bytes, tuple[int, str]]:
    shown = await server.show()
    return {entry.client_id: (entry.state, entry.reason) for entry in shown.rounds[0].members}


@pytest.mark.parametrize("features", [3, LARGE])
async def test_an_update_sent_twice_gets_the_same_receipt(server: Server, features: int) -> None:
    client, assignment = await member(server, features)
    body = update(assignment, trained(features))

    first, second = await client.upload(assignment, body), await client.upload(assignment, body)

    assert first.status == second.status == 200
    assert first.body == second.body == update_pb2.Receipt(body_sha256=sha256(body).digest()).SerializeToString()
    assert server.temporary_files() == []


async def test_the_same_bytes_get_their_receipt_when_the_round_is_over_too(server: Server) -> None:
    await server.create(tiny_bundle(), population=1)
    client = await server.client(1)
    assignment = await client.assignment()
    body = update(assignment, trained())
    first = await client.upload(assignment, body)
    await _round_after(client, assignment)

    again = await client.upload(assignment, body)

    assert (again.status, again.body) == (200, first.body)


async def test_other_bytes_are_409_and_the_first_ones_count(server: Server) -> None:
    client, assignment = await member(server)
    await client.upload(assignment, update(assignment, trained()))

    answer = await client.upload(assignment, update(assignment, trained(), num_examples=11))

    assert answer.outcome == (409, "update-differs")
    assert answer.error.retry == error_pb2.RETRY_NEVER
    assert (await states(server))[client.id] == (admin_pb2.MEMBER_STATE_REPORTED, "")


async def test_an_update_after_its_round_is_409(server: Server) -> None:
    await server.create(tiny_bundle(), deadline_s=60)
    early, late = await server.client(1), await server.client(2)
    assignment = await late.assignment()
    assert (await early.upload(assignment, update(assignment, trained()))).status == 200
    server.clock.wind(61)
    await _round_after(early, assignment)

    answer = await late.upload(assignment, update(assignment, trained()))

    assert answer.outcome == (409, "round-closed")
    assert answer.error.retry == error_pb2.RETRY_NEVER


async def test_an_update_for_a_round_or_task_that_is_not_there_is_404(server: Server) -> None:
    client, assignment = await member(server)
    foreign_round = assignment_pb2.Assignment(task=assignment.task, round=assignment.round + 1)
    foreign_task = assignment_pb2.Assignment(task=assignment.task + 1, round=assignment.round)

    answers = [await client.upload(to, update(assignment, trained())) for to in (foreign_round, foreign_task)]

    assert {answer.outcome for answer in answers} == {(404, "unknown")}


async def test_an_update_after_a_failure_is_409(server: Server) -> None:
    client, assignment = await member(server)
    failure = update_pb2.FailureRequest(protocol=1, reason=update_pb2.FAILURE_REASON_NO_PHOTOS).SerializeToString()

    reported = [await client.send("POST", f"{round_path(assignment)}/failure", failure) for _ in range(2)]
    answer = await client.upload(assignment, update(assignment, trained()))

    assert [entry.status for entry in reported] == [200, 200]
    assert answer.outcome == (409, "already-failed")


def _tensors(**changed: Any) -> bytes:
    tensors = {"fc.bias": np.ones(2, np.float32), "fc.weight": np.ones((2, 3), np.float32)} | changed
    return encode({name: value for name, value in tensors.items() if value is not None})


def _with_nan() -> bytes:
    return trained()[:-4] + np.array([np.nan], "<f4").tobytes()


BAD_BLOBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "shape": (lambda: _tensors(**{"fc.weight": np.ones((3, 2), np.float32)}), "tensor fc.weight float32[3, 2] found"),
    "name": (
        lambda: _tensors(**{"fc.weight": None, "fc.height": np.ones((2, 3), np.float32)}),
        "'fc.weight' is missing",
    ),
    "one too many": (lambda: _tensors(extra=np.ones(1, np.float32)), "'extra' was not asked for"),
    "dtype": (lambda: _tensors(**{"fc.bias": np.ones(2, np.int64)}), "tensor fc.bias int64[2] found"),
    "codec": (
        lambda: encode({"fc.bias": np.ones(2), "fc.weight": np.ones((2, 3))}, floats=blob_pb2.DTYPE_FLOAT16),
        "float16",
    ),
    "NaN": (_with_nan, "tensor 'fc.weight' holds a NaN or an infinity"),
    "truncated": (lambda: trained()[:-1], "blob truncated"),
    "bytes behind": (lambda: trained() + b"\0", "bytes behind the end of the blob"),
    "no blob": (lambda: b"x" * 200, "not a blob"),
    "base": (
        lambda: encode({"fc.bias": np.ones(2), "fc.weight": np.ones((2, 3))}, base=bytes(32)),
        "the blob's base is not the expected one",
    ),
}


@pytest.mark.parametrize("kind", BAD_BLOBS)
async def test_a_bad_blob_is_422_and_its_sender_left_out_with_the_reason(server: Server, kind: str) -> None:
    make, reason = BAD_BLOBS[kind]
    client, assignment = await member(server)
    body = update(assignment, make())

    answer, again = await client.upload(assignment, body), await client.upload(assignment, body)

    assert answer.outcome == again.outcome == (422, "update-invalid")
    assert answer.error.retry == error_pb2.RETRY_NEVER
    assert reason in answer.error.message
    state, noted = (await states(server))[client.id]
    assert state == admin_pb2.MEMBER_STATE_QUARANTINED
    assert reason in noted


BAD_HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "size": ({"blob_size": 1}, "the header says that the blob has 1 bytes"),
    "huge size": ({"blob_size": 2**64 - 1}, "the header says that the blob has 18446744073709551615 bytes"),
    "digest": ({"blob_sha256": bytes(32)}, "the blob's SHA-256 is"),
    "short digest": ({"blob_sha256": b"abc"}, "blob_sha256 has 3 bytes, must have 32"),
    "no digest": ({"blob_sha256": b"", "blob_size": 0}, "a blob was asked for"),
    "a thousand million photos": ({"num_examples": 1_000_000_000}, "1000000000"),
    "all photos there are": ({"num_examples": 2**64 - 1}, "18446744073709551615"),
    "bundle": ({"bundle": bytes(32)}, "bundle"),
    "phase": ({"phase": 9}, "phase"),
    "sums": (
        {"evaluations": [update_pb2.EvaluationSums(moment=update_pb2.EVALUATION_MOMENT_START, count=1, correct=2)]},
        "2 of 1 photos right",
    ),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
async def test_a_header_that_does_not_hold_is_422_and_its_sender_left_out(server: Server, kind: str) -> None:
    fields, reason = BAD_HEADERS[kind]
    client, assignment = await member(server)

    answer = await client.upload(assignment, update(assignment, trained(), **fields))

    assert answer.outcome == (422, "update-invalid")
    assert reason in answer.error.message
    assert (await states(server))[client.id][0] == admin_pb2.MEMBER_STATE_QUARANTINED


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01\x00",
        LENGTH.pack(0),
        LENGTH.pack(10) + b"abc",
        LENGTH.pack(MAX_UPDATE_HEADER_BYTES + 1) + bytes(100),
        LENGTH.pack(2**32 - 1) + bytes(100),
        LENGTH.pack(4) + b"\xff\xff\xff\xff",
        frame_update(update_pb2.UpdateHeader(protocol=2)),
    ],
)
async def test_a_header_that_cannot_be_read_is_400_and_nobody_is_left_out(server: Server, body: bytes) -> None:
    client, assignment = await member(server)

    answer = await client.upload(assignment, body)

    assert answer.outcome == (400, "malformed")
    assert (await client.upload(assignment, update(assignment, trained()))).status == 200


async def test_an_update_without_a_length_is_400(server: Server) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield update(assignment, trained())

    client, assignment = await member(server)

    assert (await client.upload(assignment, pieces())).outcome == (400, "malformed")


async def test_more_bytes_than_were_expected_are_413_before_they_are_read(server: Server) -> None:
    client, assignment = await member(server)

    answer = await client.upload(assignment, update(assignment, bytes(MAX_UPDATE_HEADER_BYTES + 1000)))

    assert answer.outcome == (413, "too-large")


async def test_a_large_blob_with_a_fault_in_the_middle_leaves_no_file(server: Server) -> None:
    client, assignment = await member(server, LARGE)
    blob = bytearray(trained(LARGE))
    middle = len(blob) // 2 // 64 * 64
    blob[middle : middle + 4] = np.array([np.inf], "<f4").tobytes()

    answer = await client.upload(assignment, update(assignment, bytes(blob)))

    assert answer.outcome == (422, "update-invalid")
    assert server.temporary_files() == []


async def test_a_client_that_goes_away_leaves_nothing_and_may_come_back(server: Server) -> None:
    client, assignment = await member(server, LARGE)
    body = update(assignment, trained(LARGE))

    async with _begun_upload(client, assignment, body):
        pass
    await until(lambda: not server.temporary_files())

    assert (await states(server))[client.id] == (admin_pb2.MEMBER_STATE_PENDING, "")
    assert (await client.upload(assignment, body)).status == 200


async def test_a_client_that_stalls_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path, upload_stall_s=0.05) as server:
        client, assignment = await member(server, LARGE)
        body = update(assignment, trained(LARGE))

        async with _begun_upload(client, assignment, body):
            await until(lambda: not server.temporary_files())

        assert (await states(server))[client.id] == (admin_pb2.MEMBER_STATE_PENDING, "")


async def test_more_updates_at_a_time_than_the_server_takes_are_429(tmp_path: Path) -> None:
    async with running(tmp_path, max_uploads=1) as server:
        client, assignment = await member(server, LARGE)
        body = update(assignment, trained(LARGE))

        async with _begun_upload(client, assignment, body) as (reader, writer):
            refused = await client.upload(assignment, body)
            writer.write(body[-1000:])
            finished = await reader.readline()

        assert finished == b"HTTP/1.1 200 OK\r\n"
        assert refused.outcome == (429, "slow-down")
        assert refused.error.retry == error_pb2.RETRY_LATER
        assert refused.error.retry_after_ms > 0
        assert (await client.upload(assignment, body)).status == 200


async def test_a_full_disk_is_507_and_the_same_update_succeeds_later(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    client, assignment = await member(server, LARGE)
    body = update(assignment, trained(LARGE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused = await client.upload(assignment, body)
    left = server.temporary_files()
    accepted = await client.upload(assignment, body)

    assert refused.outcome == (507, "storage-full")
    assert refused.error.retry == error_pb2.RETRY_LATER
    assert refused.error.retry_after_ms > 0
    assert left == []
    assert accepted.status == 200


async def test_a_full_database_is_507_and_the_same_update_succeeds_later(server: Server) -> None:
    client, assignment = await member(server, 7_000)  # a blob of 56 kB lies in the database
    body = update(assignment, trained(7_000))

    await _limit_pages(server, 1)  # SQLite takes the least that is possible: what it has now
    refused = await client.upload(assignment, body)
    await _limit_pages(server, 1_000_000)
    accepted = await client.upload(assignment, body)

    assert refused.outcome == (507, "storage-full")
    assert accepted.status == 200


async def test_concurrent_updates_are_all_accepted(server: Server) -> None:
    await server.create(tiny_bundle(LARGE), population=8)
    clients = [await server.client(index) for index in range(8)]
    assignment = await clients[0].assignment()

    answers = await asyncio.gather(
        *(c.upload(assignment, update(assignment, trained(LARGE, value))) for value, c in enumerate(clients))
    )

    assert {answer.status for answer in answers} == {200}
    await _round_after(clients[0], assignment)
    shown = await server.show()
    assert [entry.state for entry in shown.rounds[0].members] == [admin_pb2.MEMBER_STATE_REPORTED] * 8


@asynccontextmanager
async def _begun_upload(
    client: Client, assignment: assignment_pb2.Assignment, body: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """An upload of which the server has got all but the last 1000 bytes; the connection breaks at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(client.server.url).port)
    try:
        head = (
            f"PUT {round_path(assignment)}/update HTTP/1.1\r\nHost: x\r\nAuthorization: {client.bearer}\r\n"
            f"Content-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body[:-1000])
        await until(lambda: bool(client.server.temporary_files()))
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _round_after(client: Client, assignment: assignment_pb2.Assignment) -> None:
    """Return when the round of this assignment is over and the next one has this client."""
    response = await client.check_in(hold_ms=10_000)
    assert response.assignment.round == assignment.round + 1


async def _limit_pages(server: Server, count: int) -> None:
    limit = text(f"PRAGMA max_page_count = {count}")
    await asyncio.wrap_future(server.service.store.submit(lambda transaction: transaction.execute(limit).close()))
