"""Clients that send bytes prepared beforehand, each over a connection of its own.

Thousands of them cost less than the server that answers them.
"""

import asyncio
import base64
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

from sqlalchemy import insert

from bench.trivial_client import ABLE
from fedlens_proto import keyed_hash, wire
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2
from fedlens_server.store import Store, Transaction, schema

_AT_A_TIME = 50_000


def secret(index: int) -> bytes:
    """The secret of client `index`."""
    return keyed_hash.fleet_secret(b"bench", 0, index)


def enrol(store: Store, clients: Iterable[bytes], *, last_seen: float | None = None) -> None:
    """Write rows of enrolled trainers, by their ids, into the state of a server that is not running."""
    row = {
        "role": enrolment_pb2.CLIENT_ROLE_TRAINER,
        "token": "bench",
        "capabilities": ABLE.SerializeToString(deterministic=True),
        "enrolled_at": time.time(),
        "last_seen": last_seen,
    }
    rows = [row | {"id": client} for client in clients]
    for start in range(0, len(rows), _AT_A_TIME):
        some = rows[start : start + _AT_A_TIME]
        store.submit(partial(_insert, some)).result()


def _insert(rows: list[dict[str, Any]], transaction: Transaction) -> None:
    transaction.execute(insert(schema.clients), rows)


def request(method: str, path: str, index: int, body: bytes = b"") -> bytes:
    """A whole request of client `index`."""
    bearer = base64.urlsafe_b64encode(secret(index)).decode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {bearer}\r\n"
        f"Content-Type: {wire.MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def check_in(index: int, hold_ms: int = 0) -> bytes:
    """A check-in of client `index`."""
    message = check_in_pb2.CheckInRequest(protocol=wire.PROTOCOL, num_examples=1, hold_ms=hold_ms)
    return request("POST", "/v1/check-in", index, message.SerializeToString())


class Connection(asyncio.Protocol):
    """A connection on which one request after the other is sent, each once the one before has its answer."""

    def __init__(self) -> None:
        """Not connected yet."""
        self._transport: asyncio.Transport
        self._received = b""
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def to(cls, url: str) -> "Connection":
        """A connection to a server."""
        address = urlsplit(url)
        _, made = await asyncio.get_running_loop().create_connection(cls, str(address.hostname), address.port or 80)
        return made

    def send(self, prepared: bytes) -> asyncio.Future[bytes]:
        """Send a request; the future is the body of its answer, or fails if that has another status than 200."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(prepared)
        return self._answer

    def close(self) -> None:
        """Close the connection; nobody waits for an answer any more."""
        if self._answer is not None:
            self._answer.cancel()
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer once head and body are here."""
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]):
            return
        self._received = b""
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if head.startswith(b"HTTP/1.1 200"):
            answer.set_result(body)
        else:
            answer.set_exception(RuntimeError(f"the server answered {head[:80]!r} {body[:200]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that is under way."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server closed the connection"))


async def send_all(url: str, prepared: Sequence[bytes], connections: int) -> tuple[float, list[bytes]]:
    """Send requests over so many connections at a time; returns the seconds that they took, and their answers."""
    rest, answers = iter(enumerate(prepared)), [b""] * len(prepared)

    async def send_some(connection: Connection) -> None:
        for i, each in rest:
            answers[i] = await connection.send(each)

    open_ones = [await Connection.to(url) for _ in range(connections)]
    started = time.perf_counter()
    await asyncio.gather(*(send_some(each) for each in open_ones))
    lasted = time.perf_counter() - started
    for each in open_ones:
        each.close()
    return lasted, answers
