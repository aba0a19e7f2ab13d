"""The operator API, on an address of its own: each handler decodes, calls one function of the engine, encodes."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import isfinite
from typing import Any

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from fedlens_proto.v1 import admin_pb2, admission_pb2
from fedlens_proto.wire import decode_request
from fedlens_server.engine.operators import (
    audit,
    backups,
    bans,
    client_list,
    control,
    deletion,
    rollback,
    statements,
    tasks,
    tokens,
)
from fedlens_server.errors import Malformed, Unknown
from fedlens_server.http import credentials, responses
from fedlens_server.http.blob_responses import send_blob
from fedlens_server.http.bodies import read_body
from fedlens_server.http.service import OPERATOR, SERVICE
from fedlens_server.http.uploads import receive_part
from fedlens_server.telemetry.metrics import CONTENT_TYPE

METRICS = "/metrics"
_DIGEST = "{sha256:[0-9a-f]{64}}"


def routes() -> list[web.RouteDef]:
    """Every endpoint of the admin API."""
    return [
        web.get(METRICS, metrics),
        web.put(f"/v1/admin/parts/{_DIGEST}", put_part),
        web.head(f"/v1/admin/parts/{_DIGEST}", has_part),
        web.post("/v1/admin/tasks", create_task),
        web.get("/v1/admin/tasks", list_tasks),
        web.get("/v1/admin/tasks/{task}", show_task),
        web.post("/v1/admin/tasks/{task}/stop", stop_task),
        web.delete("/v1/admin/tasks/{task}", delete_task),
        web.post("/v1/admin/tasks/{task}/pause", pause_task),
        web.post("/v1/admin/tasks/{task}/resume", resume_task),
        web.post("/v1/admin/tasks/{task}/deadline", end_round),
        web.post("/v1/admin/tasks/{task}/settings", change_task),
        web.post("/v1/admin/tasks/{task}/statements", renew_task),
        web.post("/v1/admin/tasks/{task}/rollback", roll_back),
        web.post("/v1/admin/tasks/{task}/release", release_model),
        web.get("/v1/admin/tasks/{task}/model", task_model),
        web.get(f"/v1/admin/blobs/{_DIGEST}", get_blob),
        web.get("/v1/admin/clients", list_clients),
        web.get("/v1/admin/clients/{client}", show_client),
        web.post("/v1/admin/clients/{client}/ban", ban_client),
        web.post("/v1/admin/clients/{client}/unban", unban_client),
        web.post("/v1/admin/tokens", create_token),
        web.get("/v1/admin/tokens", list_tokens),
        web.post("/v1/admin/tokens/{token}/revoke", revoke_token),
        web.post("/v1/admin/tokens/{token}/ban", ban_token),
        web.post("/v1/admin/tokens/{token}/unban", unban_token),
        web.get("/v1/admin/audit", list_audit),
        web.post("/v1/admin/backups", make_backup),
    ]


@web.middleware
async def operators_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests to `/v1/admin` and for metrics without the token of an operator who may send them."""
    service = request.app[SERVICE]
    if request.path.startswith(responses.API) or (request.path == METRICS and not service.config.admin.metrics_open):
        request[OPERATOR] = operator = service.operator(tokens.hashed(credentials.bearer(request)))
        operator.check_may(request.method)
    return await handler(request)


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`: the metrics of the server, in Prometheus' text format."""
    page = await asyncio.to_thread(request.app[SERVICE].metrics.page)
    return web.Response(body=page, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE})


async def put_part(request: web.Request) -> web.Response:
    """`PUT /v1/admin/parts/{sha256}`: store a part of a bundle."""
    await receive_part(request, request.app[SERVICE], _digest(request))
    return web.Response(status=204)


async def has_part(request: web.Request) -> web.Response:
    """`HEAD /v1/admin/parts/{sha256}`: status 200 if a part is stored."""
    if _digest(request) in request.app[SERVICE].federation.store.blobs.sizes:
        return web.Response()
    return responses.error(Unknown("this part is not stored here"))  # an answer, no refusal


async def create_task(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks`: make a task."""
    service = request.app[SERVICE]
    body = await read_body(request, "create-task", service.config.limits)
    message = await asyncio.to_thread(decode_request, admin_pb2.CreateTaskRequest, body)
    task = await service.durable(tasks.create(service.federation, message, request[OPERATOR]))
    return responses.message(task)


async def list_tasks(request: web.Request) -> web.Response:
    """`GET /v1/admin/tasks`: all tasks."""
    return responses.message(tasks.listed(request.app[SERVICE].federation))


async def show_task(request: web.Request) -> web.Response:
    """`GET /v1/admin/tasks/{task}`: a task with its rounds."""
    federation, task = request.app[SERVICE].federation, request.match_info["task"]
    return responses.message(await asyncio.to_thread(tasks.show, federation, task))


async def stop_task(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks/{task}/stop`: end a task."""
    return await _controlled(request, tasks.stop)


