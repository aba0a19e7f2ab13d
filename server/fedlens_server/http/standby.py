"""A standby's answers, to operators alone: health, metrics, and who leads."""

import asyncio
from collections.abc import Iterator
from importlib.metadata import version

from aiohttp import hdrs, web

from fedlens_server.clock import Clock
from fedlens_server.engine.operators import tokens
from fedlens_server.errors import Unavailable
from fedlens_server.http import credentials
from fedlens_server.http.observing.readiness import healthz
from fedlens_server.http.operator_routes import METRICS
from fedlens_server.http.responses import errors_as_messages
from fedlens_server.sections import AdminSection
from fedlens_server.store import Candidate
from fedlens_server.telemetry.metrics import CONTENT_TYPE, Metrics, Sample

RETRY_MS = 5_000


def create_standby_app(admin: AdminSection, clock: Clock, candidate: Candidate) -> web.Application:
    """The application of a server for operators until it leads; the caller closes `candidate`."""
    shown = Metrics()
    shown.add(_samples)

    def standing() -> str:
        return f"standby: {candidate.trouble or candidate.lead.seen}"

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=503, text=f"{standing()}\n")

    async def metrics(request: web.Request) -> web.Response:
        if not admin.metrics_open:
            token = tokens.hashed(credentials.bearer(request))
            known = await asyncio.to_thread(tokens.operators, candidate.readers)
            credentials.operator(token, admin.token_sha256, known, clock.now())
        page = await asyncio.to_thread(shown.page)
        return web.Response(body=page, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})

    async def elsewhere(_: web.Request) -> web.Response:
        raise Unavailable(f"this server is a {standing()}; send requests to the one that leads", RETRY_MS)

    app = web.Application(middlewares=(errors_as_messages,), handler_args={"access_log": None})
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get(METRICS, metrics)])
    app.router.add_route("*", "/{path:.*}", elsewhere)
    return app


def _samples() -> Iterator[Sample]:
    yield Sample("fedlens_build_info", (version("fedlens"),), 1)
    yield Sample("fedlens_ready", (), 0)
    yield Sample("fedlens_standby", (), 1)
