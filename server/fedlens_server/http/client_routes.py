"""The client API: each handler decodes, calls one function of the engine, encodes."""

from functools import partial
from hashlib import sha256

from aiohttp import web

from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, update_pb2
from fedlens_proto.wire import LENGTH, decode_request
from fedlens_server.engine import assignments, clients, evaluation, updates
from fedlens_server.engine.operators import tokens
from fedlens_server.engine.operators.access import Origin
from fedlens_server.errors import Malformed, Unauthorised
from fedlens_server.http import credentials, responses
from fedlens_server.http.blob_responses import send_blob
from fedlens_server.http.bodies import read_body
from fedlens_server.http.service import ADDRESS, SERVICE, Service
from fedlens_server.http.uploads import receive_update
from fedlens_server.telemetry.metrics import Metrics

_WAITS = {
    number: f"wait-{name.removeprefix('WAIT_REASON_').lower().replace('_', '-')}"
    for name, number in check_in_pb2.WaitReason.items()
}
# 18 digits fit every store's signed 64-bit integers.
_ROUND = "/v1/tasks/{task:[0-9]{1,18}}/rounds/{round:[0-9]{1,18}}"


def routes() -> list[web.RouteDef]:
    """Every endpoint of the client API."""
    return [
        web.post("/v1/clients", enrol),
        web.delete("/v1/clients/self", forget),
        web.post("/v1/check-in", check_in),
        web.get("/v1/blobs/{sha256:[0-9a-f]{64}}", get_blob),
        web.put(f"{_ROUND}/update", put_update),
        web.put(f"{_ROUND}/evaluation", put_evaluation),
        web.post(f"{_ROUND}/failure", report_failure),
    ]


async def enrol(request: web.Request) -> web.Response:
    """`POST /v1/clients`: enrol a client."""
    service = request.app[SERVICE]
    client = credentials.client_id(request)
    message = decode_request(enrolment_pb2.EnrolRequest, await _body(request, service, "enrol"))
    if message.client_id != client:
        raise Unauthorised("client_id is not the one that follows from the credential")
    grant = service.federation.grants.get(tokens.hashed(message.enrolment_token))
    if grant is None:
        raise Unauthorised("the enrolment token is none of this server's")
    address = service.addresses.limited(request[ADDRESS])
    most = service.config.limits.enrolments_per_address
    origin = Origin(address=address, per_minute=most) if address else None
    role = await service.durable(clients.enrol(service.federation, client, grant, message.capabilities, origin))
    return responses.message(enrolment_pb2.EnrolResponse(role=role))


async def forget(request: web.Request) -> web.Response:
    """`DELETE /v1/clients/self`: forget a client."""
    service, client = _authenticated(request)
    decode_request(enrolment_pb2.ForgetRequest, await _body(request, service, "forget"))
    aggregating = await service.durable(clients.forget(service.federation, client))
    return responses.message(enrolment_pb2.ForgetResponse(aggregating=aggregating))


async def check_in(request: web.Request) -> web.Response:
    """`POST /v1/check-in`: an assignment, held until there is one."""
    service, client = _authenticated(request)
    message = decode_request(check_in_pb2.CheckInRequest, await _body(request, service, "check-in"))
    federation = service.federation  # which is no longer to be had when the server stops meanwhile
    ask = partial(assignments.check_in, federation, client, message)
    response = await service.polls.respond(client, message, ask, service.places)
    if response.HasField("assignment") and (request.transport is None or request.transport.is_closing()):
        service.places.give_back(client)
    word = _count(service.metrics, response)
    assignments.note_answer(federation, client, message, response, word)
    return responses.message(response)


async def get_blob(request: web.Request) -> web.StreamResponse:
    """`GET /v1/blobs/{sha256}`: a blob of this client's assignment, current sets or bundles."""
    service, client = _authenticated(request)
    digest = bytes.fromhex(request.match_info["sha256"])
    find = assignments.finder(service.federation, client, digest)
    # What is elsewhere may keep the event loop waiting; a change of threads takes longer than to look here.
    location = find() if service.store.address.is_here else await service.located(digest, find)
    count = partial(assignments.count_sent, service.federation, client, digest)
    return await send_blob(request, location, service.config.server.accel_location, count)


async def put_update(request: web.Request) -> web.Response:
    """`PUT .../update`: a member's update."""
    service, client = _authenticated(request)
    return responses.message(await receive_update(request, service, client, *_round(request)))


async def put_evaluation(request: web.Request) -> web.Response:
    """`PUT .../evaluation`: an evaluator's result."""
    service, client = _authenticated(request)
    body = await _body(request, service, "evaluation")
    if len(body) < LENGTH.size or LENGTH.unpack_from(body)[0] != len(body) - LENGTH.size:
        raise Malformed(f"an evaluation is a header behind its length; that does not fit these {len(body)} bytes")
    header = decode_request(update_pb2.UpdateHeader, body[LENGTH.size :])
    accepting = evaluation.accept(service.federation, client, *_round(request), header, sha256(body).digest())
    receipt = await service.durable(accepting)
    return responses.message(receipt)


async def report_failure(request: web.Request) -> web.Response:
    """`POST .../failure`: a member gives up."""
    service, client = _authenticated(request)
    message = decode_request(update_pb2.FailureRequest, await _body(request, service, "failure"))
    reason, detail = message.reason, message.detail
    await service.durable(updates.accept_failure(service.federation, client, *_round(request), reason, detail))
    return responses.message(update_pb2.FailureResponse())


def _count(metrics: Metrics, response: check_in_pb2.CheckInResponse) -> str:
    answer = response.WhichOneof("result") or ""
    if answer == "wait":
        wait = response.wait
        answer = _WAITS[wait.reason]
        metrics.pauses.add(wait.retry_after_ms / 1000)
    metrics.answers[answer] += 1
    return answer


def _authenticated(request: web.Request) -> tuple[Service, bytes]:
    service = request.app[SERVICE]
    client = credentials.client_id(request)
    service.federation.authenticate(client)
    return service, client


async def _body(request: web.Request, service: Service, endpoint: str) -> bytes:
    return await read_body(request, endpoint, service.config.limits)


def _round(request: web.Request) -> tuple[int, int]:
    return int(request.match_info["task"]), int(request.match_info["round"])
