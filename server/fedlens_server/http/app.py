"""The two applications of a server: one for clients, one for operators, over the same service."""

from collections.abc import AsyncIterator, Iterable
from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from fedlens_server.clock import Clock
from fedlens_server.config import Config
from fedlens_server.enrolment_link import JOIN
from fedlens_server.http import client_routes, join_page, operator_routes
from fedlens_server.http.dashboard.app import create_dashboard, to_dashboard
from fedlens_server.http.dashboard.pages import ROOT
from fedlens_server.http.observing import figures
from fedlens_server.http.observing.readiness import healthz, readyz
from fedlens_server.http.observing.requests import observed
from fedlens_server.http.responses import errors_as_messages, refusal
from fedlens_server.http.service import SERVICE, SIDE, Service
from fedlens_server.store import Store

READ_BYTES = 256 << 10
# They say nothing of what clients or operators have.
_OF_THE_PROCESS = frozenset({"/healthz", "/readyz", operator_routes.METRICS, JOIN, join_page.ASSET_LINKS})


def create_app(config: Config, clock: Clock, store: Store) -> web.Application:
    """The application for clients; `app[SERVICE]` is the service, which starts and stops with it.

    Requests are refused with `unavailable` until `app[SERVICE].ready()` has returned. The caller closes `store`.
    """
    service = Service(config, clock, store)
    service.metrics.add(partial(figures.samples, service))
    app = _application(service, "clients", [*client_routes.routes(), *join_page.routes()])

    async def lifetime(_: web.Application) -> AsyncIterator[None]:
        service.begin()
        yield
        await service.end()

    async def stop_accepting(_: web.Application) -> None:
        service.stop_accepting()

    app.cleanup_ctx.append(lifetime)
    app.on_shutdown.append(stop_accepting)
    return app


def create_admin_app(service: Service) -> web.Application:
    """The application for operators of a service that another application runs: its API and the dashboard."""
    app = _application(service, "operators", operator_routes.routes(), operator_routes.operators_only)
    app.router.add_get("/", to_dashboard)
    app.add_subapp(ROOT, create_dashboard(service))
    return app


@web.middleware
async def leading(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Send no answer from memory, refusals included, unless the server still led after all of it was read."""
    response = await handler(request)
    if response.prepared or request.path in _OF_THE_PROCESS or request.app[SERVICE].store.lead.is_certain:
        return response
    return refusal(request, request.app[SERVICE].store.lead.doubt())


def _application(service: Service, side: str, routes: Iterable[web.RouteDef], *more: object) -> web.Application:
    app = web.Application(
        middlewares=(observed, leading, errors_as_messages, *more),  # type: ignore[arg-type]  # what aiohttp's decorator gives
        # Content-Encoding is refused, so nothing is unpacked before a handler has seen it.
        handler_args={
            "auto_decompress": False,
            "read_bufsize": READ_BYTES,
            "access_log": None,
            "keepalive_timeout": service.config.limits.idle_s,
        },
    )
    app[SERVICE] = service
    app[SIDE] = side
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), *routes])
    return app
