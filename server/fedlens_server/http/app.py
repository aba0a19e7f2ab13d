"""The two applications of a server: one for clients, one for operators, over the same service."""

from collections.abc import AsyncIterator, Iterable

from aiohttp import web

from fedlens_server.clock import Clock
from fedlens_server.config import Config
from fedlens_server.http import client_routes, operator_routes
from fedlens_server.http.responses import errors_as_messages
from fedlens_server.http.service import SERVICE, Service, ServiceState
from fedlens_server.store import Store

READ_BYTES = 256 << 10


def create_app(config: Config, clock: Clock, store: Store) -> web.Application:
    """The application for clients; `app[SERVICE]` is the service, which starts and stops with it.

    Requests are refused with `unavailable` until `app[SERVICE].ready()` has returned. The caller closes `store`.
    """
    service = Service(config, clock, store)
    app = _application(service, client_routes.routes())

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
    """The application for operators of a service that another application runs."""
    return _application(service, operator_routes.routes(), operator_routes.operators_only)


async def healthz(_: web.Request) -> web.Response:
    """`GET /healthz`: the process answers."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.Response:
    """`GET /readyz`: status 200 while requests are served."""
    state = request.app[SERVICE].state
    return web.Response(status=200 if state is ServiceState.READY else 503, text=f"{state.value}\n")


def _application(service: Service, routes: Iterable[web.RouteDef], *more: object) -> web.Application:
    app = web.Application(
        middlewares=(errors_as_messages, *more),  # type: ignore[arg-type]  # what aiohttp's decorator gives
        # Content-Encoding is refused, so nothing is unpacked before a handler has seen it.
        handler_args={"auto_decompress": False, "read_bufsize": READ_BYTES, "access_log": None},
    )
    app[SERVICE] = service
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), *routes])
    return app
