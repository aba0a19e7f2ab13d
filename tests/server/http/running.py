"""A server on 127.0.0.1 inside the test's own loop, spoken to over real HTTP, and the clients that speak to it."""

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np
from aiohttp import web

from fedlens_proto import keyed_hash, plans
from fedlens_proto.blob import encode
from fedlens_proto.v1 import (
    admin_pb2,
    admission_pb2,
    assignment_pb2,
    check_in_pb2,
    enrolment_pb2,
    error_pb2,
    manifest_pb2,
    update_pb2,
)
from fedlens_proto.wire import MEDIA_TYPE, frame_update
from fedlens_server.config import Config
from fedlens_server.engine.operators import tokens
from fedlens_server.http.app import create_admin_app, create_app
from fedlens_server.http.service import SERVICE, Service
from fedlens_server.http.sockets.certificate import tls
from fedlens_server.http.sockets.listening import Runner, close, listen, listen_on_socket
from fedlens_server.sections import AppSection
from fedlens_server.store import StateAddress, Store, Transaction
from fedlens_server.store.database import holds_state
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.elsewhere import address_of
from tests.server.fakes import START, ManualClock

ADMIN_TOKEN = "token-of-the-operators"
TRAINER_TOKEN = "token-of-the-trainers"
BAN = admission_pb2.BanRequest(protocol=1, reason="noise").SerializeToString()
READ_TOKEN = "token-of-an-onlooker"
EVALUATOR_TOKEN = "token-of-the-evaluators"
# Whose certificate a server with TLS has is of no matter here.
_UNCHECKED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_UNCHECKED.check_hostname = False
_UNCHECKED.verify_mode = ssl.CERT_NONE


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> error_pb2.Error:
        assert self.headers["Content-Type"] == MEDIA_TYPE
        return error_pb2.Error.FromString(self.body)

    @property
    def outcome(self) -> tuple[int, str]:
        """Status and code, the code empty for a success."""
        return self.status, self.error.code if self.status >= 400 else ""


@dataclass
class Server:
    url: str
    admin_url: str
    service: Service
    clock: ManualClock
    session: aiohttp.ClientSession
    folder: Path

    async def request(self, method: str, url: str, body: Any = b"", **headers: str) -> Answer:
        """One request; `Content_Type="..."` sets a header, an empty text leaves it out."""
        named = {"Content-Type": MEDIA_TYPE} | {name.replace("_", "-"): value for name, value in headers.items()}
        left_out = [name for name, value in named.items() if not value]
        sent = {name: value for name, value in named.items() if value}
        # aiohttp warns of large bodies given as bytes.
        data = BytesIO(body) if isinstance(body, bytes) and len(body) >= 1 << 20 else body or None
        async with self.session.request(
            method, url, data=data, headers=sent, skip_auto_headers=left_out, allow_redirects=False
        ) as answer:
            return Answer(answer.status, dict(answer.headers), await answer.read())

    async def admin(self, method: str, path: str, body: Any = b"", token: str = ADMIN_TOKEN, **headers: str) -> Answer:
        return await self.request(method, self.admin_url + path, body, Authorization=f"Bearer {token}", **headers)

    async def create(self, bundle: TinyBundle, name: str = "demo", **settings: Any) -> admin_pb2.Task:
        for digest, content in bundle.by_digest.items():
            answer = await self.admin("PUT", f"/v1/admin/parts/{digest.hex()}", content)
            assert answer.status == 204, answer
        answer = await self.admin("POST", "/v1/admin/tasks", creation(bundle, name, **settings))
        assert answer.status == 200, answer
        return admin_pb2.Task.FromString(answer.body)

    async def show(self, task: str = "demo") -> admin_pb2.ShowTaskResponse:
        answer = await self.admin("GET", f"/v1/admin/tasks/{task}")
        assert answer.status == 200, answer
        return admin_pb2.ShowTaskResponse.FromString(answer.body)

    async def client(self, index: int, token: str = TRAINER_TOKEN) -> "Client":
        """An enrolled client."""
        client = Client(self, sha256(f"client {index}".encode()).digest())
        answer = await client.enrol(token)
        assert answer.status == 200, answer
        return client

    async def member(
        self, features: int = 3, population: int = 1, **settings: Any
    ) -> tuple["Client", assignment_pb2.Assignment]:
        """A member of an open round, the first of `population`, and its assignment."""
        await self.create(tiny_bundle(features), population=population, **settings)
        clients = [await self.client(index) for index in range(1, population + 1)]
        return clients[0], await clients[0].assignment()

    def temporary_files(self) -> list[Path]:
        return list((self.folder / "blobs" / "incoming").iterdir())


