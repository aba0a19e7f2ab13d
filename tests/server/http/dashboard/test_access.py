"""Who sees a page, and who changes something by one."""

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import pytest

from fedlens_proto.v1 import admission_pb2
from fedlens_server.engine.operators import tokens
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.http.app import create_admin_app
from fedlens_server.http.dashboard import static_files
from fedlens_server.http.dashboard.app import MAX_LOGIN_BYTES
from fedlens_server.http.dashboard.pages import ROOT
from fedlens_server.http.dashboard.sessions import LIFE_S, MAX_SESSIONS
from tests.server.bundles import tiny_bundle
from tests.server.http.dashboard.visitors import FORM, Visitor, logged_in
from tests.server.http.running import ADMIN_TOKEN, READ_TOKEN, TRAINER_TOKEN, Server, connected, head, running, until

# Everybody gets these.
OPEN = {("GET", "/static/{digest}/{name}"), ("GET", "/login"), ("POST", "/login")}
ENDS_SESSION = ("POST", "/logout")


def addresses(server: Server) -> set[tuple[str, str]]:
    """Method and address, below the root, of all that the dashboard answers."""
    router = create_admin_app(server.service).router
    routes = ((route.method, route.resource) for route in router.routes() if route.resource is not None)
    below = ((method, resource.canonical) for method, resource in routes if resource.canonical.startswith(f"{ROOT}/"))
    return {(method, path.removeprefix(ROOT)) for method, path in below if method != "HEAD"}


async def concrete(server: Server) -> list[tuple[str, str]]:
    """As `addresses`, without the open ones, with a task, client and token that are there."""
    await server.create(tiny_bundle(), population=5)
    client = await server.client(1)
    found = []
    for method, path in sorted(addresses(server) - OPEN - {ENDS_SESSION}):
        kind, action = re.search("{kind}", path), "{action}" in path
        subjects = {"tasks": ("1", "pause"), "clients": (client.id.hex(), "ban"), "tokens": ("trainers", "revoke")}
        named = path.format(task="1", client=client.id.hex(), kind="{kind}", subject="{subject}", action="{action}")
        if kind and action:
            found += [(method, f"/{of}/{subject}/{name}") for of, (subject, name) in subjects.items()]
        else:
            found.append((method, named))
    return sorted(set(found))


async def test_nobody_sees_or_changes_anything_without_a_session(server: Server) -> None:
    paths = await concrete(server)
    stranger, forger = Visitor(server), Visitor(server, cookie="x" * 43)

    seen = [
        (await each.get(path)).headers.get("Location", "")
        for each in (stranger, forger)
        for method, path in paths
        if method == "GET"
    ]
    changed = [
        (await each.post(path)).status for each in (stranger, forger) for method, path in paths if method == "POST"
    ]

    assert len(seen) >= 20 and {location.partition("?")[0] for location in seen} == {f"{ROOT}/login"}
    assert len(changed) >= 10 and set(changed) == {403}
    assert (await server.show()).task.reason == ""


async def test_a_part_of_a_page_is_not_replaced_by_the_login_once_the_session_is_over(server: Server) -> None:
    answer = await Visitor(server).get("/?part", HX_Request="true")

    assert (answer.status, answer.headers["HX-Refresh"], answer.body) == (401, "true", b"")


FOREIGN: list[dict[str, str]] = [
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "null"},
    {"Origin": "https://elsewhere.example"},
    {"Origin": "https://["},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://elsewhere.example"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_no_other_site_changes_anything_in_the_name_of_an_operator(
    server: Server, headers: dict[str, str]
) -> None:
    paths = await concrete(server)
    operator = await logged_in(server)

    statuses = [(await operator.post(path, headers)).status for method, path in paths if method == "POST"]
    login = await operator.post("/login", headers, token=ADMIN_TOKEN)
    logout = await operator.post("/logout", headers)

    assert set(statuses) == {403}
    assert (login.status, logout.status) == (403, 403)
    assert (await operator.get("/")).status == 200
    assert (await server.show()).task.reason == ""


