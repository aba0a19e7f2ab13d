import asyncio
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fedlens_edge_client.client import http_transport, retrying
from fedlens_edge_client.client.http_transport import MAX_RESPONSE_BYTES, HttpTransport
from fedlens_edge_client.client.retrying import Backoff
from fedlens_edge_client.errors import BadResponse, Refused, Unreachable, Untrusted
from fedlens_proto import wire
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, error_pb2, update_pb2
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

SECRET = b"s" * 32
QUICK = Backoff(first_s=0.001, most_s=0.002)
LATER, NOW = error_pb2.RETRY_LATER, error_pb2.RETRY_NOW
# The content of program `step` of the bundle.
PART = b"step" + bytes(2000)
DIGEST = sha256(PART).digest()
THREE_ATTEMPTS = Backoff(first_s=0.001, most_s=0.002, give_up_after_s=2.5)


@asynccontextmanager
async def transport_to(url: str, **arguments: Any) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(url, SECRET, **dict[str, Any]({"backoff": QUICK} | arguments))
    yield transport
    await transport.close()


@pytest.fixture
async def server(bundle: Bundle) -> AsyncIterator[FakeServer]:
    async with FakeServer(bundle, fedavg_plan()) as server:
        yield server


@pytest.fixture
def told() -> list[tuple[str, float, int]]:
    """What a transport says before it tries again: reason, wait in seconds, number of attempts."""
    return []


@pytest.fixture
async def transport(server: FakeServer, told: list[tuple[str, float, int]]) -> AsyncIterator[HttpTransport]:
    """That of a client which the server has enrolled."""
    async with transport_to(server.url, on_retry=lambda *what: told.append(what)) as transport:
        await transport.enrol(TOKEN, enrolment_pb2.Capabilities())
        yield transport


