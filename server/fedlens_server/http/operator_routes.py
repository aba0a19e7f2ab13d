"""The operator API, on an address of its own: each handler decodes, calls one function of the engine, encodes."""

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler

from fedlens_proto.v1 import admin_pb2
from fedlens_proto.wire import decode_request
from fedlens_server.engine import clients, tasks
from fedlens_server.errors import Malformed
from fedlens_server.http import credentials, responses
from fedlens_server.http.blob_responses import send_blob
from fedlens_server.http.bodies import read_body
from fedlens_server.http.service import SERVICE
from fedlens_server.http.uploads import receive_part

_DIGEST = "{sha256:[0-9a-f]{64}}"


def routes() -> list[web.RouteDef]:
    """Every endpoint of the admin API."""
    return [
        web.put(f"/v1/admin/parts/{_DIGEST}", put_part),
        web.head(f"/v1/admin/parts/{_DIGEST}", has_part),
        web.post("/v1/admin/tasks", create_task),
        web.get("/v1/admin/tasks", list_tasks),
        web.get("/v1/admin/tasks/{task}", show_task),
        web.post("/v1/admin/tasks/{task}/stop", stop_task),
        web.get("/v1/admin/tasks/{task}/model", task_model),
        web.get(f"/v1/admin/blobs/{_DIGEST}", get_blob),
        web.post("/v1/admin/clients/{client}/revoke", revoke),
    ]


@web.middleware
async def operators_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests to `/v1/admin` without the operators' token."""
    if request.path.startswith("/v1/"):
        credentials.require_operator(request, request.app[SERVICE].config.admin.token_sha256)
    return await handler(request)


async def put_part(request: web.Request) -> web.Response:
    """`PUT /v1/admin/parts/{sha256}`: store a part of a bundle."""
    await receive_part(request, request.app[SERVICE], _digest(request))
    return web.Response(status=204)


async def has_part(request: web.Request) -> web.Response:
    """`HEAD /v1/admin/parts/{sha256}`: status 200 if a part is stored."""
    await asyncio.to_thread(request.app[SERVICE].federation.store.blobs.locate, _digest(request))
    return web.Response()


async def create_task(request: web.Request) -> web.Response:
    """`POST /v1/admin/tasks`: make a task."""
    service = request.app[SERVICE]
    body = await read_body(request, "create-task", service.config.limits.upload_stall_s)
    message = await asyncio.to_thread(decode_request, admin_pb2.CreateTaskRequest, body)
    task = await service.durable(tasks.create(service.federation, message))
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
    service, task = request.app[SERVICE], request.match_info["task"]
    federation = service.federation
    await service.durable(tasks.stop(federation, task))
    return responses.message(tasks.summary(tasks.find(federation, task)))


async def task_model(request: web.Request) -> web.Response:
    """`GET /v1/admin/tasks/{task}/model`: the digest of the global model."""
    federation, task = request.app[SERVICE].federation, request.match_info["task"]
    return responses.message(await asyncio.to_thread(tasks.model, federation, task))


async def get_blob(request: web.Request) -> web.StreamResponse:
    """`GET /v1/admin/blobs/{sha256}`: any stored bytes."""
    location = await asyncio.to_thread(request.app[SERVICE].federation.store.blobs.locate, _digest(request))
    response, _ = await send_blob(request, location)
    return response


async def revoke(request: web.Request) -> web.Response:
    """`POST /v1/admin/clients/{client}/revoke`: shut a client out."""
    text = request.match_info["client"]
    try:
        client = bytes.fromhex(text)
    except ValueError:
        client = b""
    if len(client) != 32:
        raise Malformed(f"a client's id has 64 hexadecimal digits, found {text[:80]!r}")
    service = request.app[SERVICE]
    await service.durable(clients.revoke(service.federation, client))
    return web.Response(status=204)


def _digest(request: web.Request) -> bytes:
    return bytes.fromhex(request.match_info["sha256"])
