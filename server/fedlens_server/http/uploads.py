"""Updates and parts on their way in: checked while they stream, and held in a temporary file unless they are small."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from hashlib import sha256
from io import SEEK_END, BytesIO
from pathlib import Path

from aiohttp import web

from fedlens_proto.blob import Checker
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import update_pb2
from fedlens_proto.wire import LENGTH, MAX_UPDATE_HEADER_BYTES, decode_request
from fedlens_server.engine import updates, vetting
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.updates import Membership, ReceivedUpdate
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Malformed, RoundClosed, TooLarge, UpdateInvalid
from fedlens_server.http.bodies import BodyReader, refuse_encoding, require_message
from fedlens_server.http.service import Service
from fedlens_server.store import MAX_ROW_BYTES, IncomingBlob, PendingBlob, Store

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
    async with _noting_late(federation, client, task, round_number):
        expected = partial(updates.expect, federation, client, task, round_number)
        # It asks the database about a round that has ended; where that is elsewhere, the event loop must not wait.
        membership = expected() if service.store.address.is_here else await asyncio.to_thread(expected)
        size = _announced(request, _max_bytes(membership))
        # An update that fits a row is held in memory, as any message is; only files are few.
        is_large = _blob_bytes(membership) > MAX_ROW_BYTES
        with service.upload(client, request, is_large=is_large), ExitStack() as open_blobs:
            reader = BodyReader(request, service.config.limits)
            framed, header = await _read_header(reader, size)
            body = _Body(service.store, open_blobs, membership, framed, header)
            await body.receive(reader.some, size - len(framed))
            return await service.durable(await _end(federation, membership, size, body))


async def take_update(
    federation: Federation, client: bytes, task: int, round_number: int, framed: bytes, blobs: Sequence[bytes | Path]
) -> update_pb2.Receipt:
    """As `receive_update`, with the same checks, for an update that comes without a request.

    Args:
        federation: The clients and tasks.
        client: The sender.
        task: Of the assignment.
        round_number: Of the assignment.
        framed: The header behind its length.
        blobs: What follows the header, as bytes or as files.

    Raises:
        ServerError: As `receive_update`.
    """
    async with _noting_late(federation, client, task, round_number):
        membership = updates.expect(federation, client, task, round_number)
        with ExitStack() as open_blobs:
            streams = [open_blobs.enter_context(b.open("rb") if isinstance(b, Path) else BytesIO(b)) for b in blobs]
            size = len(framed) + sum(stream.seek(0, SEEK_END) for stream in streams)
            for stream in streams:
                stream.seek(0)
            pieces = (piece for stream in streams for piece in iter(partial(stream.read, BATCH_BYTES), b""))

            async def some() -> bytes:
                return next(pieces, b"")

            if size > (most := _max_bytes(membership)):
                raise TooLarge(f"an update of {size} bytes; at most {most} are expected here")
            header = decode_request(update_pb2.UpdateHeader, framed[LENGTH.size :])
            body = _Body(federation.store, open_blobs, membership, framed, header)
            await body.receive(some, size - len(framed))
            return await asyncio.wrap_future(await _end(federation, membership, size, body))


@asynccontextmanager
async def _noting_late(federation: Federation, client: bytes, task: int, round_number: int) -> AsyncIterator[None]:
    """Note an update that comes, or whose last byte does, when its round is closed."""
    try:
        yield
    except RoundClosed:
        await asyncio.wrap_future(updates.note_late(federation, client, task, round_number))
        raise


async def _end(federation: Federation, membership: Membership, size: int, body: "_Body") -> Future[update_pb2.Receipt]:
    """Hand a body to the engine; of one with a fault, have the member quarantined."""
    if body.fault is not None:
        # A client that is cut off while waiting must not undo it.
        quarantining = updates.quarantine(federation, membership, body.fault, body.hash.digest())
        await asyncio.shield(asyncio.wrap_future(quarantining))
        raise UpdateInvalid(body.fault)
    blobs = tuple([await _finish(federation, blob.incoming, blob.checker.digest) for blob in body.blobs])
    received = ReceivedUpdate(header=body.header, body_sha256=body.hash.digest(), body_size=size, blobs=blobs)
    return updates.accept(federation, membership, received)


def _blob_bytes(membership: Membership) -> int:
    return sum(layout.size for layout in membership.layouts)


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
        reader = BodyReader(request, service.config.limits)
        async for pieces in _batches(reader.some, size):
            await asyncio.to_thread(take, pieces)
        if seen.digest() != digest:
            raise Malformed(f"the SHA-256 of the bytes is {seen.hexdigest()}, not {digest.hex()} as in the address")
        await service.durable(tasks.put_part(federation, await _finish(federation, incoming, digest)))


class _Blob:
    """A blob of an update; it ends where the update's header says so."""

    def __init__(self, listed: update_pb2.UploadedBlob, incoming: IncomingBlob, checker: Checker) -> None:
        self.listed = listed
        self.incoming = incoming
        self.checker = checker

    @property
    def missing(self) -> int:
        return self.listed.size - self.incoming.size

    def take(self, piece: memoryview) -> None:
        """Check and store the next bytes.

        Raises:
            BlobError: They are not those of the expected blob.
        """
        self.checker.feed(piece)
        self.incoming.write(piece)
        if not self.missing:
            self.checker.finish()
            if self.checker.digest != self.listed.sha256:
                found, said = self.checker.digest.hex(), self.listed.sha256.hex()
                raise BlobError(f"the blob's SHA-256 is {found}, its header says {said}")


