"""A client's files are on the disk, not only in the system's memory, before anything relies on them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedlens_edge_client import EdgeClient
from fedlens_edge_client.storage.outbox import Outbox
from fedlens_edge_client.storage.state_folder import StateFolder
from tests.edge_client.fakes import FakeServer, fedavg_plan
from tests.edge_client.linear import make_bundle


def test_transactions_survive_power_loss(tmp_path: Path) -> None:
    state = StateFolder.open(tmp_path / "state", "https://fl.example.org")
    with state.transaction() as db:
        found = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    state.close()

    assert found == ["wal", 2]  # 2 is FULL


async def test_large_tensors_and_their_names_are_synced_before_the_outbox_names_them(
    client_of: Callable[..., EdgeClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2 x 20,000 float32 weights are 160 kB, more than a row takes.
    bundle = make_bundle(tmp_path / "wide", features=20_000)
    tensors = tmp_path / "state" / "tensors"
    happened: list[str] = []
    sync, put = os.fsync, Outbox.put

    def noted_sync(descriptor: int) -> None:
        sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        happened.append("folder" if path == tensors else "file" if path.parent == tensors else "other")

    def noted_put(*arguments: object) -> object:
        happened.append("outbox")
        return put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Outbox, "put", noted_put)
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url) as client:
        await client.run_once()

    assert [step for step in happened if step != "other"] == ["file", "folder", "outbox"]
