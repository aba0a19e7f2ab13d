"""The whole Kotlin client with responses of every kind: it ends in a named state and says why."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from fedlens_proto import wire
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import check_in_pb2, error_pb2, update_pb2
from tests.edge_client.fakes import (
    TOKEN,
    FakeServer,
    Trouble,
    answering,
    cut_after,
    fedavg_plan,
    hang_up,
    refusal,
    reply,
)
from tests.edge_client.photo_folders import make_album
from tests.integration import kotlin_client
from tests.integration.kotlin_client import Life
from tests.integration.processes import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def raw(body: bytes, content_type: str = wire.MEDIA_TYPE, status: int = 200) -> Trouble:
    """These bytes instead of the right ones."""
    return answering(lambda: web.Response(status=status, body=body, content_type=content_type))


def bad_assignment(server: FakeServer) -> web.StreamResponse:
    """An assignment whose seed is too short."""
    assignment = server.assignment()
    assignment.seed = b"short"
    return reply(check_in_pb2.CheckInResponse(assignment=assignment))


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], list[str | Path]]:
    """The command line for one round of a client of a server, with cats and dogs."""
    make_album(tmp_path / "photos", 20)
    (tmp_path / "token").write_text(TOKEN)

    def options(url: str) -> list[str | Path]:
        return [
            *("--server", url, "--album", tmp_path / "photos", "--state", tmp_path / "state"),
            *("--token-file", tmp_path / "token", "--trust-server", "--once", "--give-up-after", "1"),
        ]

    return options


def ended(life: Life) -> tuple[int, str, str]:
    """Exit status, last state, and why."""
    last = life.states[-1]
    assert life.errors.startswith("fedlens: "), life.errors
    assert "\tat " not in life.errors
    return life.status, last["state"], last.get("reason") or last.get("code", "")


BAD = (1, "failed", "bad_answer")
GONE = (1, "failed", "unreachable")
# What, to which request, and how often; and how the client ends.
CASES: list[tuple[str, str, Trouble, int, tuple[int, str, str]]] = [
    ("no message", "check-in", raw(b"\xff\xff no message"), 1, BAD),
    ("a web page", "clients", raw(b"<html>log in</html>", "text/html"), 1, BAD),
    ("two megabytes", "check-in", raw(bytes(2 << 20)), 1, BAD),
    ("nothing known", "check-in", raw(b""), 1, BAD),
    ("another blob", "blob", raw(b"x" * 50, "application/octet-stream"), 2, BAD),
    ("a long blob", "blob", raw(bytes(20 << 20), "application/octet-stream"), 1, BAD),
    (
        "a receipt for other bytes",
        "update",
        answering(lambda: reply(update_pb2.Receipt(body_sha256=bytes(32)))),
        1,
        BAD,
    ),
    ("no answer", "check-in", hang_up, 20, GONE),
    ("an error page", "check-in", raw(b"<html>502</html>", "text/html", 502), 20, GONE),
    ("revoked", "check-in", answering(lambda: refusal(403, "forbidden", "revoked")), 1, (1, "refused", "forbidden")),
    ("too late", "update", answering(lambda: refusal(409, "round-closed", "late")), 1, (1, "refused", "round-closed")),
]


async def test_whatever_a_server_answers_the_client_ends_in_a_named_state(
    tmp_path: Path, phone: Bundle, command: Callable[[str], list[str | Path]]
) -> None:
    async def end(what: str, request: str, trouble: Trouble, times: int) -> tuple[int, str, str]:
        async with FakeServer(phone, fedavg_plan()) as server:
            server.troubles += [(request, trouble)] * times
            options = command(server.url)
            options[options.index("--state") + 1] = tmp_path / what
            return ended(await kotlin_client.live(*options))

    # One after the other: each process is busy for a second.
    found = {what: await end(what, request, trouble, times) for what, request, trouble, times, _ in CASES}

    assert found == {what: expected for what, *_, expected in CASES}


async def test_libraries_of_killed_processes_are_left_alone(
    tmp_path: Path, phone: Bundle, command: Callable[[str], list[str | Path]]
) -> None:
    # As SQLite's driver names them. One that cannot be deleted stands for one that another process deletes first.
    version = re.search(r"sqlite-jdbc-([\d.]+)\.jar", await asyncio.to_thread(kotlin_client.class_path))
    assert version is not None
    temporary = tmp_path / "temporary"
    (temporary / f"sqlite-{version[1]}-of-a-killed-process-libsqlitejdbc.so" / "locked").mkdir(parents=True)
    before = sorted(temporary.rglob("*"))

    async with FakeServer(phone, fedavg_plan()) as server:
        life = await kotlin_client.live(*command(server.url), jvm=(f"-Djava.io.tmpdir={temporary}",))

    assert (life.status, life.errors) == (0, "")
    assert sorted(temporary.rglob("*")) == before


async def test_an_assignment_that_is_none_is_given_up_and_the_server_told(
    phone: Bundle, command: Callable[[str], list[str | Path]]
) -> None:
    async with FakeServer(phone, fedavg_plan()) as server:
        server.troubles.append(("check-in", answering(lambda: bad_assignment(server))))
        life = await kotlin_client.live(*command(server.url))

    assert life.status == 1
    assert life.states[-1]["reason"] == "unsupported"
    assert server.failures[1].reason == update_pb2.FAILURE_REASON_UNSUPPORTED


async def test_cut_downloads_slow_answers_and_a_server_in_trouble_are_survived(
    phone: Bundle, command: Callable[[str], list[str | Path]]
) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        content = reply(check_in_pb2.CheckInResponse(assignment=server.assignment())).body
        assert isinstance(content, bytes)
        response.content_type = wire.MEDIA_TYPE
        response.content_length = len(content)
        await response.prepare(request)
        for start in range(0, len(content), 50):
            await response.write(content[start : start + 50])
            await asyncio.sleep(0.05)
        return response

    busy = answering(lambda: refusal(503, "busy", "in a moment", error_pb2.RETRY_LATER, 50))
    options = command("")
    options[options.index("--give-up-after") + 1] = "30"
    async with FakeServer(phone, fedavg_plan()) as server:
        options[options.index("--server") + 1] = server.url
        server.troubles += [
            ("clients", busy),
            ("check-in", slow),
            ("blob", cut_after(phone.raw, 100)),
            ("update", hang_up),
        ]
        life = await kotlin_client.live(*options)

    assert (life.status, life.errors) == (0, "")
    assert life.told("retrying")
    assert life.states[-1] == {"state": "reported", "round": 1}
    assert set(server.updates) == {1}
    assert not server.troubles


async def test_a_certificate_or_key_that_is_not_the_servers_ends_in_untrusted(
    tmp_path: Path, command: Callable[[str], list[str | Path]]
) -> None:
    pin = "sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    with ServerProcess.prepared(tmp_path / "server") as server, ServerProcess.prepared(tmp_path / "other") as other:
        lives = [
            await kotlin_client.live(*command(server.url), *more)
            for more in ([], ["--ca", other.ca], ["--ca", server.ca, "--pin", pin])
        ]

    assert [ended(life) for life in lives] == [(1, "failed", "untrusted")] * 3


async def test_a_wrong_command_line_is_named(tmp_path: Path) -> None:
    unknown = await kotlin_client.live("--nonsense")
    missing = await kotlin_client.live("--server", "http://127.0.0.1:1")
    trusting = await kotlin_client.live("--server", "http://127.0.0.1:1", "--album", tmp_path, "--state", tmp_path)

    assert (unknown.status, missing.status, trusting.status) == (2, 2, 2)
    assert "give --publisher FILE, or --trust-server" in trusting.errors
    assert "there is no option '--nonsense'" in unknown.errors
    assert "--album is missing" in missing.errors
