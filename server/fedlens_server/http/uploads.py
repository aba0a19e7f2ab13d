"""Updates and parts on their way in: checked while they stream, and held in a temporary file unless they are small."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import nullcontext
from hashlib import sha256
from io import SEEK_END, BytesIO
from pathlib import Path

from aiohttp import web

from fedlens_proto.blob import Checker
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import update_pb2
from fedlens_proto.wire import LENGTH, MAX_UPDATE_HEADER_BYTES, decode_request
from fedlens_server.engine import tasks, updates
from fedlens_server.engine.updates import Membership, ReceivedUpdate
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Malformed, TooLarge, UpdateInvalid
from fedlens_server.http.bodies import BodyReader, refuse_encoding, require_message
from fedlens_server.http.service import Service
from fedlens_server.store import MAX_ROW_BYTES, IncomingBlob, PendingBlob

BATCH_BYTES = 512 << 10
_Read = Callable[[], Awaitable[bytes]]  # the next bytes of a body; none at its end


async def receive_update(
    request: web.Request, service: Service, client: bytes, task: int, round_number: int
) -> update_pb2.Receipt:
    """Take in the body of `PUT .../update`; the receipt, once it is durable.

    Raises:
        ServerError: As in `updates.expect` and `updates.accept`; also TooLarge before the body is read, Malformed for a
            header that cannot be read, UpdateInvalid for a bad blob (the member is quarantined).
        ConnectionError: The client went away; nothing is left of what it sent.
    """
    require_message(request)
    federation = service.federation
    membership = updates.expect(federation, client, task, round_number)
    size = _announced(request, _max_bytes(membership))
    # An update that fits a row is held in memory, as any message is; only files are few.
    slot = service.upload_slot() if _blob_bytes(membership) > MAX_ROW_BYTES else nullcontext()
    with slot, service.store.incoming() as incoming:
        reader = BodyReader(request, service.config.limits.upload_stall_s)
        framed, header = await _read_header(reader, size)
        body = _Body(incoming, membership, framed)
        await body.receive(reader.some, header, size - len(framed))
        return await service.durable(await _end(federation, membership, size, header, body))


async def take_update(
    federation: Federation, client: bytes, task: int, round_number: int, framed: bytes, blob: bytes | Path | None
) -> update_pb2.Receipt:
    """As `receive_update`, with the same checks, for an update that comes without a request.

    Args:
        federation: The clients and tasks.
        client: The sender.
        task: Of the assignment.
        round_number: Of the assignment.
        framed: The header behind its length.
        blob: The bytes behind it, or their file; None: there are none.

    Raises:
        ServerError: As `receive_update`.
    """
    membership = updates.expect(federation, client, task, round_number)
    opened = blob.open("rb") if isinstance(blob, Path) else BytesIO(blob or b"")
    with federation.store.incoming() as incoming, opened as stream:
        size = len(framed) + stream.seek(0, SEEK_END)
        stream.seek(0)

        async def some() -> bytes:
            return stream.read(BATCH_BYTES)

        if size > (most := _max_bytes(membership)):
            raise TooLarge(f"an update of {size} bytes; at most {most} are expected here")
        header = decode_request(update_pb2.UpdateHeader, framed[LENGTH.size :])
        body = _Body(incoming, membership, framed)
        await body.receive(some, header, size - len(framed))
        return await asyncio.wrap_future(await _end(federation, membership, size, header, body))


async def _end(
    federation: Federation, membership: Membership, size: int, header: update_pb2.UpdateHeader, body: "_Body"
) -> Future[update_pb2.Receipt]:
    """Hand a body to the engine; of one with a fault, have the member quarantined."""
    if body.fault is not None:
        # A client that is cut off while waiting must not undo it.
        quarantining = updates.quarantine(federation, membership, body.fault, body.hash.digest())
        await asyncio.shield(asyncio.wrap_future(quarantining))
        raise UpdateInvalid(body.fault)
    blob = await _finish(body.incoming, header.blob_sha256) if header.blob_sha256 else None
    received = ReceivedUpdate(header=header, body_sha256=body.hash.digest(), body_size=size, blob=blob)
    return updates.accept(federation, membership, received)


def _blob_bytes(membership: Membership) -> int:
    return membership.layout.size if membership.layout is not None else 0


def _max_bytes(membership: Membership) -> int:
    return LENGTH.size + MAX_UPDATE_HEADER_BYTES + _blob_bytes(membership)


async def receive_part(request: web.Request, service: Service, digest: bytes) -> None:
    """Take in the body of `PUT /v1/admin/parts/{sha256}`.

    Raises:
        Malformed: The bytes have another digest.
        TooLarge: There are more than `limits.max_part_bytes`.
        ConnectionError: The operator went away; nothing is left of what was sent.
    """
    refuse_encoding(request)
    federation = service.federation
    size = _announced(request, service.config.limits.max_part_bytes)
    seen = sha256()

    def take(pieces: list[bytes]) -> None:
        for piece in pieces:
            seen.update(piece)
            incoming.write(piece)

    with service.store.incoming() as incoming:
        reader = BodyReader(request, service.config.limits.upload_stall_s)
        async for pieces in _batches(reader.some, size):
            await asyncio.to_thread(take, pieces)
        if seen.digest() != digest:
            raise Malformed(f"the SHA-256 of the bytes is {seen.hexdigest()}, not {digest.hex()} as in the address")
        await service.durable(tasks.put_part(federation, await _finish(incoming, digest)))


class _Body:
    """The body of an update. After the first fault of its blob the rest is still read, for the digest."""

    def __init__(self, incoming: IncomingBlob, membership: Membership, framed: bytes) -> None:
        self.fault: str | None = None
        self.incoming = incoming
        layout = membership.layout
        self._has_blob = layout is not None
        self._checker = Checker(layout.specs if layout is not None else (), membership.base)
        self.hash = sha256(framed)

    async def receive(self, read: _Read, header: update_pb2.UpdateHeader, size: int) -> None:
        self.fault = _contradiction(header, self._has_blob, size)
        async for pieces in _batches(read, size):
            if self.incoming.in_memory and self.incoming.size + sum(map(len, pieces)) <= MAX_ROW_BYTES:
                self._take(pieces)
            else:
                await asyncio.to_thread(self._take, pieces)
        if self.fault is None and header.blob_sha256:
            self.fault = self._end(header.blob_sha256)

    def _take(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.hash.update(piece)
            if self.fault is None:
                try:
                    self._checker.feed(piece)
                except BlobError as error:
                    self.fault = str(error)
                else:
                    self.incoming.write(piece)

    def _end(self, digest: bytes) -> str | None:
        try:
            self._checker.finish()
        except BlobError as error:
            return str(error)
        if self._checker.digest != digest:
            return f"the blob's SHA-256 is {self._checker.digest.hex()}, its header says {digest.hex()}"
        return None


def _announced(request: web.Request, limit: int) -> int:
    size = request.content_length
    if size is None:
        raise Malformed("the request needs a Content-Length")
    if size > limit:
        raise TooLarge(f"{size} bytes were announced; at most {limit} are expected here")
    return size


async def _read_header(reader: BodyReader, size: int) -> tuple[bytes, update_pb2.UpdateHeader]:
    prefix = await reader.exactly(LENGTH.size, "the header's length")
    (length,) = LENGTH.unpack(prefix)
    if length > MAX_UPDATE_HEADER_BYTES:
        raise Malformed(f"an update header of {length} bytes; at most {MAX_UPDATE_HEADER_BYTES} are allowed")
    if LENGTH.size + length > size:
        raise Malformed(f"an update header of {length} bytes in a body of {size}")
    raw = await reader.exactly(length, "the update header")
    return prefix + raw, decode_request(update_pb2.UpdateHeader, raw)


def _contradiction(header: update_pb2.UpdateHeader, has_blob: bool, size: int) -> str | None:
    if not header.blob_sha256:
        if has_blob:
            return "a blob was asked for, and the header names none"
        return f"{size} bytes behind a header that names no blob" if size else None
    if not has_blob:
        return "a blob was sent where none was asked for"
    if len(header.blob_sha256) != sha256().digest_size:
        return f"blob_sha256 has {len(header.blob_sha256)} bytes, must have 32"
    if header.blob_size != size:
        return f"the header says that the blob has {header.blob_size} bytes, {size} were sent"
    return None


async def _batches(read: _Read, size: int) -> AsyncIterator[list[bytes]]:
    """A body of `size` bytes, some pieces at a time: about `BATCH_BYTES`, for which a thread is worth its cost."""
    while size:
        pieces: list[bytes] = []
        wanted = min(size, BATCH_BYTES)
        while wanted > 0 and (piece := await read()):
            pieces.append(piece)
            wanted -= len(piece)
        if not pieces:
            raise Malformed(f"the body ends {size} bytes before its announced length")
        size -= sum(map(len, pieces))
        yield pieces


async def _finish(incoming: IncomingBlob, digest: bytes) -> PendingBlob:
    if incoming.in_memory:
        return incoming.finish(digest)
    return await asyncio.to_thread(incoming.finish, digest)
