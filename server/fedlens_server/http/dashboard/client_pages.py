"""Pages of clients: a list by pages, and one client with what the server knows of it."""

import asyncio
from functools import partial
from urllib.parse import urlencode

from aiohttp import web

from fedlens_proto.v1 import admission_pb2
from fedlens_server.engine.operators import client_list
from fedlens_server.errors import Malformed
from fedlens_server.http.dashboard.actions import SUBJECTS, client_id
from fedlens_server.http.dashboard.pages import ROOT, render
from fedlens_server.http.dashboard.sessions import take_message
from fedlens_server.http.service import SERVICE

SHOWN = 50
SEEN = {"": "at any time", "3600": "within an hour", "86400": "within a day", "604800": "within a week"}


def routes() -> list[web.RouteDef]:
    """The addresses of pages of clients."""
    return [web.get("/clients", show_clients), web.get("/clients/{client}", show_client)]


async def show_clients(request: web.Request) -> web.Response:
    """`GET /clients`: some clients; `?after=` an id, `?token=`, `?bundle=`, `?state=`, `?seen=` seconds."""
    federation, query = request.app[SERVICE].federation, request.query
    chosen = {key: query.get(key, "") for key in ("token", "bundle", "state", "seen")}
    if chosen["seen"] not in SEEN:
        raise Malformed(f"seen: found {chosen['seen'][:40]!r}, must be one of {', '.join(filter(None, SEEN))}")
    after = client_id(federation, query["after"]) if query.get("after") else b""
    find = partial(
        client_list.listed,
        federation,
        after,
        SHOWN,
        token=chosen["token"],
        bundle=chosen["bundle"],
        state=chosen["state"],
        seen_within_s=float(chosen["seen"]) if chosen["seen"] else None,
    )

    def look() -> tuple[admission_pb2.ListClientsResponse, client_list.SittingOut]:
        found = find()
        return found, client_list.sitting_out(federation, [each.id for each in found.clients if each.sits_out_until])

    found, sits_out = await asyncio.to_thread(look)
    models = {bundle.manifest.model for task in list(federation.tasks.values()) for bundle in task.bundles}
    following = {**{key: value for key, value in chosen.items() if value}, "after": ""}
    if found.clients:
        following["after"] = found.clients[-1].id.hex()
    return render(
        request,
        "clients.html",
        clients=found.clients,
        sits_out=sits_out,
        following=f"{ROOT}/clients?{urlencode(following)}" if found.has_more else "",
        chosen=chosen,
        models=sorted(models - {""}),
        states=list(client_list.STATES),
        seen=SEEN,
        message=take_message(request),
    )


async def show_client(request: web.Request) -> web.Response:
    """`GET /clients/{client}`: all that is known of a client."""
    federation = request.app[SERVICE].federation
    client = client_id(federation, request.match_info["client"])
    found = await asyncio.to_thread(client_list.show, federation, client)
    sits_out = await asyncio.to_thread(client_list.sitting_out, federation, [client])
    is_banned = found.client.state == admission_pb2.CLIENT_STATE_BANNED
    actions = SUBJECTS["clients"].actions
    return render(
        request,
        "client.html",
        found=found,
        sits_out=sits_out[client],
        actions={name: actions[name] for name in (("unban",) if is_banned else ("ban",))},
        message=take_message(request),
    )
