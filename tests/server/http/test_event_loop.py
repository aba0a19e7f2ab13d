"""Numbers and files are other threads' work: the event loop only carries messages."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedlens_proto.blob import Checker
from fedlens_server.engine import updates, vetting
from fedlens_server.methods import fedavg
from fedlens_server.store import IncomingBlob, PendingBlob, StateAddress, Store
from tests.server.bundles import tiny_bundle
from tests.server.http.running import running, trained, until, update

FEATURES = 200_000  # blobs of 1.6 MB, which are files


class Witness:
    """Notes which functions ran, and which of them on the event loop's thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.ran: set[str] = set()
        self.on_the_loop: set[str] = set()

    def watch(self, owner: type | ModuleType, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.ran.add(f"{owner.__name__}.{name}")
            if threading.current_thread() is threading.main_thread():
                self.on_the_loop.add(f"{owner.__name__}.{name}")
            return original(*arguments, **named)

        self._patch.setattr(owner, name, watched)


async def test_checking_storing_and_averaging_leave_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as server:
        client, assignment = await server.member(FEATURES, rounds=1, max_update_norm=1e9)
        witness = Witness(monkeypatch)
        watched = [(Checker, "feed"), (IncomingBlob, "write"), (IncomingBlob, "finish"), (fedavg, "average_set")]
        for owner, name in (*watched, (Store, "write_tensors")):
            witness.watch(owner, name)
        body = update(assignment, trained(FEATURES))

        assert (await client.upload(assignment, body)).status == 200
        assert (await client.check_in(hold_ms=10_000)).WhichOneof("result") == "finished"

    assert {f"{owner.__name__}.{name}" for owner, name in watched} <= witness.ran
    assert witness.on_the_loop == set()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_norms_and_ended_rounds_are_looked_up_off_the_event_loop_where_the_state_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    async with running(tmp_path) as server:
        client, assignment = await server.member(rounds=1, max_update_norm=1e9)
        monkeypatch.setattr(StateAddress, "is_here", not elsewhere)
        witness = Witness(monkeypatch)
        witness.watch(vetting, "upload_norms")
        assert (await client.upload(assignment)).status == 200
        assert (await client.check_in(hold_ms=10_000)).WhichOneof("result") == "finished"
        witness.watch(updates, "_ended_membership")
        assert (await client.upload(assignment)).status == 200

    looked_up = {"fedlens_server.engine.vetting.upload_norms", "fedlens_server.engine.updates._ended_membership"}
    assert witness.ran == looked_up
    assert witness.on_the_loop == (set() if elsewhere else looked_up)


async def test_objects_that_a_bucket_takes_slowly_keep_nobody_else_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, finish = threading.Event(), threading.Event(), IncomingBlob.finish

    def slowly(blob: IncomingBlob, digest: bytes | None = None) -> PendingBlob:
        begun.set()
        may_end.wait()
        return finish(blob, digest)

    async with running(tmp_path) as server:
        client, assignment = await server.member(FEATURES)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        monkeypatch.setattr(IncomingBlob, "finish", slowly)
        try:
            uploading = asyncio.create_task(client.upload(assignment, update(assignment, trained(FEATURES))))
            await until(begun.is_set)
            async with asyncio.timeout(20):
                assert await asyncio.to_thread(lambda: "a thread") == "a thread"
        finally:
            may_end.set()
        assert (await uploading).status == 200


async def test_what_operators_ask_is_read_off_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tiny_bundle()
    async with running(tmp_path) as server:
        await server.member()
    async with running(tmp_path) as server:  # nothing is in memory yet
        witness = Witness(monkeypatch)
        witness.watch(Store, "read")
        paths = [f"/v1/admin/blobs/{digest.hex()}" for digest in bundle.by_digest]
        asked = ["/v1/admin/tasks", "/v1/admin/tasks/demo", "/v1/admin/tasks/demo/model", *paths]

        answers = [await server.admin("GET", path) for path in asked]

    assert {answer.status for answer in answers} == {200}
    assert witness.ran == {"Store.read"}
    assert witness.on_the_loop == set()