async def delete_task(request: web.Request) -> web.Response:
    """`DELETE /v1/admin/tasks/{task}`: delete a task that has ended."""
    service, federation = request.app[SERVICE], request.app[SERVICE].federation
    task = tasks.find(federation, request.match_info["task"])
    await service.durable(deletion.begin(federation, task, request[OPERATOR]))
    return web.Response(status=204)


async def pause_task(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks/{task}/pause`: give no more places."""
    return await _controlled(request, control.pause)


async def resume_task(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks/{task}/resume`: go on with a task that is paused."""
    return await _controlled(request, control.resume)


async def end_round(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks/{task}/deadline`: end the open round now."""
    return await _controlled(request, control.end_round)


async def change_task(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks/{task}/settings`: change settings of a task that goes on."""
    body = await read_body(request, "change-task", request.app[SERVICE].config.limits)
    message = decode_request(admin_pb2.ChangeTaskRequest, body)
    return await _controlled(request, partial(control.change, settings_json=message.settings_json))


async def renew_task(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks/{task}/statements`: take newer statements of publishers about a task's bundles."""
    body = await read_body(request, "renew-task", request.app[SERVICE].config.limits)
    message = decode_request(admin_pb2.RenewTaskRequest, body)
    return await _controlled(request, partial(statements.renew, signed=message.statements))


async def roll_back(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks/{task}/rollback`: go back to the state after a round."""
    return await _controlled(request, partial(rollback.roll_back, number=await _round(request)))


async def release_model(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks/{task}/release`: have clients predict with the model after a round."""
    return await _controlled(request, partial(rollback.release, number=await _round(request)))


async def _round(request: web.Request) -> int:
    body = await read_body(request, "round", request.app[SERVICE].config.limits)
    return decode_request(admin_pb2.RoundRequest, body).round


async def _controlled(request: web.Request, act: Callable[..., Future[Any]]) -> web.Response:
    service = request.app[SERVICE]
    federation = service.federation
    task = tasks.find(federation, request.match_info["task"])
    await service.durable(act(federation, task, by=request[OPERATOR]))
    return responses.message(tasks.summary(federation, task))


async def task_model(request: web.Request) -> web.Response:
    """`GET /v1/admin/tasks/{task}/model`: the digest of the global model."""
    federation, task = request.app[SERVICE].federation, request.match_info["task"]
    return responses.message(await asyncio.to_thread(tasks.model, federation, task))


async def get_blob(request: web.Request) -> web.StreamResponse:
    """`GET /v1/admin/blobs/{sha256}`: any stored bytes."""
    service, digest = request.app[SERVICE], _digest(request)
    return await send_blob(
        request, await service.located(digest, partial(service.federation.store.blobs.locate, digest))
    )


async def list_clients(request: web.Request) -> web.Response:
    """`GET /v1/admin/clients?after=...&limit=...`: clients by pages; `token`, `bundle`, `state`, `seen_within_s`."""
    federation, query = request.app[SERVICE].federation, request.query
    limit = _number(request, "limit", client_list.MAX_LISTED)
    find = partial(
        client_list.listed,
        federation,
        _client_id(query["after"]) if "after" in query else b"",
        client_list.MAX_LISTED if limit is None else int(limit),
        seen_within_s=_number(request, "seen_within_s"),
        **{key: query.get(key, "") for key in ("token", "bundle", "state")},
    )
    return responses.message(await asyncio.to_thread(find))


async def show_client(request: web.Request) -> web.Response:
    """`GET /v1/admin/clients/{client}`: all that is known of a client."""
    federation, client = request.app[SERVICE].federation, await _named_client(request)
    return responses.message(await asyncio.to_thread(client_list.show, federation, client))


async def ban_client(request: web.Request) -> web.Response:
    """`POST /v1/admin/clients/{client}/ban`: shut a client out."""
    service, client = request.app[SERVICE], await _named_client(request)
    reason = await _reason(request)
    changed = await service.durable(bans.ban(service.federation, client, reason, request[OPERATOR]))
    return responses.message(admission_pb2.BanResponse(clients=int(changed)))


async def unban_client(request: web.Request) -> web.Response:
    """`POST /v1/admin/clients/{client}/unban`: let a client in again."""
    service, client = request.app[SERVICE], await _named_client(request)
    changed = await service.durable(bans.unban(service.federation, client, request[OPERATOR]))
    return responses.message(admission_pb2.BanResponse(clients=int(changed)))


async def ban_token(request: web.Request) -> web.Response:
    """`POST /v1/admin/tokens/{token}/ban`: revoke a token and shut out all that enrolled with it."""
    service, token = request.app[SERVICE], request.match_info["token"]
    reason = await _reason(request)
    count = await service.durable(bans.ban_token(service.federation, token, reason, request[OPERATOR]))
    return responses.message(admission_pb2.BanResponse(clients=count))


async def unban_token(request: web.Request) -> web.Response:
    """`POST /v1/admin/tokens/{token}/unban`: let in again all that enrolled with a token."""
    service, token = request.app[SERVICE], request.match_info["token"]
    count = await service.durable(bans.unban_token(service.federation, token, request[OPERATOR]))
    return responses.message(admission_pb2.BanResponse(clients=count))


async def create_token(request: web.Request) -> web.Response:
    """`POST /v1/admin/tokens`: make a token."""
    service = request.app[SERVICE]
    body = await read_body(request, "create-token", service.config.limits)
    message = decode_request(admission_pb2.CreateTokenRequest, body)
    made = await service.durable(tokens.create(service.federation, message, request[OPERATOR]))
    return responses.message(made)


async def list_tokens(request: web.Request) -> web.Response:
    """`GET /v1/admin/tokens`: all tokens, without their secrets."""
    return responses.message(await asyncio.to_thread(tokens.listed, request.app[SERVICE].federation))


async def revoke_token(request: web.Request) -> web.Response:
    """`POST /v1/admin/tokens/{token}/revoke`: let nobody else in by a token."""
    service = request.app[SERVICE]
    await service.durable(tokens.revoke(service.federation, request.match_info["token"], request[OPERATOR]))
    return web.Response(status=204)


async def list_audit(request: web.Request) -> web.Response:
    """`GET /v1/admin/audit?within_s=...&before=...`: the latest changes by operators."""
    federation = request.app[SERVICE].federation
    within_s, before = _number(request, "within_s"), _number(request, "before")
    since = 0.0 if within_s is None else federation.clock.now() - within_s
    entries = await asyncio.to_thread(audit.listed, federation, since, None if before is None else int(before))
    return responses.message(entries)


async def make_backup(request: web.Request) -> web.Response:
    """`POST /v1/admin/backups`: back up the server into its folder for backups."""
    service = request.app[SERVICE]
    body = await read_body(request, "backup", service.config.limits)
    message = decode_request(admin_pb2.BackupRequest, body)
    folder, operator = service.config.server.backups, request[OPERATOR]
    made = await asyncio.to_thread(backups.make, service.federation, folder, message.keep, operator)
    return responses.message(made)


async def _reason(request: web.Request) -> str:
    body = await read_body(request, "ban", request.app[SERVICE].config.limits)
    return decode_request(admission_pb2.BanRequest, body).reason


async def _named_client(request: web.Request) -> bytes:
    federation, digits = request.app[SERVICE].federation, request.match_info["client"]
    return await asyncio.to_thread(client_list.find, federation, digits)


def _client_id(text: str) -> bytes:
    try:
        client = bytes.fromhex(text)
    except ValueError:
        client = b""
    if len(client) != 32:
        raise Malformed(f"a client's id has 64 hexadecimal digits, found {text[:80]!r}")
    return client


def _digest(request: web.Request) -> bytes:
    return bytes.fromhex(request.match_info["sha256"])


def _number(request: web.Request, key: str, most: float = 1e15) -> float | None:
    """A number from 0 in the query of a request; None: it is not given.

    Raises:
        Malformed: It is no number, negative, or above `most`.
    """
    text = request.query.get(key)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (isfinite(value) and 0 <= value <= most):
        raise Malformed(f"{key}: found {text[:80]!r}, must be a number from 0 to {most:g}")
    return value