@pytest.fixture
def a_second_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt takes a second by the clock of who gives up: a busy machine takes no attempt away."""
    monkeypatch.setattr(retrying, "time", SimpleNamespace(monotonic=partial(next, count())))


def check_in() -> check_in_pb2.CheckInRequest:
    return check_in_pb2.CheckInRequest(protocol=1)


async def test_an_enrolled_client_gets_its_role_and_an_assignment(server: FakeServer) -> None:
    async with transport_to(server.url + "/") as transport:
        role = (await transport.enrol(TOKEN, enrolment_pb2.Capabilities())).role
        answer = await transport.check_in(check_in())

    assert role == enrolment_pb2.CLIENT_ROLE_TRAINER
    assert answer.assignment == server.assignment()


async def test_a_later_answer_is_repeated_not_sooner_than_it_says(
    server: FakeServer, transport: HttpTransport, told: list[tuple[str, float, int]]
) -> None:
    server.troubles += [("check-in", answering(lambda: refusal(507, "storage-full", "no room", LATER, 50)))] * 2
    started = asyncio.get_running_loop().time()
    await transport.check_in(check_in())
    took_s = asyncio.get_running_loop().time() - started

    assert took_s >= 0.1
    assert [(reason, attempt) for reason, _, attempt in told] == [("storage-full: no room", n) for n in (1, 2)]
    assert all(delay_s >= 0.05 for _, delay_s, _ in told)


async def test_a_now_answer_is_repeated_at_once_but_for_what_it_says(
    server: FakeServer, transport: HttpTransport, told: list[tuple[str, float, int]]
) -> None:
    for after_ms in (0, 30):
        server.troubles.append(("check-in", answering(partial(refusal, 429, "slow-down", "again", NOW, after_ms))))
        await transport.check_in(check_in())

    assert [delay_s for _, delay_s, _ in told] == [0.0, 0.03]


@pytest.mark.parametrize("retry", [error_pb2.RETRY_NEVER, error_pb2.RETRY_UNSPECIFIED])
async def test_a_never_answer_and_one_without_advice_are_raised_with_their_code(
    server: FakeServer, transport: HttpTransport, retry: error_pb2.Retry
) -> None:
    server.troubles.append(("update", answering(lambda: refusal(409, "round-closed", "too late", retry))))
    with pytest.raises(Refused, match="too late") as caught:
        await transport.put_update(7, 1, b"header", ())

    assert caught.value.code == "round-closed"
    assert server.calls["update"] == 1


@pytest.mark.parametrize(
    "troubles", [[hang_up] * 3, [answering(lambda: web.Response(status=502, text="<html>bad gateway"))]]
)
async def test_a_cut_connection_and_a_proxys_error_page_are_tried_again(
    server: FakeServer, transport: HttpTransport, troubles: list[Trouble]
) -> None:
    server.troubles += [("check-in", trouble) for trouble in troubles]
    answer = await transport.check_in(check_in())

    assert answer.WhichOneof("result") == "assignment"
    assert server.calls["check-in"] == len(troubles) + 1


async def test_a_proxys_429_is_tried_again(server: FakeServer, transport: HttpTransport) -> None:
    server.troubles.append(("check-in", answering(lambda: web.Response(status=429, text="slow down"))))

    assert (await transport.check_in(check_in())).WhichOneof("result") == "assignment"


async def test_a_server_may_make_a_client_wait_for_so_long_and_no_longer(
    server: FakeServer,
    transport: HttpTransport,
    told: list[tuple[str, float, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_transport, "MAX_SERVER_WAIT_S", 0.01)
    server.troubles.append(("check-in", answering(partial(refusal, 429, "slow-down", "again", NOW, 3_600_000))))
    await transport.check_in(check_in())

    assert [delay_s for _, delay_s, _ in told] == [0.01]


@pytest.mark.usefixtures("a_second_each")
async def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_transport, "SILENCE_TIMEOUT_S", 0.05)
    over = asyncio.Event()

    async def silent(_: web.Request) -> web.Response:
        await over.wait()
        return web.Response()

    async with serving(silent) as url, transport_to(url, backoff=THREE_ATTEMPTS) as transport:
        with pytest.raises(Unreachable, match="no response in time"):
            await transport.check_in(check_in())
        over.set()


@pytest.mark.usefixtures("a_second_each")
async def test_an_unreachable_server_is_given_up_in_time_and_no_message_holds_the_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    told: list[str] = []
    async with transport_to(
        "http://127.0.0.1:1", backoff=THREE_ATTEMPTS, on_retry=lambda reason, *_: told.append(reason)
    ) as transport:
        with pytest.raises(Unreachable, match=r"given up after 3 attempts in 3\.0 s: ") as caught:
            await transport.check_in(check_in())

    assert all("connection failed" in reason for reason in told) and len(told) == 2
    for text in (*told, str(caught.value), caplog.text, repr(transport)):
        assert "c3Nzc3Nzc3" not in text and "ssss" not in text


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (lambda: web.Response(text="<html>welcome to the hotel"), "not from a FedLens server"),
        (lambda: web.Response(body=b"\xff\xff", content_type=wire.MEDIA_TYPE), "no readable CheckInResponse"),
        (lambda: web.Response(body=bytes(MAX_RESPONSE_BYTES + 1), content_type=wire.MEDIA_TYPE), "more than"),
        (lambda: web.Response(status=404, text="nginx"), "status 404, not from a FedLens server"),
        (lambda: web.Response(status=302, headers={"Location": "https://elsewhere/"}), "redirected"),
        (lambda: web.Response(status=409, body=b"\xff\xff", content_type=wire.MEDIA_TYPE), "no readable Error"),
        (lambda: web.Response(status=204), "status 204"),
        (lambda: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}, content_type=wire.MEDIA_TYPE), "type"),
    ],
)
async def test_an_answer_that_is_not_the_protocol_is_named(
    server: FakeServer, transport: HttpTransport, broken: Callable[[], web.Response], named: str
) -> None:
    server.troubles.append(("check-in", answering(broken)))
    with pytest.raises(BadResponse, match=named):
        await transport.check_in(check_in())


@pytest.mark.parametrize(
    ("there", "trouble", "ranges"),
    [
        pytest.param(b"", cut_after(PART, 700), [None, "bytes=700-"], id="cut"),
        pytest.param(PART[:100], answering(lambda: web.Response(body=PART)), ["bytes=100-"], id="no ranges"),
        pytest.param(
            PART + b"more",
            answering(lambda: web.Response(status=416)),
            ["bytes=2008-", None],
            id="too long",
        ),
    ],
)
async def test_a_download_completes_what_is_there_or_starts_anew(
    server: FakeServer,
    transport: HttpTransport,
    tmp_path: Path,
    there: bytes,
    trouble: Trouble,
    ranges: list[str | None],
) -> None:
    (tmp_path / "part").write_bytes(there)
    server.troubles.append(("blob", trouble))
    await transport.fetch(DIGEST, tmp_path / "part", len(PART))

    assert (tmp_path / "part").read_bytes() == PART
    assert [headers.get("Range") for what, headers in server.requests if what == "blob"] == ranges


OTHER_RANGE = {"Content-Range": f"bytes 0-{len(PART) - 1}/{len(PART)}", "Content-Type": "application/octet-stream"}


@pytest.mark.parametrize(
    ("response", "named", "left"),
    [
        # Going on from there would end in the same error again.
        (lambda: web.Response(status=206, body=PART, headers=OTHER_RANGE), "another range", b""),
        (lambda: web.Response(body=PART + b"x"), "more than the 2004 bytes that were announced", b""),
        (lambda: web.Response(text="<html>pay first", content_type="text/html"), "not from a FedLens", PART[:100]),
        (lambda: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}), "not from a FedLens", PART[:100]),
    ],
)
async def test_a_download_that_fails_leaves_its_beginning_unless_that_would_fail_again(
    server: FakeServer,
    transport: HttpTransport,
    tmp_path: Path,
    response: Callable[[], web.Response],
    named: str,
    left: bytes,
) -> None:
    (tmp_path / "part").write_bytes(PART[:100])
    server.troubles.append(("blob", answering(response)))
    with pytest.raises(BadResponse, match=named):
        await transport.fetch(DIGEST, tmp_path / "part", len(PART))

    assert (tmp_path / "part").read_bytes() == left


async def test_an_update_streams_from_its_file_with_its_length(tmp_path: Path) -> None:
    blob = bytes(range(256)) * 4096
    (tmp_path / "blob").write_bytes(blob)
    received = []

    async def take(request: web.Request) -> web.StreamResponse:
        received.append((request.headers.get("Content-Length"), await request.read()))
        return reply(update_pb2.Receipt())

    async with serving(take) as url, transport_to(url) as transport:
        await transport.put_update(7, 1, b"header", [tmp_path / "blob"])

    assert received == [(str(6 + len(blob)), b"header" + blob)]


def times_open(path: Path) -> int:
    """How many of this process's descriptors are of a file."""
    return [each.resolve() for each in Path("/proc/self/fd").iterdir()].count(path)


