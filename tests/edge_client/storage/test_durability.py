"""A client's files are on the disk, not only in the system's memory, before anything relies on them."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from fedlens_edge_client.storage.outbox import Outbox
from fedlens_edge_client.storage.state_folder import StateFolder
from tests.edge_client.federation import Federation
from tests.edge_client.linear import make_bundle


def test_transactions_survive_power_loss(tmp_path: Path) -> None:
    with closing(StateFolder.open(tmp_path / "state", "https://fl.example.org")) as state:
        found = [state.select(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous")]

    assert found == ["wal", 2]  # 2 is FULL


async def test_large_tensors_and_their_names_are_synced_before_the_outbox_names_them(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    # 2 x 20,000 float32 weights are 160 kB, more than a row takes.
    await federation.run(bundle=make_bundle(tmp_path / "wide", features=20_000))

    assert [step for step in happened if step != "other"] == ["file", "folder", "outbox"]
