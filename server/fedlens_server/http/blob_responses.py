"""Blobs on their way out: whole or a range, from memory, from a file, or computed off the event loop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from fedlens_server.errors import Unknown, WrongRange
from fedlens_server.http import responses
from fedlens_server.http.service import BLOB_BYTES, SERVICE
from fedlens_server.store import Location, encoding
from fedlens_server.store.blobs import ComputedTensors

_log = logging.getLogger(__name__)
X_ACCEL_REDIRECT = "X-Accel-Redirect"
_HEADERS: dict[str, str] = {
    hdrs.CONTENT_TYPE: "application/octet-stream",
    hdrs.CACHE_CONTROL: "private, immutable",
    hdrs.ACCEPT_RANGES: "bytes",
}


async def send_blob(
    request: web.Request,
    location: Location,
    accel_location: str | None = None,
    count: Callable[[int], None] = lambda byte_count: None,
) -> web.StreamResponse:
    """The response with a blob or the requested range of it.

    A range that cannot be read or lies outside gets an error that states the size of the blob.

    Args:
        request: A GET or HEAD.
        location: Where the blob is.
        accel_location: nginx's internal location for the file's folder, if the bytes of a file are left to nginx.
        count: Receives the number of bytes of a GET before the first is sent, so that no client has them uncounted.

    Raises:
        Unknown: The blob has been deleted since it was located.
    """
    # aiohttp's own response has no message and may be cached for ever.
    if location.path is not None and not await asyncio.to_thread(location.path.is_file):
        raise Unknown("this blob is not stored any more")
    try:
        first, last = _range(request, location.size)
    except WrongRange as fault:
        refusal = responses.refusal(request, fault)
        refusal.headers[hdrs.CONTENT_RANGE] = f"bytes */{location.size}"
        return refusal
    size = last - first
    request[BLOB_BYTES] = size if request.method == hdrs.METH_GET else 0
    if request.method == hdrs.METH_GET:
        count(size)
    if location.path is not None and accel_location is not None:
        # nginx keeps these headers but this one, and cuts the range out itself.
        return web.Response(headers=_HEADERS | {X_ACCEL_REDIRECT: accel_location + location.path.name})
    if location.path is not None:
        return _File(location.path, headers=_HEADERS)
    headers = dict(_HEADERS)
    status = 200
    if size < location.size:
        headers[hdrs.CONTENT_RANGE] = f"bytes {first}-{last - 1}/{location.size}"
        status = 206
    if location.computed is not None:
        response = web.StreamResponse(status=status, headers=headers)
        response.content_length = size
        await _compute(request, response, location.computed, first, last)
        return response
    assert location.raw is not None
    return web.Response(status=status, body=location.raw[first:last], headers=headers)


class _File(web.FileResponse):
    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        assert isinstance(request, web.Request)
        async with _least_rate(request):
            return await super().prepare(request)  # sends the file, too


@asynccontextmanager
async def _least_rate(request: web.Request) -> AsyncIterator[None]:
    """Cut a client off that takes its blob more slowly than an update may come, or nothing of it for too long."""
    limits = request.app[SERVICE].config.limits
    rate = limits.min_upload_rate
    try:
        async with asyncio.timeout(limits.upload_stall_s + request[BLOB_BYTES] / rate if rate else None):
            yield
    except TimeoutError as error:  # also the system's, of a client that takes nothing
        if request.transport is not None:
            request.transport.abort()  # to close it would wait until the client has taken what is on its way
        raise ConnectionResetError("the client takes the blob too slowly") from error


async def _compute(
    request: web.Request, response: web.StreamResponse, tensors: ComputedTensors, first: int, last: int
) -> None:
    """Send a blob that is computed piece by piece, each once the connection has taken the last."""
    if request.method == hdrs.METH_HEAD:
        await response.prepare(request)
        return
    pieces = encoding.pieces(tensors, first, last)
    piece = await asyncio.to_thread(next, pieces, None)  # an error of the first piece still gets a response
    async with _least_rate(request):
        await response.prepare(request)
        while piece is not None:
            await response.write(piece)
            try:
                piece = await asyncio.to_thread(next, pieces, None)
            except Exception as error:
                _log.exception("a blob could not be computed to its end")
                raise ConnectionResetError from error  # bytes are missing, which the client notices
        await response.write_eof()


def _range(request: web.Request, size: int) -> tuple[int, int]:
    try:
        asked = request.http_range
    except ValueError as error:
        raise WrongRange(f"the Range header {request.headers[hdrs.RANGE]!r} cannot be read") from error
    first, last, _ = asked.indices(size)
    if first >= last:
        raise WrongRange(f"the range {request.headers[hdrs.RANGE]!r} lies outside of a blob of {size} bytes")
    return first, last