@dataclass
class Client:
    server: Server
    secret: bytes

    @property
    def id(self) -> bytes:
        return keyed_hash.client_id(self.secret)

    @property
    def bearer(self) -> str:
        return f"Bearer {base64.urlsafe_b64encode(self.secret).decode()}"

    async def send(self, method: str, path: str, body: Any = b"", **headers: str) -> Answer:
        headers = {"Authorization": self.bearer} | headers
        return await self.server.request(method, self.server.url + path, body, **headers)

    async def enrol(self, token: str = TRAINER_TOKEN, client_id: bytes | None = None) -> Answer:
        return await self.send("POST", "/v1/clients", enrolment(token, client_id or self.id))

    async def check_in(self, hold_ms: int = 0, task: int = 0) -> check_in_pb2.CheckInResponse:
        request = check_in_pb2.CheckInRequest(protocol=1, num_examples=10, hold_ms=hold_ms, task=task)
        answer = await self.send("POST", "/v1/check-in", request.SerializeToString())
        assert answer.status == 200, answer
        return check_in_pb2.CheckInResponse.FromString(answer.body)

    async def assignment(self) -> assignment_pb2.Assignment:
        response = await self.check_in(hold_ms=10_000)
        assert response.WhichOneof("result") == "assignment", response
        return response.assignment

    async def upload(self, assignment: assignment_pb2.Assignment, body: Any = None, **headers: str) -> Answer:
        """Send this body; by default an update with all weights 1."""
        body = update(assignment) if body is None else body
        return await self.send("PUT", f"{round_path(assignment)}/update", body, **headers)


def head(bearer: str, path: str, size: int, *, method: str = "PUT", kind: str = MEDIA_TYPE) -> bytes:
    """The head of a request that announces a body of `size` bytes."""
    line, headers = f"{method} {path} HTTP/1.1", f"Authorization: {bearer}\r\nContent-Type: {kind}"
    return f"{line}\r\nHost: x\r\n{headers}\r\nContent-Length: {size}\r\n\r\n".encode()


def round_path(assignment: assignment_pb2.Assignment) -> str:
    return f"/v1/tasks/{assignment.task}/rounds/{assignment.round}"


def enrolment(token: str, client_id: bytes) -> bytes:
    capabilities = enrolment_pb2.Capabilities(
        formats=[manifest_pb2.PROGRAM_FORMAT_PT2],
        bundle_classes=[manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL],
        plan_format=plans.FORMAT,
        tables=["*"],
    )
    return enrolment_pb2.EnrolRequest(
        protocol=1, enrolment_token=token, client_id=client_id, capabilities=capabilities
    ).SerializeToString()


def creation(bundle: TinyBundle, name: str = "demo", **settings: Any) -> bytes:
    given = {"method": "fedavg", "rounds": 3, "population": 2, "seed": "5e" * 32} | settings
    given = {name: value for name, value in given.items() if value is not None}
    return admin_pb2.CreateTaskRequest(
        protocol=1, name=name, manifests=[bundle.manifest], settings_json=json.dumps(given)
    ).SerializeToString()


def trained(features: int = 3, value: float = 1.0) -> bytes:
    """A blob that fits `tiny_bundle(features)`."""
    weight = np.full((2, features), value, np.float32)
    return encode({"fc.bias": np.full(2, value, np.float32), "fc.weight": weight})


