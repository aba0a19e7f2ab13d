"""Numbers and files are other threads' work: the event loop only carries messages."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedlens_proto.blob import Checker
from fedlens_server.methods import fedavg
from fedlens_server.store import IncomingBlob, Store
from tests.server.bundles import tiny_bundle
from tests.server.http.running import running, trained, update

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
