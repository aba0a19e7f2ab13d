"""Whether requests should be sent to this server now."""

import asyncio

from aiohttp import web

from fedlens_server.http.service import SERVICE, Service, ServiceState


def obstacle(service: Service) -> str:
    """The reason for which the server cannot serve requests; empty: it can. Asks the file system."""
    if service.state is not ServiceState.READY:
        return str(service.state.value)
    if service.store.writing.broken:
        return "the state can no longer be written; see the log, and restart the server"
    if not service.store.lead.is_certain:
        return str(service.store.lead.doubt())
    least, free = service.config.limits.min_free_bytes, service.store.free_bytes
    if free < least:
        return f"the disk of server.data has {free} free bytes, less than {least} (limits.min_free_bytes)"
    return ""


async def healthz(_: web.Request) -> web.Response:
    """`GET /healthz`: the process answers."""
    return web.Response(text="ok\n")


async def readyz(request: web.Request) -> web.Response:
    """`GET /readyz`: status 200 while requests are served, else 503 with the reason."""
    found = await asyncio.to_thread(obstacle, request.app[SERVICE])
    return web.Response(status=503 if found else 200, text=f"{found or 'ready'}\n")
