"""Updates over HTTP: what is accepted, what is refused and why, and that nothing is left behind."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from fedlens_proto.blob import encode
from fedlens_proto.v1 import admin_pb2, assignment_pb2, error_pb2, update_pb2
from fedlens_proto.wire import LENGTH, MAX_UPDATE_HEADER_BYTES, frame_update
from fedlens_server.http.sockets.addresses import LOOPBACK, Addresses
from fedlens_server.methods import METHODS
from fedlens_server.sections import Network
from tests.server import profiles
from tests.server.elsewhere import needs_a_folder
from tests.server.http.running import (
    Client,
    Server,
    connected,
    head,
    listed,
    round_path,
    running,
    trained,
    until,
    update,
)

LARGE = 200_000  # features; 2 * 200 000 * 4 bytes reach a temporary file before they are all there


async def states(server: Server) -> dict[bytes, tuple[int, str]]:
    shown = await server.show()
    return {entry.client_id: (entry.state, entry.reason) for entry in shown.rounds[0].members}


@pytest.mark.parametrize("features", [3, LARGE])
async def test_an_update_sent_twice_gets_the_same_receipt_and_other_bytes_are_409(
    server: Server, features: int
) -> None:
    client, assignment = await server.member(features, population=2)
    body = update(assignment, trained(features))

    first, second = await client.upload(assignment, body), await client.upload(assignment, body)
    other = await client.upload(assignment, update(assignment, trained(features), num_examples=11))

    assert first.status == second.status == 200
    assert first.body == second.body == update_pb2.Receipt(body_sha256=sha256(body).digest()).SerializeToString()
    assert (other.outcome, other.error.retry) == ((409, "update-differs"), error_pb2.RETRY_NEVER)
    assert (await states(server))[client.id] == (admin_pb2.MEMBER_STATE_REPORTED, "")
    assert server.temporary_files() == []


async def test_after_its_round_an_update_is_409_and_one_that_had_come_gets_its_receipt_again(server: Server) -> None:
    early, assignment = await server.member(population=2, deadline_s=60)
    late = await server.client(2)
    first = await early.upload(assignment)
    server.clock.wind(61)
    await _round_after(early, assignment)

    again, other = await early.upload(assignment), await late.upload(assignment)

    assert (first.status, again.status, again.body) == (200, 200, first.body)
    assert (other.outcome, other.error.retry) == ((409, "round-closed"), error_pb2.RETRY_NEVER)


async def test_an_update_after_a_failure_is_409(server: Server) -> None:
    client, assignment = await server.member(population=2)
    failure = update_pb2.FailureRequest(protocol=1, reason=update_pb2.FAILURE_REASON_NO_PHOTOS).SerializeToString()

    reported = [await client.send("POST", f"{round_path(assignment)}/failure", failure) for _ in range(2)]
    answer = await client.upload(assignment)

    assert [entry.status for entry in reported] == [200, 200]
    assert answer.outcome == (409, "already-failed")


ONES = {"fc.bias": np.ones(2, np.float32), "fc.weight": np.ones((2, 3), np.float32)}
BAD_BLOBS = {
    "tensor fc.weight float32[3, 2] found": encode(ONES | {"fc.weight": np.ones((3, 2), np.float32)}),
    "tensor 'fc.weight' holds a NaN or an infinity": trained()[:-4] + np.array([np.nan], "<f4").tobytes(),
    "blob truncated": trained()[:-1],
    "bytes behind the end of the blob": trained() + b"\0",
    "not a blob": b"x" * 200,
    "the blob's base is not the expected one": encode(ONES, base=bytes(32)),
}
BAD_HEADERS: dict[str, dict[str, Any]] = {
    "the header lists blobs of 1 bytes": {"uploads": [listed(trained(), size=1)]},
    "the blob's SHA-256 is": {"uploads": [listed(trained(), sha256=bytes(32))]},
    "its SHA-256 has 3 bytes, must have 32": {"uploads": [listed(trained(), sha256=b"abc")]},
    "found a size of 0 bytes": {"uploads": [listed(trained(), size=0)]},
    "uploads: found none, asked for were 'weights'": {"uploads": []},
    "uploads: found 'table', asked for were 'weights'": {"uploads": [listed(trained(), name="table")]},
    "uploads: found 'weights', 'weights', asked for were 'weights'": {"uploads": [listed(trained())] * 2},
    "bundle": {"bundle": bytes(32)},
}


@pytest.mark.parametrize("reason", [*BAD_BLOBS, *BAD_HEADERS])
async def test_a_bad_blob_or_header_is_422_and_its_sender_left_out_with_the_reason(server: Server, reason: str) -> None:
    client, assignment = await server.member(population=2)
    body = update(assignment, BAD_BLOBS.get(reason), **BAD_HEADERS.get(reason, {}))

    answer, again = await client.upload(assignment, body), await client.upload(assignment, body)

    assert answer.outcome == again.outcome == (422, "update-invalid")
    assert answer.error.retry == error_pb2.RETRY_NEVER
    assert reason in answer.error.message
    state, noted = (await states(server))[client.id]
    assert state == admin_pb2.MEMBER_STATE_QUARANTINED
    assert reason in noted


async def test_an_update_whose_length_or_header_cannot_be_read_is_400_and_nobody_is_left_out(server: Server) -> None:
    async def without_length() -> AsyncIterator[bytes]:
        yield update(assignment)

    client, assignment = await server.member(population=2)
    bodies = [
        b"",
        b"\x01\x00",
        LENGTH.pack(0),
        LENGTH.pack(10) + b"abc",
        LENGTH.pack(MAX_UPDATE_HEADER_BYTES + 1) + bytes(100),
        LENGTH.pack(2**32 - 1) + bytes(100),
        LENGTH.pack(4) + b"\xff\xff\xff\xff",
        frame_update(update_pb2.UpdateHeader(protocol=2)),
        without_length(),
    ]

    answers = [await client.upload(assignment, body) for body in bodies]

    assert [answer.outcome for answer in answers] == [(400, "malformed")] * len(bodies)
    assert (await client.upload(assignment)).status == 200


async def test_a_large_blob_with_a_fault_in_the_middle_leaves_no_file(server: Server) -> None:
    client, assignment = await server.member(LARGE)
    blob = bytearray(trained(LARGE))
    middle = len(blob) // 2 // 64 * 64
    blob[middle : middle + 4] = np.array([np.inf], "<f4").tobytes()

    answer = await client.upload(assignment, update(assignment, bytes(blob)))

    assert answer.outcome == (422, "update-invalid")
    assert server.temporary_files() == []


async def test_a_client_that_goes_away_leaves_nothing_and_may_come_back(server: Server) -> None:
    client, assignment = await server.member(LARGE)
    body = update(assignment, trained(LARGE))

    async with _begun_upload(client, assignment, body):
        pass
    await until(lambda: not server.temporary_files())

    assert (await states(server))[client.id] == (admin_pb2.MEMBER_STATE_PENDING, "")
    assert (await client.upload(assignment, body)).status == 200


async def test_a_client_that_stalls_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path, upload_stall_s=0.05) as server:
        client, assignment = await server.member(LARGE)

        async with _begun_upload(client, assignment, update(assignment, trained(LARGE))):
            await until(lambda: not server.temporary_files())

        assert (await states(server))[client.id] == (admin_pb2.MEMBER_STATE_PENDING, "")


async def test_a_client_that_drips_is_given_up(tmp_path: Path) -> None:
    # A pause of 0.2 s is allowed, and from then on at least a megabyte a second.
    async with running(tmp_path, upload_stall_s=0.2, min_upload_rate=1e6) as server:
        client, assignment = await server.member(LARGE)

        async with _begun_upload(client, assignment, update(assignment, trained(LARGE))) as (reader, writer):

            async def drip() -> None:
                while True:
                    writer.write(b"x")
                    await asyncio.sleep(0.02)

            dripping = asyncio.create_task(drip())
            async with asyncio.timeout(10):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            dripping.cancel()
        await until(lambda: not server.temporary_files())

        assert (await states(server))[client.id] == (admin_pb2.MEMBER_STATE_PENDING, "")


async def test_more_updates_at_a_time_than_the_server_takes_are_429(tmp_path: Path) -> None:
    async with running(tmp_path, max_uploads=1) as server:
        client, assignment = await server.member(LARGE, population=2)
        other = await server.client(2)
        body = update(assignment, trained(LARGE))
        others = await other.assignment()

        async with _begun_upload(client, assignment, body) as (reader, writer):
            refused = await other.upload(others, update(others, trained(LARGE)))
            writer.write(body[-1000:])
            finished = await reader.readline()

        assert finished == b"HTTP/1.1 200 OK\r\n"
        assert (refused.outcome, refused.error.retry) == ((429, "slow-down"), error_pb2.RETRY_LATER)
        assert refused.error.retry_after_ms > 0
        assert (await other.upload(others, update(others, trained(LARGE)))).status == 200


@pytest.mark.parametrize(("unlimited", "status"), [((), 429), (LOOPBACK, 200)], ids=["limited", "this machine"])
async def test_one_address_sends_so_many_updates_at_a_time(
    tmp_path: Path, unlimited: tuple[Network, ...], status: int
) -> None:
    async with running(tmp_path, max_uploads_per_address=1) as server:
        server.service.addresses = Addresses(unlimited=unlimited)
        client, assignment = await server.member(LARGE, population=2)
        other = await server.client(2)
        others = await other.assignment()

        async with _begun_upload(client, assignment, update(assignment, trained(LARGE))):
            meanwhile = await other.upload(others, update(others, trained(LARGE)))
        await until(lambda: server.service.uploads == 0)
        later = await other.upload(others, update(others, trained(LARGE)))

    assert (meanwhile.status, later.status) == (status, 200)


async def test_slow_uploads_of_one_member_keep_nobody_else_out(tmp_path: Path) -> None:
    async with running(tmp_path, max_uploads=2) as server:
        client, assignment = await server.member(LARGE, population=2)
        other = await server.client(2)
        others = await other.assignment()

        async with AsyncExitStack() as slow:
            for _ in range(20):
                begun = _begun_upload(client, assignment, update(assignment, trained(LARGE)))
                await slow.enter_async_context(begun)
            answer = await other.upload(others, update(others, trained(LARGE)))

        assert answer.status == 200
        assert server.service.uploads <= 1


async def test_a_client_whose_connection_is_dead_sends_its_update_again(server: Server) -> None:
    client, assignment = await server.member(LARGE)
    body = update(assignment, trained(LARGE))

    async with _begun_upload(client, assignment, body) as (reader, _):
        again = await client.upload(assignment, body)
        with suppress(ConnectionResetError):  # the server may close before it has read all that was sent
            assert await reader.read() == b""

    assert again.status == 200


async def test_a_full_disk_is_507_and_the_same_update_succeeds_later(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    client, assignment = await server.member(LARGE)
    body = update(assignment, trained(LARGE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refused = await client.upload(assignment, body)
    left = server.temporary_files()
    accepted = await client.upload(assignment, body)

    assert (refused.outcome, refused.error.retry) == ((507, "storage-full"), error_pb2.RETRY_LATER)
    assert refused.error.retry_after_ms > 0
    assert (left, accepted.status) == ([], 200)


@needs_a_folder
async def test_a_full_database_is_507_and_the_same_update_succeeds_later(server: Server) -> None:
    async def limit_pages(count: int) -> None:
        limit = text(f"PRAGMA max_page_count = {count}")
        await asyncio.wrap_future(server.service.store.submit(lambda transaction: transaction.execute(limit).close()))

    client, assignment = await server.member(7_000)  # a blob of 56 kB lies in the database
    body = update(assignment, trained(7_000))

    await limit_pages(1)  # SQLite takes the least that is possible: what it has now
    refused = await client.upload(assignment, body)
    await limit_pages(1_000_000)
    accepted = await client.upload(assignment, body)

    assert (refused.outcome, accepted.status) == ((507, "storage-full"), 200)


async def test_concurrent_updates_are_all_accepted(server: Server) -> None:
    first, assignment = await server.member(LARGE, population=8)
    clients = [first, *[await server.client(index) for index in range(2, 9)]]

    answers = await asyncio.gather(
        *(c.upload(assignment, update(assignment, trained(LARGE, value))) for value, c in enumerate(clients))
    )

    assert {answer.status for answer in answers} == {200}
    await _round_after(first, assignment)
    shown = await server.show()
    assert [entry.state for entry in shown.rounds[0].members] == [admin_pb2.MEMBER_STATE_REPORTED] * 8


@pytest.fixture
def knowing_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server knows the method Profiles."""
    monkeypatch.setitem(METHODS, "profiles", profiles.METHOD)