def update(assignment: assignment_pb2.Assignment, blob: bytes | None = None, **fields: Any) -> bytes:
    """The body of an update; `fields` override those of the header."""
    blob = trained() if blob is None else blob
    header: dict[str, Any] = {
        "protocol": 1,
        "bundle": assignment.bundle,
        "phase": assignment.phase,
        "num_examples": 10,
        "evaluations": [
            update_pb2.EvaluationSums(label="start", count=4, correct=1, loss=5.0),
            update_pb2.EvaluationSums(label="trained", count=4, correct=3, loss=2.0),
        ],
        "uploads": [listed(blob)],
    }
    return frame_update(update_pb2.UpdateHeader(**(header | fields))) + blob


def listed(blob: bytes, **fields: Any) -> update_pb2.UploadedBlob:
    """A blob of weights as a header lists it, but for these fields."""
    return update_pb2.UploadedBlob(**{"name": "weights", "sha256": sha256(blob).digest(), "size": len(blob), **fields})


def config(
    folder: Path,
    *,
    allow_method_modules: bool = False,
    backups: Path | None = None,
    socket: Path | None = None,
    trusted_proxies: Sequence[str] = (),
    accel_location: str | None = None,
    certificate: tuple[Path, Path] | None = None,
    apps: Sequence[AppSection] = (),
    **limits: Any,
) -> Config:
    server: dict[str, Any] = {"allow_method_modules": allow_method_modules, "trusted_proxies": list(trusted_proxies)}
    server |= {"port": 0} if socket is None else {"socket": socket}
    server |= {"accel_location": accel_location, "apps": apps}
    if certificate is not None:
        server["certfile"], server["keyfile"] = certificate
    sections = {
        "server": {"data": "data", "backups": backups, **server},
        "admin": {"port": 0, "token_sha256": tokens.hashed(ADMIN_TOKEN)},
        "limits": limits,
    }
    return Config.model_validate(sections, context={"folder": folder})


def opened(folder: Path, address: StateAddress | None = None) -> Store:
    """The state of a server; a new one has the tokens that tests use."""
    address = address or address_of(folder)
    is_new = not holds_state(address)
    store = Store.open(address)

    def written(transaction: Transaction) -> None:
        write = partial(tokens.write, transaction, now=START, max_uses=tokens.MAX_USES)
        write(TRAINER_TOKEN, name="trainers", role=admission_pb2.TOKEN_ROLE_TRAINER)
        write(EVALUATOR_TOKEN, name="evaluators", role=admission_pb2.TOKEN_ROLE_EVALUATOR)
        write("once", name="once", role=admission_pb2.TOKEN_ROLE_TRAINER, max_uses=1)
        write("old", name="old", role=admission_pb2.TOKEN_ROLE_TRAINER, expires_at=START)
        write(READ_TOKEN, name="onlooker", role=admission_pb2.TOKEN_ROLE_READ, max_uses=None, per_minute=None)

    if is_new:
        store.submit(written).result()
    return store


@asynccontextmanager
async def running(
    folder: Path, *, certificate: tuple[Path, Path] | None = None, **settings_of: Any
) -> AsyncIterator[Server]:
    """A server that is ready, with a config as of `config`; everything is closed at the end."""
    settings, clock = config(folder, certificate=certificate, **settings_of), ManualClock()
    context = None if certificate is None else tls(*certificate)
    store = opened(settings.server.data)
    app = create_app(settings, clock, store)
    service = app[SERVICE]
    try:
        async with (
            serving(app, settings.server.socket, context) as url,
            serving(create_admin_app(service), context=context) as admin_url,
        ):
            await service.ready()
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=_UNCHECKED)) as session:
                yield Server(url, admin_url, service, clock, session, settings.server.data)
    finally:
        store.close()


@asynccontextmanager
async def serving(
    app: web.Application, socket: Path | None = None, context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The address of an application that is served."""
    runner = Runner(app)
    try:
        await runner.setup()
        if socket is not None:
            yield await listen_on_socket(runner, socket, "server.socket")
        else:
            yield await listen(runner, "127.0.0.1", 0, context, "server")
    finally:
        await close([runner], 5.0)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, which breaks at the end."""
    parts = urlsplit(url)
    context = _UNCHECKED if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection("127.0.0.1", parts.port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    """Return when `condition` holds; for what happens at the other end of a socket, which nothing announces."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (there is no event to wait for)
            await asyncio.sleep(0.002)
