"""A small server that speaks the protocol, for one bundle and one task, with a round for each member's update.

It records requests, responds by the protocol, and on demand imitates a bad network or a broken server.
"""

import asyncio
from base64 import urlsafe_b64decode
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from aiohttp import web
from aiohttp.test_utils import TestServer
from google.protobuf.message import Message

from fedlens_edge_client.errors import Refused
from fedlens_proto import keyed_hash, plans, wire
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, enrolment_pb2, error_pb2, update_pb2

_FLOAT32 = assignment_pb2.CODEC_FLOAT32
TOKEN = "come-in"
TASK = 7
SEED = bytes(range(32))

Trouble = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class FakeServer:
    """Give `async with` it, then point clients at `url`."""

    bundle: Bundle
    plan: assignment_pb2.LocalPlan
    rounds: int = 1
    task: int = TASK
    answer: assignment_pb2.Answer = assignment_pb2.ANSWER_UPDATE
    role: enrolment_pb2.ClientRole = enrolment_pb2.CLIENT_ROLE_TRAINER
    hold_s: float = 0.0
    troubles: list[tuple[str, Trouble]] = field(default_factory=list)
    enrolled: set[bytes] = field(default_factory=set)
    enrolments: list[enrolment_pb2.EnrolRequest] = field(default_factory=list)
    updates: dict[int, bytes] = field(default_factory=dict)
    evaluations: dict[int, bytes] = field(default_factory=dict)
    failures: dict[int, update_pb2.FailureRequest] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    check_ins: list[check_in_pb2.CheckInRequest] = field(default_factory=list)
    sets: dict[str, bytes] = field(default_factory=dict)  # blobs by name, as assignments list them
    differences: dict[str, assignment_pb2.Difference] = field(default_factory=dict)
    statement: bytes = b""  # about the bundle
    port: int | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._watch], client_max_size=1 << 30)
        app.router.add_post("/v1/clients", self._enrol)
        app.router.add_delete("/v1/clients/self", self._forget)
        app.router.add_post("/v1/check-in", self._check_in)
        app.router.add_get("/v1/blobs/{digest}", self._blob)
        app.router.add_put("/v1/tasks/{task}/rounds/{round}/update", self.store_update)
        app.router.add_put("/v1/tasks/{task}/rounds/{round}/evaluation", self._evaluation)
        app.router.add_post("/v1/tasks/{task}/rounds/{round}/failure", self._failure)
        self.sets["global"] = self.bundle.initial().raw.tobytes()
        self._server = TestServer(app, port=self.port)
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def round_number(self) -> int:
        """The open round: each update, evaluation or failure ends one."""
        return 1 + len(self.updates) + len(self.evaluations) + len(self.failures)

    def header(self, round_number: int) -> update_pb2.UpdateHeader:
        """The header of an accepted update."""
        return parse_body(self.updates[round_number])[0]

    def blob(self, round_number: int) -> bytes:
        """The first blob of an accepted update."""
        return parse_body(self.updates[round_number])[1][0]

    def assignment(self) -> assignment_pb2.Assignment:
        """The present response to a check-in."""
        return assignment_pb2.Assignment(
            task=self.task,
            round=self.round_number,
            bundle=self.bundle.id,
            seed=SEED,
            time_left_ms=60_000,
            sets=[
                assignment_pb2.BlobSet(
                    name=name, sha256=sha256(raw).digest(), size=len(raw), difference=self.differences.get(name)
                )
                for name, raw in self.sets.items()
            ],
            local_plan=self.plan,
            answer=self.answer,
            statement=self.statement,
        )

    def after_update(self, trouble: Trouble) -> Trouble:
        """A trouble that comes when the update has been stored."""

        async def late(request: web.Request) -> web.StreamResponse:
            await self.store_update(request)
            return await trouble(request)

        return late

    @web.middleware
    async def _watch(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        what = request.path.rpartition("/")[2] if request.method != "GET" else "blob"
        self.calls[what] += 1
        self.requests.append((what, dict(request.headers)))
        for index, (where, trouble) in enumerate(self.troubles):
            if where == what:
                del self.troubles[index]
                await request.read()
                return await trouble(request)
        if what != "clients" and client_of(request) not in self.enrolled:
            return refusal(401, "unauthorised", "no such client")
        return await handler(request)

    async def _enrol(self, request: web.Request) -> web.StreamResponse:
        message = wire.decode_request(enrolment_pb2.EnrolRequest, await request.read())
        if message.enrolment_token != TOKEN:
            return refusal(403, "forbidden", "this enrolment token is not known")
        assert message.client_id == client_of(request)
        self.enrolments.append(message)
        self.enrolled.add(client_of(request))
        return reply(enrolment_pb2.EnrolResponse(role=self.role))

    async def _forget(self, request: web.Request) -> web.StreamResponse:
        self.enrolled.discard(client_of(request))
        return reply(enrolment_pb2.ForgetResponse(aggregating=True))

    async def _check_in(self, request: web.Request) -> web.StreamResponse:
        message = wire.decode_request(check_in_pb2.CheckInRequest, await request.read())
        self.check_ins.append(message)
        await asyncio.sleep(min(self.hold_s, message.hold_ms / 1000))
        if self.round_number > self.rounds:
            given = self.assignment()
            model = check_in_pb2.CurrentModel(
                task=self.task,
                bundle=given.bundle,
                sets=given.sets,
                rules=plans.start_rules(self.plan),
                extractors=self.plan.extractors,
                statement=given.statement,
            )
            return reply(check_in_pb2.CheckInResponse(finished=check_in_pb2.Finished(models=[model])))
        return reply(check_in_pb2.CheckInResponse(assignment=self.assignment()))

    async def _blob(self, request: web.Request) -> web.StreamResponse:
        digest = bytes.fromhex(request.match_info["digest"])
        raw = {sha256(value).digest(): value for value in self.sets.values()}.get(digest)
        if digest == self.bundle.id:
            raw = self.bundle.raw
        elif raw is None and self.bundle.part(digest).is_file():
            raw = self.bundle.part(digest).read_bytes()
        if raw is None:
            return refusal(404, "unknown", "no such blob")
        start = request.http_range.start or 0
        if start >= len(raw) > 0:
            return refusal(416, "malformed", "no such range")
        headers = {"Content-Range": f"bytes {start}-{len(raw) - 1}/{len(raw)}"} if start else {}
        return web.Response(
            status=206 if start else 200, body=raw[start:], headers=headers, content_type="application/octet-stream"
        )

    async def store_update(self, request: web.Request) -> web.StreamResponse:
        """Do what the address of updates does."""
        body = await request.read()
        number = int(request.match_info["round"])
        known = self.updates.get(number)
        if known is not None and known != body:
            return refusal(409, "update-differs", "another update is here")
        if known is None and number != self.round_number:
            return refusal(409, "round-closed", "the round is over")
        header, blobs = parse_body(body)
        if [upload.sha256 for upload in header.uploads] != [sha256(blob).digest() for blob in blobs]:
            return refusal(422, "update-invalid", "a blob is not what the header says")
        self.updates[number] = body
        for upload, blob in zip(self.plan.uploads, blobs, strict=True):
            if upload.name == "weights" and upload.codec == _FLOAT32 and not upload.tensors.names:
                self.sets["global"] = blob
        return reply(update_pb2.Receipt(body_sha256=sha256(body).digest()))

    async def _evaluation(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.evaluations[int(request.match_info["round"])] = body
        return reply(update_pb2.Receipt(body_sha256=sha256(body).digest()))

    async def _failure(self, request: web.Request) -> web.StreamResponse:
        message = wire.decode_request(update_pb2.FailureRequest, await request.read())
        self.failures[int(request.match_info["round"])] = message
        return reply(update_pb2.FailureResponse())


def client_of(request: web.Request) -> bytes:
    """The id of who sends a request."""
    scheme, _, value = request.headers["Authorization"].partition(" ")
    assert scheme == "Bearer"
    return keyed_hash.client_id(urlsafe_b64decode(value + "="))


def parse_body(body: bytes) -> tuple[update_pb2.UpdateHeader, list[bytes]]:
    """Header and blobs of an update."""
    (length,) = wire.LENGTH.unpack_from(body)
    end = wire.LENGTH.size + length
    header, blobs = wire.decode_request(update_pb2.UpdateHeader, body[wire.LENGTH.size : end]), []
    for upload in header.uploads:
        blobs.append(body[end : end + upload.size])
        end += upload.size
    assert end == len(body)
    return header, blobs


def reply(message: Message, status: int = 200) -> web.Response:
    """A message as an answer."""
    return web.Response(status=status, body=message.SerializeToString(), content_type=wire.MEDIA_TYPE)


def refusal(
    status: int,
    code: str,
    message: str,
    retry: error_pb2.Retry = error_pb2.RETRY_NEVER,
    retry_after_ms: int = 0,
) -> web.Response:
    """An error as an answer."""
    return reply(error_pb2.Error(code=code, message=message, retry=retry, retry_after_ms=retry_after_ms), status)


def answering(response: Callable[[], web.StreamResponse]) -> Trouble:
    """A trouble: this answer, instead of the right one."""

    async def trouble(request: web.Request) -> web.StreamResponse:
        return response()

    return trouble


async def hang_up(request: web.Request) -> web.StreamResponse:
    """A trouble: the connection is cut without an answer."""
    assert request.transport is not None
    request.transport.abort()
    raise asyncio.CancelledError


def cut_after(raw: bytes, count: int) -> Trouble:
    """A trouble: the connection is cut after the first bytes of a blob."""

    async def trouble(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = len(raw)
        await response.prepare(request)
        await response.write(raw[:count])
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
        return response

    return trouble


def fedavg_plan(epochs: int = 1, asking: str = "") -> assignment_pb2.LocalPlan:
    """Train everything from `global` and send everything, and what the statistic of this name asks for."""
    return assignment_pb2.LocalPlan(
        format=plans.FORMAT,
        instructions=[
            assemble("start", assignment_pb2.Rule(source=assignment_pb2.Source(download="global"))),
            train("trained", "start", epochs=epochs),
        ],
        uploads=[assignment_pb2.Upload(name="weights", value="trained", codec=_FLOAT32)],
        evaluations=[assignment_pb2.Evaluation(label=value, value=value) for value in ("start", "trained")],
        statistics=[assignment_pb2.Statistic(**{asking: {}})] if asking else [],
    )


def evaluation_plan() -> assignment_pb2.LocalPlan:
    """Evaluate `global`, as evaluators do."""
    plan = fedavg_plan()
    del plan.instructions[1:], plan.uploads[:], plan.evaluations[1:]
    return plan


def assemble(value: str, *rules: assignment_pb2.Rule) -> assignment_pb2.Instruction:
    """Weights from several sources."""
    return assignment_pb2.Instruction(value=value, assemble=assignment_pb2.Assemble(rules=rules))


def train(value: str, start: str, **fields: Any) -> assignment_pb2.Instruction:
    """Training with `step` over the train photos."""
    given = {"program": "step", "rows": assignment_pb2.ROWS_TRAIN} | fields
    return assignment_pb2.Instruction(value=value, train=assignment_pb2.Train(start=start, **given))


def train_of(plan: assignment_pb2.LocalPlan) -> assignment_pb2.Train:
    """The first training of a plan."""
    return next(each.train for each in plan.instructions if each.HasField("train"))


def start_of(plan: assignment_pb2.LocalPlan) -> assignment_pb2.Source:
    """The source of the first rule of a plan."""
    return plans.start_rules(plan)[0].source


def keep_all(plan: assignment_pb2.LocalPlan, state: str) -> assignment_pb2.Keep:
    """Have a plan keep what it trained as client state."""
    return plan.keeps.add(state=state, value="trained")


def fine_tune(plan: assignment_pb2.LocalPlan, epochs: int) -> None:
    """Have a plan train its start once more, after its other instructions, and only evaluate that."""
    plan.instructions.append(train("fine_tuned", "start", epochs=epochs))
    plan.evaluations.add(label="fine_tuned", value="fine_tuned")


class BlobSource:
    """Blobs to fetch by digest; the first `wrong` answers are wrong bytes, and unknown digests are refused."""

    def __init__(self, *contents: bytes, wrong: int = 0) -> None:
        self.contents = {sha256(raw).digest(): raw for raw in contents}
        self.wrong = wrong
        self.asked: list[bytes] = []

    async def fetch(self, digest: bytes, into: Path, max_bytes: int) -> None:
        """As `Transport.fetch`."""
        self.asked.append(digest)
        await asyncio.sleep(0)  # others have their turn, as with every call to a server
        if digest not in self.contents:
            raise Refused("unknown", "no such blob")
        raw = b"?" * max_bytes if len(self.asked) <= self.wrong else self.contents[digest]
        with into.open("ab") as file:
            file.write(raw[file.tell() :])
