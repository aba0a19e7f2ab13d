"""A way to the server on which one can be killed: before the server has a request, and before its answer arrives."""

import ssl
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from fedlens_edge_client.client.http_transport import trust
from tests.integration.deaths import Fate

_PASSED_ON = ("Authorization", "Content-Type", "Range")
_PASSED_BACK = ("Content-Type", "Content-Range")


class MortalWay:
    """Passes a client's requests on to a server; use it in `async with`.

    Each is a step, named by the last part of its address (`blob` for all of those), as is its answer (`answered`
    behind it), and `half a blob`.

    Attributes:
        fate: Is told of each step.
        bodies: By round the digests of all bodies that were sent as updates.
    """

    def __init__(self, server: str, ca: Path) -> None:
        """`server` is its address, `ca` its certificate."""
        self.fate = Fate()
        self.bodies: defaultdict[int, list[str]] = defaultdict(list)
        self._server = server
        self._trust: ssl.SSLContext = trust(ca)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        self._way = TestServer(app)
        await self._way.start_server()
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._way.close()

    @property
    def url(self) -> str:
        """The address for the client."""
        return f"http://127.0.0.1:{self._way.port}"

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        name = "blob" if request.method == "GET" else request.path.rpartition("/")[2]
        body = await request.read()
        if self.fate.step(name):
            return _dead(request)
        if name == "update":
            self.bodies[int(request.path.split("/")[-2])].append(sha256(body).hexdigest())
        headers = {key: request.headers[key] for key in _PASSED_ON if key in request.headers}
        async with self._session.request(
            request.method, self._server + request.path, data=body, headers=headers, ssl=self._trust
        ) as answer:
            content = await answer.read()
        if self.fate.step(f"{name} answered"):
            return _dead(request)
        back = {key: answer.headers[key] for key in _PASSED_BACK if key in answer.headers}
        if name != "blob":
            return web.Response(status=answer.status, body=content, headers=back)
        return await self._in_two_halves(request, web.StreamResponse(status=answer.status, headers=back), content)

    async def _in_two_halves(
        self, request: web.Request, response: web.StreamResponse, content: bytes
    ) -> web.StreamResponse:
        response.content_length = len(content)
        await response.prepare(request)
        half = len(content) // 2
        await response.write(content[:half])
        if self.fate.step("half a blob"):
            return _dead(request)
        await response.write(content[half:])
        await response.write_eof()
        return response


def _dead(request: web.Request) -> web.StreamResponse:
    """Nobody waits for this answer any more."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
