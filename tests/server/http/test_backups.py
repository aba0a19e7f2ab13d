"""Backups of a running server, and a server that goes on from one."""

import asyncio
import re
import sqlite3
from concurrent.futures import Future
from pathlib import Path

import pytest

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine.operators import backups as making
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Unavailable
from fedlens_server.store.copies import backups
from tests.server.elsewhere import needs_a_folder
from tests.server.http.observing.test_metrics import scraped
from tests.server.http.running import Answer, Server, running, trained, update
from tests.server.telemetry.logs import logged

# 2 x 20,000 float32, which fit no row of the database.
FEATURES = 20_000


async def back_up(server: Server, keep: int = 0) -> Answer:
    server.clock.wind(1.0)
    body = admin_pb2.BackupRequest(protocol=1, keep=keep).SerializeToString()
    return await server.admin("POST", "/v1/admin/backups", body)


def read(answer: Answer) -> admin_pb2.BackupResponse:
    assert answer.status == 200, answer
    return admin_pb2.BackupResponse.FromString(answer.body)


@needs_a_folder
async def test_a_restored_server_goes_on_and_refuses_what_it_no_longer_knows(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with running(tmp_path / "old", backups=folder) as server:
        client, first = await server.member(FEATURES)
        saved = read(await back_up(server))
        await client.upload(first, update(first, trained(FEATURES)))
        second = await client.assignment()

    about = backups.restore(Path(saved.place), tmp_path / "new" / "data")

    async with running(tmp_path / "new") as server:
        client.server = server
        unknown = await client.upload(second, update(second, trained(FEATURES, 2.0)))
        again = await client.upload(first, update(first, trained(FEATURES)))
        next_one = await client.assignment()
        assert (first.round, second.round, next_one.round) == (1, 2, 2)
        assert unknown.outcome == (404, "unknown")
        assert again.status == 200
        assert about.taken_at == saved.taken_at


async def test_backups_share_blobs_and_the_oldest_leave(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    async with running(tmp_path, backups=folder) as server:
        client, assignment = await server.member(FEATURES)
        first, second = read(await back_up(server)), read(await back_up(server))
        await client.upload(assignment, update(assignment, trained(FEATURES)))
        await client.assignment()
        third = read(await back_up(server, keep=2))
        audit = await server.admin("GET", "/v1/admin/audit")

    assert first.copied == first.blobs > 0
    assert second.copied == 0 < second.blobs
    assert third.copied > 0
    assert third.removed == 1
    left = [*(Path(kept.place).name for kept in (second, third)), "blobs"]
    assert sorted(path.name for path in folder.iterdir()) == left
    for kept in (second, third):
        backups.check(Path(kept.place))
    assert audit.body.count(b"backup") == 3


async def test_backups_are_told_and_the_time_of_the_last_outlives_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.write_text("no folder")
    last = ("fedlens_last_backup_timestamp_seconds",)
    with logged("human") as log:
        async with running(tmp_path, backups=folder) as server:
            await back_up(server)
            before = (await scraped(server))[last]
            await asyncio.to_thread(folder.unlink)
            made = read(await back_up(server))
            after = (await scraped(server))[last]
        async with running(tmp_path, backups=folder) as server:
            again = (await scraped(server))[last]
        async with running(tmp_path) as server:
            assert last not in await scraped(server)

    assert (before, after, again) == (0.0, made.taken_at, made.taken_at)
    told = [re.sub(r"^\S+ | seconds=.*| endpoint=.*", "", line) for line in str(log).splitlines() if "backup" in line]
    refusal = f'reason="no backup was made: {folder}: File exists" by=admin'
    name = Path(made.place).name
    cost = f"blobs={made.blobs} copied={made.copied} copied_bytes={made.copied_bytes} removed=0"
    assert told == [
        f"WARNING backup-failed {refusal}",
        f"INFO refused code=unavailable {refusal}",
        f"INFO operated by=admin action=backup subject={name}",
        f"INFO backup-made backup={name} {cost}",
    ]


async def test_one_backup_is_made_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path, backups=tmp_path / "backups") as server:
        with server.service.federation.backing_up:
            refused = await back_up(server)
        made = await back_up(server)

    assert refused.outcome == (429, "slow-down")
    assert made.status == 200


@needs_a_folder
@pytest.mark.parametrize(
    ("statement", "outcome", "told"),
    [
        ("PRAGMA max_page_count = 1", (507, "storage-full"), "the server's disk is full"),
        ("SELECT * FROM missing", (503, "unavailable"), "no backup was made: no such table: missing"),
    ],
    ids=["full", "other"],
)
async def test_an_error_of_the_snapshot_is_told_and_the_next_try_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, outcome: tuple[int, str], told: str
) -> None:
    connect = sqlite3.connect

    def connected(place: str | Path, *, uri: bool = False) -> sqlite3.Connection:
        connection = connect(place, uri=uri)
        if isinstance(place, Path):
            connection.execute(statement)
        return connection

    folder = tmp_path / "backups"
    async with running(tmp_path, backups=folder) as server:
        with monkeypatch.context() as patched:
            patched.setattr(sqlite3, "connect", connected)
            refused = await back_up(server)
        left = await asyncio.to_thread(lambda: list(folder.iterdir()))
        made = await back_up(server)

    assert (refused.outcome, left, made.status) == (outcome, [], 200)
    assert refused.error.message.startswith(told)


@needs_a_folder
async def test_after_a_backup_whose_end_could_not_be_written_what_was_dropped_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Federation) -> Future[None]:
        failed: Future[None] = Future()
        failed.set_exception(Unavailable("the database cannot be reached"))
        return failed

    async with running(tmp_path, backups=tmp_path / "backups") as server:
        _, assignment = await server.member(FEATURES)
        blobs = server.service.store.blobs
        dropped = assignment.sets[0].sha256
        with monkeypatch.context() as patched:
            patched.setattr(making, "_end", fails)
            first = await back_up(server)
        blobs.forget(dropped)
        assert blobs.files.path(dropped).exists()
        second = await back_up(server)

        assert (first.status, second.status) == (200, 200)
        assert not blobs.files.path(dropped).exists()


@needs_a_folder
async def test_what_was_dropped_is_deleted_without_another_backup_too(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        _, assignment = await server.member(FEATURES)
        federation, blobs = server.service.federation, server.service.store.blobs
        blobs.keep_files()  # as a backup does whose end cannot be written
        blobs.forget(assignment.sets[0].sha256)

        with federation.backing_up:
            await asyncio.to_thread(making.tidy, federation)
            assert blobs.files.path(assignment.sets[0].sha256).exists()
        await asyncio.to_thread(making.tidy, federation)

        assert not blobs.files.path(assignment.sets[0].sha256).exists()


async def test_a_server_without_a_folder_for_backups_says_so(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        refused = await back_up(server)

    assert refused.outcome == (404, "unknown")
    assert "server.backups is not set" in refused.error.message


async def test_a_folder_that_cannot_be_written_is_named_and_the_next_try_is_free(tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.write_text("no folder")
    async with running(tmp_path, backups=folder) as server:
        refused = await back_up(server)
        await asyncio.to_thread(folder.unlink)
        made = await back_up(server)

    assert refused.outcome == (503, "unavailable")
    assert str(folder) in refused.error.message
    assert made.status == 200