@pytest.mark.parametrize("told", ["Sec-Fetch-Site", "Origin"])
async def test_a_browser_that_says_in_one_way_that_a_form_is_ours_is_believed(server: Server, told: str) -> None:
    await server.create(tiny_bundle())
    operator = await logged_in(server)
    headers = {"Sec-Fetch-Site": "same-origin"} if told == "Sec-Fetch-Site" else {"Origin": server.admin_url}

    answer = await operator.post("/tasks/1/pause", headers)

    assert (answer.status, answer.headers["Location"]) == (303, f"{ROOT}/tasks/1")
    assert (await server.show()).task.reason == "by admin"


async def test_who_may_only_read_sees_all_pages_and_no_button_and_changes_nothing(server: Server) -> None:
    paths = await concrete(server)
    onlooker = await logged_in(server, READ_TOKEN)
    asks = re.compile("/(pause|ban|revoke|new)$")

    pages = [(path, await onlooker.get(path)) for method, path in paths if method == "GET"]
    changes = [(await onlooker.post(path)).status for method, path in paths if method == "POST"]

    assert {path: answer.status for path, answer in pages} == {
        path: 403 if asks.search(path) else 200 for path, _ in pages
    }
    forms = [path for path, answer in pages if answer.body.count(b'method="post"') > 1]  # one is to log out
    assert forms == []
    assert set(changes) == {403}


async def test_a_token_that_is_revoked_or_expires_ends_its_session_at_once(server: Server) -> None:
    federation, role = server.service.federation, admission_pb2.TOKEN_ROLE_OPERATE
    visitors = {}
    for name, expires_in_s in (("revoked", 0), ("expired", 60)):
        request = admission_pb2.CreateTokenRequest(protocol=1, name=name, role=role, expires_in_s=expires_in_s)
        visitors[name] = await logged_in(server, tokens.create(federation, request, ADMIN).result().secret)
    before = [(await each.get("/")).status for each in visitors.values()]

    tokens.revoke(federation, "revoked", ADMIN).result()
    server.clock.wind(60)

    assert before == [200, 200]
    assert [(await each.get("/")).status for each in visitors.values()] == [303, 303]


async def test_a_session_ends_by_logging_out_and_after_its_time(server: Server) -> None:
    one, other = await logged_in(server), await logged_in(server)

    await one.post("/logout")
    after_logout = [(await each.get("/")).status for each in (one, other)]
    server.clock.wind(LIFE_S)

    assert after_logout == [303, 200]
    assert (await other.get("/")).status == 303


async def test_of_too_many_sessions_the_oldest_end(server: Server) -> None:
    first = await logged_in(server)
    second = await logged_in(server)
    for _ in range(MAX_SESSIONS - 1):
        await Visitor(server).log_in()

    assert [(await each.get("/")).status for each in (first, second)] == [303, 200]


@pytest.mark.parametrize("token", ["", "wrong", TRAINER_TOKEN])
async def test_a_wrong_token_does_not_log_in_and_is_told_so(server: Server, token: str) -> None:
    visitor = Visitor(server)

    answer = await visitor.log_in(token)

    assert (answer.status, visitor.cookie) == (401, "")
    assert b'class="message fault" role="alert"' in answer.body
    assert "This is no operator's token" in answer.body.decode().replace("&#39;", "'")
    assert not token or token.encode() not in answer.body


async def test_a_login_that_stalls_is_given_up(tmp_path: Path) -> None:
    async with running(tmp_path, upload_stall_s=0.05) as server, connected(server.admin_url) as (reader, writer):
        begun = head("", f"{ROOT}/login", 100, method="POST", kind=f"{FORM}\r\nSec-Fetch-Site: same-origin")
        writer.write(begun + b"token=")

        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""


