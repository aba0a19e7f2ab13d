"""Each request with an id, its address and its time: in the log, in the metrics, and in the response's header."""

import asyncio
import random
import time

from aiohttp import web
from aiohttp.typedefs import Handler

from fedlens_server.http.service import ADDRESS, BLOB_BYTES, SERVICE
from fedlens_server.http.sockets.addresses import FORWARDED_FOR
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event, Request

REQUEST_ID = "X-Request-ID"
SLOW_S = 5.0
UNKNOWN = "unknown"
GONE = "gone"
"""The code of a request whose connection ended before its answer began or was whole."""
# Their time is that of the connection.
_NEVER_SLOW = ("/update", "/v1/blobs/{sha256}", "/v1/admin/blobs/{sha256}", "/v1/admin/parts/{sha256}")
_generator = random.Random()


@web.middleware
async def observed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give a request its id, count and time it, and log it if it was slow."""
    service = request.app[SERVICE]
    metrics = service.metrics
    route = request.match_info.route.resource
    # The method of an unknown route may be any word.
    where = UNKNOWN if route is None else f"{request.method} {route.canonical}"
    address = service.addresses.of_request(request.remote, request.headers.getall(FORWARDED_FOR, ()))
    request[ADDRESS] = address
    seen = Request(f"{_generator.getrandbits(40):010x}", address, where)
    token = events.REQUEST.set(seen)
    began, sent = time.perf_counter(), 0
    try:
        response = await handler(request)
        if not response.prepared:
            response.headers[REQUEST_ID] = seen.id
        sent = response.content_length or 0
        if response.status in (200, 206):
            sent = request.get(BLOB_BYTES, sent)
        return response
    except (ConnectionError, asyncio.CancelledError):
        seen.code = GONE
        raise
    finally:
        seconds = time.perf_counter() - began
        metrics.served[where].add(seen, seconds, request.content_length or 0, sent)
        if seconds > SLOW_S and not seen.held and not where.endswith(_NEVER_SLOW):
            events.note(Event.SLOW_REQUEST, seconds=seconds)
        events.REQUEST.reset(token)
