"""The process around the server: it ends by itself where only a new start helps."""

from pathlib import Path

import pytest

from fedlens_server import daemon
from fedlens_server.errors import StoreUnusable
from fedlens_server.store import Store, Transaction
from tests.server.http.running import config


async def test_a_server_that_can_write_no_more_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path / "state")
    monkeypatch.setattr(Store, "open", lambda folder: store)

    def fault() -> None:
        raise RuntimeError("the view would no longer be what the database holds")

    def spoil(transaction: Transaction) -> None:
        transaction.after_commit(fault)

    def announce(line: str) -> None:
        store.submit(spoil)

    with pytest.raises(StoreUnusable, match="could not be written"):
        await daemon.serve(config(tmp_path), announce)