@pytest.mark.usefixtures("a_second_each")
async def test_an_update_that_is_cut_off_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # More than a connection takes in before its reader reads.
    (tmp_path / "blob").write_bytes(bytes(32 << 20))
    still_open = []

    async def take(request: web.Request) -> web.StreamResponse:
        still_open.append(times_open(tmp_path / "blob"))
        return await hang_up(request)

    async def at_once(function: Callable[..., object], *args: object) -> object:
        return function(*args)

    # A cut then meets a write, and never a read; and an error's traceback may keep for longer what was writing.
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    writing = list[object]()
    sys.set_asyncgen_hooks(firstiter=writing.append)
    async with serving(take) as url, transport_to(url, backoff=THREE_ATTEMPTS) as transport:
        with pytest.raises(Unreachable):
            await transport.put_update(7, 1, b"header", [tmp_path / "blob"])

    assert still_open == [1, 1, 1]


async def test_an_update_costs_at_most_700_bytes_more_than_its_payload() -> None:
    # A linear head 512 x 10: 4 * (512 * 10 + 10) = 20,520 bytes of float32.
    payload, blob_size = 20_520, 20_736
    header = wire.frame_update(
        update_pb2.UpdateHeader(
            protocol=1,
            bundle=bytes([255]) * 32,
            num_examples=250,
            evaluations=[
                update_pb2.EvaluationSums(label=label, count=50, correct=40, loss=1.5) for label in ("start", "trained")
            ],
            uploads=[update_pb2.UploadedBlob(name="weights", sha256=bytes([255]) * 32, size=blob_size)],
        )
    )
    read = asyncio.get_running_loop().create_future()

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(len(header) + blob_size)
        answer = update_pb2.Receipt(body_sha256=bytes(32)).SerializeToString()
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: {wire.MEDIA_TYPE}\r\nContent-Length: {len(answer)}\r\n\r\n".encode()
        )
        writer.write(answer)
        await writer.drain()
        writer.close()
        read.set_result(len(head) + len(body))

    async with await asyncio.start_server(count, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with transport_to(f"http://127.0.0.1:{port}") as transport:
            await transport.put_update(123, 4567, header, [bytes(blob_size)])

    assert payload < blob_size
    assert await read <= payload + 700


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("fl.example.org", "no address"),
        ("ftp://fl.example.org", "no address"),
        ("http://fl.example.org:8443", "plain HTTP"),
        ("https://me:pw@fl.example.org", "user"),
        ("https://", "no address"),
        ("https://[::1", "no address"),
        ("https://fl.example.org:99999", "Port out of range"),
    ],
)
def test_addresses_that_the_secret_must_not_go_to_are_refused(address: str, named: str) -> None:
    with pytest.raises(Untrusted, match=named):
        HttpTransport(address, SECRET)