async def profiling(server: Server) -> tuple[Client, assignment_pb2.Assignment]:
    """A member, one of two, of a round that asks for weights and a profile."""
    await server.create(profiles.bundle(LARGE), method="profiles")
    client, _ = [await server.client(index) for index in (1, 2)]
    return client, await client.assignment()


def two_uploads(assignment: assignment_pb2.Assignment, table: bytes | None = None, **fields: Any) -> bytes:
    """Weights and a profile, for `LARGE` features; `fields` are those of the profile in the header."""
    weights, table = trained(LARGE), encode(profiles.profile(1.0, LARGE)) if table is None else table
    uploads = [listed(weights), listed(table, **{"name": "profile", **fields})]
    return update(assignment, weights, uploads=uploads) + table


@pytest.mark.usefixtures("knowing_profiles")
async def test_several_blobs_follow_one_another_in_a_body_and_are_stored_each_by_itself(server: Server) -> None:
    client, assignment = await profiling(server)
    body = two_uploads(assignment)

    first, again = await client.upload(assignment, body), await client.upload(assignment, body)

    assert (first.status, first.body) == (200, again.body)
    stored = server.service.store.blobs.sizes
    for raw in (trained(LARGE), encode(profiles.profile(1.0, LARGE))):
        assert stored[sha256(raw).digest()] == len(raw)
    assert server.temporary_files() == []


