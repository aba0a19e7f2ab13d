"""Every endpoint with every kind of credential: one table, and an endpoint that is not in it fails a test."""

import base64
from hashlib import sha256
from pathlib import Path

import pytest

from fedlens_proto.v1 import admission_pb2
from fedlens_server.clock import SystemClock
from fedlens_server.engine.operators import tokens
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.http.app import create_admin_app, create_app
from fedlens_server.http.service import SERVICE
from tests.server.http.running import ADMIN_TOKEN, BAN, READ_TOKEN, TRAINER_TOKEN, Server, config, enrolment, opened

OPEN = frozenset({("GET", "/healthz"), ("GET", "/readyz")})
# Of whoever has a link to join, or a phone.
JOINING = frozenset({("GET", "/join"), ("GET", "/.well-known/assetlinks.json")})
ENROL = ("POST", "/v1/clients")
# Of clients that have enrolled and are not banned.
CLIENTS = frozenset(
    {
        ("DELETE", "/v1/clients/self"),
        ("POST", "/v1/check-in"),
        ("GET", "/v1/blobs/{sha256}"),
        ("HEAD", "/v1/blobs/{sha256}"),
        ("PUT", "/v1/tasks/{task}/rounds/{round}/update"),
        ("PUT", "/v1/tasks/{task}/rounds/{round}/evaluation"),
        ("POST", "/v1/tasks/{task}/rounds/{round}/failure"),
    }
)
# Of operators of either role.
READ = frozenset(
    {
        ("GET", "/metrics"),
        ("HEAD", "/v1/admin/parts/{sha256}"),
        ("GET", "/v1/admin/tasks"),
        ("GET", "/v1/admin/tasks/{task}"),
        ("GET", "/v1/admin/tasks/{task}/model"),
        ("GET", "/v1/admin/blobs/{sha256}"),
        ("GET", "/v1/admin/clients"),
        ("GET", "/v1/admin/clients/{client}"),
        ("GET", "/v1/admin/tokens"),
        ("GET", "/v1/admin/audit"),
    }
)
# Of operators with the role `operate`.
OPERATE = frozenset(
    {
        ("PUT", "/v1/admin/parts/{sha256}"),
        ("POST", "/v1/admin/tasks"),
        ("DELETE", "/v1/admin/tasks/{task}"),
        *(
            ("POST", f"/v1/admin/tasks/{{task}}/{what}")
            for what in ("stop", "pause", "resume", "deadline", "settings", "statements", "rollback", "release")
        ),
        ("POST", "/v1/admin/clients/{client}/ban"),
        ("POST", "/v1/admin/clients/{client}/unban"),
        ("POST", "/v1/admin/backups"),
        ("POST", "/v1/admin/tokens"),
        ("POST", "/v1/admin/tokens/{token}/revoke"),
        ("POST", "/v1/admin/tokens/{token}/ban"),
        ("POST", "/v1/admin/tokens/{token}/unban"),
    }
)
# Pages for people have a login of their own, and tests of it; `/` leads to it.
PAGES = "/dashboard"
UNKNOWN = {"sha256": "0" * 64, "client": "0" * 64, "task": "7", "round": "7", "token": "nobody"}


def bearer(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).decode()


STRANGER = bytes(range(32))
# By kind of credential: the status of requests of clients, of enrolment, of reading operators, of changing ones. None:
# the credential lets the request in, and what it names is not there or its body is empty.
TABLE: dict[str, tuple[int | None, int | None, int | None, int | None]] = {
    "": (401, 401, 401, 401),
    "wrong": (401, 401, 401, 401),
    bearer(STRANGER): (401, None, 401, 401),
    "client": (None, None, 401, 401),
    "banned client": (403, 403, 401, 401),
    TRAINER_TOKEN: (401, 401, 401, 401),
    # The token of an operator has the form of a client's secret; with an enrolment token any such secret enrols.
    "revoked operator": (401, None, 401, 401),
    "expired operator": (401, None, 401, 401),
    READ_TOKEN: (401, 401, None, 403),
    "operator": (401, None, None, None),
    ADMIN_TOKEN: (401, 401, None, None),
}


def test_every_endpoint_is_in_the_table_and_no_other(tmp_path: Path) -> None:
    settings = config(tmp_path)
    store = opened(settings.server.data)
    try:
        app = create_app(settings, SystemClock(), store)
        found = {
            side: {
                (route.method, route.resource.canonical)
                for route in application.router.routes()
                if route.resource is not None and not route.resource.canonical.startswith(PAGES)
            }
            for side, application in (("clients", app), ("operators", create_admin_app(app[SERVICE])))
        }
    finally:
        store.close()

    head = {("HEAD", path) for _, path in OPEN | JOINING | READ}  # aiohttp serves it where it serves GET
    assert found["clients"] - head == OPEN | JOINING | {ENROL} | CLIENTS
    to_dashboard = {("GET", "/"), ("HEAD", "/")}
    assert found["operators"] - head - to_dashboard == (OPEN | READ | OPERATE) - head


async def credential(server: Server, name: str) -> str:
    """What stands behind `Bearer` for a kind of credential; others stand for themselves."""
    if name == "client":
        return (await server.client(1)).bearer.removeprefix("Bearer ")
    if name == "banned client":
        client = await server.client(2)
        await server.admin("POST", f"/v1/admin/clients/{client.id.hex()}/ban", BAN)
        return client.bearer.removeprefix("Bearer ")
    if name.endswith("operator"):
        federation = server.service.federation
        request = admission_pb2.CreateTokenRequest(
            protocol=1, name=name, role=admission_pb2.TOKEN_ROLE_OPERATE, expires_in_s=60
        )
        secret = tokens.create(federation, request, ADMIN).result().secret
        if name.startswith("revoked"):
            tokens.revoke(federation, name, ADMIN).result()
        if name.startswith("expired"):
            server.clock.wind(60)
        return secret
    return name


@pytest.mark.parametrize("name", TABLE)
async def test_each_endpoint_lets_in_whom_the_table_names_and_refuses_all_others(server: Server, name: str) -> None:
    of_clients, enrolling, reading, changing = TABLE[name]
    secret = await credential(server, name)
    groups = [
        (server.url, CLIENTS, of_clients),
        (server.admin_url, READ, reading),
        (server.admin_url, OPERATE, changing),
    ]
    expected: dict[str, int | None] = {}
    found: dict[str, int | None] = {}

    async def status(method: str, url: str, body: bytes = b"") -> int | None:
        answer = await server.request(method, url, body, Authorization=f"Bearer {secret}" if secret else "")
        return answer.status if answer.status in (401, 403) else None

    for url, endpoints, allowed in groups:
        for method, path in endpoints:
            expected[f"{method} {path}"] = allowed
            found[f"{method} {path}"] = await status(method, url + path.format(**UNKNOWN))

    enrolled = await status("POST", f"{server.url}/v1/clients", enrolment(TRAINER_TOKEN, _id(secret)))

    assert found == expected
    assert enrolled == enrolling


@pytest.mark.parametrize("path", sorted(path for _, path in OPEN))
async def test_what_a_load_balancer_asks_needs_no_credential(server: Server, path: str) -> None:
    answers = [await server.request("GET", url + path, Authorization="") for url in (server.url, server.admin_url)]

    assert [answer.status for answer in answers] == [200, 200]


def _id(secret: str) -> bytes:
    """The id that a client with this secret would have."""
    raw = base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)) if len(secret) in (43, 44) else b""
    return sha256(b"fedlens/client/v1" + raw).digest()
