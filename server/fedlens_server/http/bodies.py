"""Small bodies: one table of their sizes, and the only place where they are read."""

import asyncio

from aiohttp import hdrs, web

from fedlens_proto.manifest import MAX_MANIFEST_BYTES
from fedlens_proto.programs.statements import MAX_STATEMENT_BYTES
from fedlens_proto.wire import LENGTH, MAX_UPDATE_HEADER_BYTES, MEDIA_TYPE
from fedlens_server.engine.operators.tasks import MAX_BUNDLES
from fedlens_server.errors import Malformed, TooLarge, WrongMediaType
from fedlens_server.sections import LimitsSection

MAX_BODY_BYTES = {
    "enrol": 4 << 10,
    "forget": 1 << 10,
    "check-in": 1 << 10,
    "failure": 16 << 10,
    "evaluation": LENGTH.size + MAX_UPDATE_HEADER_BYTES,
    "round": 1 << 10,
    "change-task": 128 << 10,
    "renew-task": MAX_BUNDLES * MAX_STATEMENT_BYTES + (1 << 10),
    "create-task": 8 * MAX_MANIFEST_BYTES,
    "create-token": 1 << 10,
    "ban": 4 << 10,
    "backup": 1 << 10,
}
"""By endpoint. An update may have what its assignment asks for, a part what `limits.max_part_bytes` says."""


async def read_body(request: web.Request, endpoint: str, limits: LimitsSection) -> bytes:
    """The body of a request that carries one message.

    Raises:
        WrongMediaType: It is declared to be something else, or compressed.
        TooLarge: It has more bytes than the table allows.
        ConnectionError: The client went away, or is too slow.
    """
    require_message(request)
    return await read_at_most(request, MAX_BODY_BYTES[endpoint], limits)


async def read_at_most(request: web.Request, limit: int, limits: LimitsSection) -> bytes:
    """The body of a request, of whatever kind.

    Raises:
        TooLarge: It has more than `limit` bytes.
        ConnectionError: The client went away, or is too slow.
    """
    declared = request.content_length
    if declared is not None and declared > limit:
        raise TooLarge(f"{declared} bytes were announced; {request.method} {request.path} takes at most {limit}")
    reader = BodyReader(request, limits)
    body = b""
    while piece := await reader.some():
        body += piece
        if len(body) > limit:
            raise TooLarge(f"more than {limit} bytes were sent; {request.method} {request.path} takes at most {limit}")
    return body


def require_message(request: web.Request) -> None:
    """Refuse a body that is not declared to be an uncompressed message of this protocol.

    Raises:
        WrongMediaType: Content-Type is something else, or there is a Content-Encoding.
    """
    refuse_encoding(request)
    found = request.headers.get(hdrs.CONTENT_TYPE, "").strip().lower()
    if found != MEDIA_TYPE:
        raise WrongMediaType(f"Content-Type is {found or 'not set'!r}; it must be {MEDIA_TYPE}")


def refuse_encoding(request: web.Request) -> None:
    """Refuse a compressed body: its size says nothing about the size of its content.

    Raises:
        WrongMediaType: There is a Content-Encoding.
    """
    encoding = request.headers.get(hdrs.CONTENT_ENCODING)
    if encoding is not None:
        raise WrongMediaType(f"Content-Encoding is {encoding!r}; send the body as it is, without one")


class BodyReader:
    """The body of a request, piece by piece; a client that stalls, or only drips, is given up."""

    def __init__(self, request: web.Request, limits: LimitsSection) -> None:
        """`limits` say how long to wait for the next byte, and how slow a client may be."""
        self._request = request
        self._limits = limits
        self._left = b""
        self._received = 0
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()

    async def exactly(self, count: int, what: str) -> bytes:
        """The next `count` bytes, which are called `what` in an error.

        Raises:
            Malformed: The body ends before.
            ConnectionError: The client went away or stalled.
        """
        gathered = await self.some()
        while len(gathered) < count:
            piece = await self.some()
            if not piece:
                raise Malformed(f"the body ends inside {what}: {len(gathered)} of {count} bytes are there")
            gathered += piece
        self._left = gathered[count:]
        return gathered[:count]

    async def some(self) -> bytes:
        """The next bytes, as they came; none at the end of the body.

        Raises:
            ConnectionError: The client went away, stalled or is too slow.
        """
        if self._left:
            piece, self._left = self._left, b""
            return piece
        content = self._request.content
        stall_s = self._limits.upload_stall_s
        try:
            piece = content.read_nowait()
            if not piece and not content.is_eof():
                async with asyncio.timeout(stall_s):
                    piece = await content.readany()
        except TimeoutError as error:
            raise ConnectionResetError(f"no byte for {stall_s} s") from error
        except OSError as error:  # that the connection ended with: over TLS also one of its own, such as SSLError
            raise ConnectionResetError(str(error)) from error
        self._received += len(piece)
        # As long as it may pause, it may also be slow: a body of one packet takes as long as the network does.
        counted_s = self._clock() - self._began - self._limits.upload_stall_s
        if counted_s > 0 and self._received < counted_s * self._limits.min_upload_rate:
            raise ConnectionResetError(f"{self._received} bytes in {counted_s + self._limits.upload_stall_s:.0f} s")
        return piece