async def test_slow_logins_keep_no_operator_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    operators = server.service.servers["operators"]
    begun = head("", f"{ROOT}/login", 100, method="POST", kind=f"{FORM}\r\nSec-Fetch-Site: same-origin") + b"token="
    monkeypatch.setattr(operators, "most", 2)
    async with connected(server.admin_url) as (first, one), connected(server.admin_url) as (_, other):
        for writer in (one, other):
            writer.write(begun)
        await until(lambda: sum(getattr(each, "awaits_stranger", False) for each in operators.connections) == 2)

        assert (await Visitor(server).log_in()).status == 303
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                assert await first.read() == b""


async def test_a_stranger_sends_no_long_form(server: Server) -> None:
    answer = await Visitor(server).log_in("x" * MAX_LOGIN_BYTES)

    assert answer.status == 413
    assert answer.headers["Content-Type"].startswith("text/html")


async def test_the_cookie_is_for_this_address_alone_and_hidden_from_scripts(server: Server) -> None:
    answer = await Visitor(server).log_in()

    attributes = {part.strip().partition("=")[0].lower(): part for part in answer.headers["Set-Cookie"].split(";")[1:]}
    assert "httponly" in attributes
    assert attributes["samesite"].strip() == "SameSite=Strict"
    assert attributes["path"].strip() == f"Path={ROOT}"
    assert "secure" not in attributes  # it came over plain HTTP, on loopback


@pytest.mark.parametrize(
    ("target", "location"),
    [
        (f"{ROOT}/tokens?x=1", f"{ROOT}/tokens?x=1"),
        ("https://elsewhere.example/", f"{ROOT}/"),
        ("//elsewhere.example", f"{ROOT}/"),
        (f"{ROOT}//elsewhere.example", f"{ROOT}//elsewhere.example"),
        (f"{ROOT}/\\elsewhere", f"{ROOT}/"),
        ("/v1/admin/tasks", f"{ROOT}/"),
        (f"{ROOT}/a\r\nX-Bad: 1", f"{ROOT}/"),
    ],
)
async def test_the_login_leads_on_to_a_page_of_the_dashboard_and_nowhere_else(
    server: Server, target: str, location: str
) -> None:
    answer = await Visitor(server).log_in(target=target)

    assert (answer.status, answer.headers["Location"]) == (303, location)
    assert "X-Bad" not in answer.headers


async def test_every_page_forbids_what_is_not_its_own_and_holds_no_script_or_style(server: Server) -> None:
    paths = [path for method, path in await concrete(server) if method == "GET"]
    operator = await logged_in(server)

    answers = {path: await operator.get(path) for path in [*paths, "/login", "/nothing", "/tasks/none"]}

    for path, answer in answers.items():
        page, policy = answer.body.decode(), answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'") and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", page) is None, path
        assert re.findall(r'(?:src|href|action)="(?:[a-z]+:)?//[^"]*"', page) == [], path


async def test_a_file_is_kept_by_browsers_for_its_content_has_its_address(server: Server) -> None:
    path = f"/{static_files.address('dashboard.css')}"

    packed = await Visitor(server).get(path, Accept_Encoding="gzip")
    plain = await Visitor(server).get(path, Accept_Encoding="identity")
    missing = [
        await Visitor(server).get(p) for p in ("/static/0/dashboard.css", path.replace("dashboard.css", "x.css"))
    ]

    source = Path(static_files.__file__).with_name("static") / "dashboard.css"
    assert packed.body == plain.body == source.read_bytes()  # the session unpacks it
    assert "immutable" in plain.headers["Cache-Control"]
    assert [answer.status for answer in missing] == [404, 404]


async def test_the_address_of_operators_leads_to_the_dashboard(server: Server) -> None:
    answer = await server.request("GET", f"{server.admin_url}/")

    assert (answer.status, answer.headers["Location"]) == (303, f"{ROOT}/")
