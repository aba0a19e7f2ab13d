"""Blobs on their way out: whole or a range, from memory or from a file, never read on the event loop."""

import asyncio

from aiohttp import hdrs, web

from fedlens_server import answers
from fedlens_server.errors import Unknown, WrongRange
from fedlens_server.store import Location

_HEADERS = {
    hdrs.CONTENT_TYPE: "application/octet-stream",
    hdrs.CACHE_CONTROL: "private, immutable",
    hdrs.ACCEPT_RANGES: "bytes",
}


async def send_blob(request: web.Request, location: Location) -> tuple[web.StreamResponse, int]:
    """The answer that carries a blob, or the range of it that was asked for; and how many bytes that is.

    A range that cannot be read or lies outside is answered with an error that says how long the blob is.

    Raises:
        Unknown: The blob has been deleted since it was located.
    """
    # aiohttp would say so in an answer without a message, and allow everyone to cache it for ever.
    if location.path is not None and not await asyncio.to_thread(location.path.is_file):
        raise Unknown("this blob is not stored any more")
    try:
        first, last = _range(request, location.size)
    except WrongRange as fault:
        refusal = answers.error(fault)
        refusal.headers[hdrs.CONTENT_RANGE] = f"bytes */{location.size}"
        return refusal, 0
    count = last - first
    if location.path is not None:
        return web.FileResponse(location.path, headers=_HEADERS), count
    assert location.raw is not None
    headers = dict(_HEADERS)
    if count < location.size:
        headers[hdrs.CONTENT_RANGE] = f"bytes {first}-{last - 1}/{location.size}"
        return web.Response(status=206, body=location.raw[first:last], headers=headers), count
    return web.Response(body=location.raw, headers=headers), count


def _range(request: web.Request, size: int) -> tuple[int, int]:
    try:
        asked = request.http_range
    except ValueError as error:
        raise WrongRange(f"the Range header {request.headers[hdrs.RANGE]!r} cannot be read") from error
    first, last, _ = asked.indices(size)
    if first >= last:
        raise WrongRange(f"the range {request.headers[hdrs.RANGE]!r} lies outside of a blob of {size} bytes")
    return first, last