PROFILE = encode(profiles.profile(1.0, LARGE))
BAD_TABLES: dict[str, tuple[bytes, dict[str, Any]]] = {
    "upload 'profile': tensor 'sums' holds a NaN or an infinity": (
        PROFILE[:-4] + np.array([np.nan], "<f4").tobytes(),
        {},
    ),
    "upload 'profile': tensor sums float32[2, 3] found": (encode(profiles.profile(1.0)), {}),
    "upload 'profile': blob truncated": (PROFILE[:-1], {}),
    "upload 'profile': the blob's SHA-256 is": (PROFILE, {"sha256": bytes(32)}),
    "upload 'profile': tensor 'counts' is missing": (trained(LARGE), {}),
    "the header lists blobs of": (PROFILE + b"\0", {"size": len(PROFILE)}),
    "asked for were 'weights', 'profile'": (PROFILE, {"name": "losses"}),
}


@pytest.mark.usefixtures("knowing_profiles")
@pytest.mark.parametrize("reason", BAD_TABLES)
async def test_one_bad_blob_of_several_is_422_and_nothing_of_the_update_stays(server: Server, reason: str) -> None:
    client, assignment = await profiling(server)
    before = set(server.service.store.blobs.sizes)
    table, fields = BAD_TABLES[reason]

    answer = await client.upload(assignment, two_uploads(assignment, table, **fields))

    assert answer.outcome == (422, "update-invalid")
    assert reason in answer.error.message
    assert set(server.service.store.blobs.sizes) == before
    assert server.temporary_files() == []


@asynccontextmanager
async def _begun_upload(
    client: Client, assignment: assignment_pb2.Assignment, body: bytes
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """An upload of which the server has got all but the last 1000 bytes; the connection breaks at the end."""
    async with connected(client.server.url) as (reader, writer):
        writer.write(head(client.bearer, f"{round_path(assignment)}/update", len(body)) + body[:-1000])
        await until(lambda: bool(client.server.temporary_files()))
        yield reader, writer


async def _round_after(client: Client, assignment: assignment_pb2.Assignment) -> None:
    """Return when the round of this assignment is over and the next one has this client."""
    response = await client.check_in(hold_ms=10_000)
    assert response.assignment.round == assignment.round + 1
