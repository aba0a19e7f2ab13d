"""What servers and clients have on their disks of the same updates, held against each other."""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_proto.v1 import admin_pb2, update_pb2


class Receipt(NamedTuple):
    """An update that a server has acknowledged, or is to acknowledge."""

    client: bytes
    task: int
    round: int
    body_sha256: bytes


class NotingTransport(TransportWrapper):
    """Notes the receipts of a client."""

    def __init__(self, inner: Transport, client: bytes, receipts: list[Receipt]) -> None:
        super().__init__(inner)
        self._client = client
        self._receipts = receipts

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        receipt = await super().put_update(task, round_number, header, blobs)
        self._receipts.append(Receipt(self._client, task, round_number, receipt.body_sha256))
        return receipt


def check(data: Path, clients: Mapping[bytes, Path], noted: Iterable[Receipt], keeping: int) -> None:
    """Check that no acknowledged update is lost, and that clients adopted their new state with their receipts alone.

    Args:
        data: Folder of the server, which has ended.
        clients: State folders of clients, which have ended, by id.
        noted: All receipts that the clients were given.
        keeping: Id of a task whose clients keep a state.
    """
    receipts = set(noted)
    state = admin_pb2.MEMBER_STATE_REPORTED
    query = f"SELECT client, task, round, body_sha256 FROM members WHERE state = {state}"
    stored = {Receipt(*row) for row in _select(data / "server.sqlite3", query)}
    unsettled = {
        Receipt(client, *row)
        for client, folder in clients.items()
        for row in _select(folder / "client.sqlite3", "SELECT task, round, body_sha256 FROM outbox")
    }

    assert receipts <= stored
    # Of the others the receipt did not arrive; they are sent again.
    assert stored - receipts <= unsettled
    query = f"SELECT MAX(round) FROM client_state WHERE task = {keeping} AND is_current HAVING MAX(round)"
    states = {client: row[0] for client, folder in clients.items() for row in _select(folder / "client.sqlite3", query)}
    settled = sorted((each for each in receipts - unsettled if each.task == keeping), key=lambda each: each.round)
    assert states == {each.client: each.round for each in settled}


def times_reported(data: Path) -> set[int]:
    """In how many rounds clients have reported, and the number that the server counted; `data` as in `check`."""
    state = admin_pb2.MEMBER_STATE_REPORTED
    rows = _select(data / "server.sqlite3", f"SELECT COUNT(*) FROM members WHERE state = {state} GROUP BY task, client")
    counted = _select(data / "server.sqlite3", "SELECT times FROM participants")
    return {times for (times,) in (*rows, *counted)}


def _select(database: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as opened:
        return opened.execute(query).fetchall()