class _Body:
    """The body of an update. After the first fault of its blobs the rest is still read, for the digest."""

    def __init__(
        self,
        store: Store,
        open_blobs: ExitStack,
        membership: Membership,
        framed: bytes,
        header: update_pb2.UpdateHeader,
    ) -> None:
        self.header = header
        self.hash = sha256(framed)
        self.fault = vetting.uploads_fault(header, membership.local_plan)
        self.blobs = [
            _Blob(listed, open_blobs.enter_context(store.incoming()), Checker(layout.specs, base))
            for listed, layout, base in zip(header.uploads, membership.layouts, membership.bases, strict=False)
        ]

    async def receive(self, read: _Read, size: int) -> None:
        self.fault = self.fault or _contradiction(self.header, size)
        received = 0
        async for pieces in _batches(read, size):
            received += sum(map(len, pieces))
            if received <= MAX_ROW_BYTES:
                self._take(pieces)
            else:
                await asyncio.to_thread(self._take, pieces)

    def _take(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            self.hash.update(piece)
            left = memoryview(piece)
            while left and self.fault is None:
                blob = next(blob for blob in self.blobs if blob.missing)
                taken, left = left[: blob.missing], left[blob.missing :]
                try:
                    blob.take(taken)
                except BlobError as error:
                    self.fault = f"upload {blob.listed.name!r}: {error}"


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


def _contradiction(header: update_pb2.UpdateHeader, size: int) -> str | None:
    for upload in header.uploads:
        if len(upload.sha256) != sha256().digest_size:
            return f"upload {upload.name!r}: its SHA-256 has {len(upload.sha256)} bytes, must have 32"
        if not upload.size:
            return f"upload {upload.name!r}: found a size of 0 bytes, must be that of a blob"
    listed = sum(upload.size for upload in header.uploads)
    return None if listed == size else f"the header lists blobs of {listed} bytes, {size} were sent"


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


async def _finish(federation: Federation, incoming: IncomingBlob, digest: bytes) -> PendingBlob:
    if incoming.in_memory:
        return incoming.finish(digest)
    # A bucket that takes it slowly must not keep other requests from their threads.
    return await asyncio.get_running_loop().run_in_executor(federation.storing, incoming.finish, digest)