def _tls(folder: Path) -> ssl.SSLContext:
    """A server's side of TLS, whose CA is `ca.pem` in the folder."""
    import trustme

    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


async def _never(request: web.Request) -> web.StreamResponse:
    raise AssertionError(f"{request.path} must not be reached")


async def test_a_private_ca_is_trusted_if_given_and_else_the_client_stops(tmp_path: Path) -> None:
    context = _tls(tmp_path)

    async def finished(request: web.Request) -> web.StreamResponse:
        return reply(check_in_pb2.CheckInResponse(finished=check_in_pb2.Finished()))

    async with (
        serving(finished, context) as url,
        transport_to(url, ca=tmp_path / "ca.pem") as trusting,
        transport_to(url) as wary,
    ):
        answer = await trusting.check_in(check_in())
        with pytest.raises(Untrusted, match=r"certificate is not trusted: .*; give its CA with --ca FILE"):
            await wary.check_in(check_in())

    assert answer.WhichOneof("result") == "finished"


@pytest.mark.parametrize("speaks_tls", [True, False])
async def test_http_to_a_port_of_https_and_the_reverse_are_answered_by_the_cause(
    tmp_path: Path, speaks_tls: bool
) -> None:
    context = _tls(tmp_path)
    async with serving(_never, context if speaks_tls else None) as url:
        there, named = ("http:", f"HTTPS: use {url}$") if speaks_tls else ("https:", f"plain HTTP there: .* {url}$")
        async with transport_to(there + url.partition(":")[2], ca=tmp_path / "ca.pem") as transport:
            with pytest.raises(BadResponse, match=f"the server speaks {named}"):
                await transport.check_in(check_in())


async def test_evaluations_failures_and_forgetting_reach_their_addresses(
    server: FakeServer, transport: HttpTransport
) -> None:
    header = wire.frame_update(update_pb2.UpdateHeader(protocol=1))
    failure = update_pb2.FailureRequest(protocol=1, reason=update_pb2.FAILURE_REASON_POLICY)
    await transport.put_evaluation(7, 1, header)
    await transport.report_failure(7, 2, failure)
    forgotten = await transport.forget()

    assert server.evaluations == {1: header}
    assert server.failures == {2: failure}
    assert forgotten.aggregating


@asynccontextmanager
async def serving(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The address of a server with one handler for every path."""
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app, scheme="https" if context else "http")
    await server.start_server(ssl=context)
    yield f"{server.scheme}://127.0.0.1:{server.port}"
    await server.close()
