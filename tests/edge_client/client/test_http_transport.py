import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fedlens_edge_client.client.http_transport import MAX_RESPONSE_BYTES, HttpTransport
from fedlens_edge_client.client.retrying import Backoff
from fedlens_edge_client.errors import BadResponse, Refused, Unreachable, Untrusted
from fedlens_proto import wire
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, enrolment_pb2, error_pb2, update_pb2
from tests.edge_client.fakes import (
    TOKEN,
    FakeServer,
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
ENDS_AFTER_ONE_S = Backoff(first_s=0.001, most_s=0.01, give_up_after_s=0.1)


@asynccontextmanager
async def transport_to(url: str, **arguments: Any) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(url, SECRET, **({"backoff": QUICK} | arguments))
    yield transport
    await transport.close()


@asynccontextmanager
async def connected(bundle: Bundle, **arguments: Any) -> AsyncIterator[tuple[FakeServer, HttpTransport]]:
    """A server, and the transport of a client that it has enrolled."""
    async with FakeServer(bundle, fedavg_plan()) as server, transport_to(server.url, **arguments) as transport:
        await transport.enrol(TOKEN, enrolment_pb2.Capabilities())
        yield server, transport


@pytest.fixture
def part(bundle: Bundle) -> tuple[bytes, bytes]:
    """Digest and content of a program."""
    digest = next(p.files[0].sha256 for p in bundle.manifest.programs if p.name == "step")
    return digest, bundle.part(digest).read_bytes()


def check_in() -> check_in_pb2.CheckInRequest:
    return check_in_pb2.CheckInRequest(protocol=1)


async def test_an_enrolled_client_gets_its_role_and_an_assignment(bundle: Bundle) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server, transport_to(server.url + "/") as transport:
        role = (await transport.enrol(TOKEN, enrolment_pb2.Capabilities())).role
        answer = await transport.check_in(check_in())

    assert role == enrolment_pb2.CLIENT_ROLE_TRAINER
    assert answer.assignment == server.assignment()


async def test_a_later_answer_is_repeated_not_sooner_than_it_says(bundle: Bundle) -> None:
    told: list[tuple[str, float, int]] = []
    async with connected(bundle, on_retry=lambda *what: told.append(what)) as (server, transport):
        full = answering(lambda: refusal(507, "storage-full", "no room", LATER, retry_after_ms=50))
        server.troubles += [("check-in", full), ("check-in", full)]
        started = asyncio.get_running_loop().time()
        await transport.check_in(check_in())
        took_s = asyncio.get_running_loop().time() - started

    assert took_s >= 0.1
    assert [(reason, attempt) for reason, _, attempt in told] == [("storage-full: no room", n) for n in (1, 2)]
    assert all(delay_s >= 0.05 for _, delay_s, _ in told)


async def test_a_now_answer_is_repeated_at_once_but_for_what_it_says(bundle: Bundle) -> None:
    told: list[float] = []
    async with connected(bundle, on_retry=lambda reason, delay_s, attempt: told.append(delay_s)) as (server, transport):
        server.troubles.append(("check-in", answering(lambda: refusal(429, "slow-down", "again", NOW))))
        await transport.check_in(check_in())
        server.troubles.append(("check-in", answering(lambda: refusal(429, "slow-down", "again", NOW, 30))))
        await transport.check_in(check_in())

    assert told == [0.0, 0.03]


async def test_a_never_answer_is_raised_with_its_code(bundle: Bundle) -> None:
    async with connected(bundle) as (server, transport):
        server.troubles.append(("update", answering(lambda: refusal(409, "round-closed", "too late"))))
        with pytest.raises(Refused, match="too late") as caught:
            await transport.put_update(7, 1, b"header", None)

    assert caught.value.code == "round-closed"
    assert server.calls["update"] == 1


async def test_an_unset_retry_counts_as_never(bundle: Bundle) -> None:
    async with connected(bundle) as (server, transport):
        unset = answering(lambda: refusal(409, "new-code", "x", error_pb2.RETRY_UNSPECIFIED))
        server.troubles.append(("check-in", unset))
        with pytest.raises(Refused):
            await transport.check_in(check_in())


async def test_a_cut_connection_is_tried_again(bundle: Bundle) -> None:
    async with connected(bundle) as (server, transport):
        server.troubles += [("check-in", hang_up)] * 3
        answer = await transport.check_in(check_in())

    assert answer.WhichOneof("result") == "assignment"


async def test_a_proxys_error_page_is_tried_again(bundle: Bundle) -> None:
    async with connected(bundle) as (server, transport):
        server.troubles.append(("check-in", answering(lambda: web.Response(status=502, text="<html>bad gateway"))))
        answer = await transport.check_in(check_in())

    assert answer.WhichOneof("result") == "assignment"


async def test_an_unreachable_server_is_told_and_given_up_when_the_time_is_over() -> None:
    told: list[str] = []
    async with transport_to(
        "http://127.0.0.1:1", backoff=ENDS_AFTER_ONE_S, on_retry=lambda reason, delay_s, attempt: told.append(reason)
    ) as transport:
        with pytest.raises(Unreachable, match="given up after"):
            await transport.check_in(check_in())

    assert "connection failed" in told[0]


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
    bundle: Bundle, broken: Callable[[], web.Response], named: str
) -> None:
    async with connected(bundle) as (server, transport):
        server.troubles.append(("check-in", answering(broken)))
        with pytest.raises(BadResponse, match=named):
            await transport.check_in(check_in())


async def test_a_download_goes_on_where_it_was_cut(bundle: Bundle, part: tuple[bytes, bytes], tmp_path: Path) -> None:
    digest, raw = part
    async with connected(bundle) as (server, transport):
        server.troubles.append(("blob", cut_after(raw, 700)))
        await transport.fetch(digest, tmp_path / "part", len(raw))

    assert (tmp_path / "part").read_bytes() == raw
    ranges = [headers.get("Range") for what, headers in server.requests if what == "blob"]
    assert ranges == [None, "bytes=700-"]


async def test_a_server_without_ranges_sends_everything_again(
    bundle: Bundle, part: tuple[bytes, bytes], tmp_path: Path
) -> None:
    digest, raw = part
    (tmp_path / "part").write_bytes(raw[:100])
    async with connected(bundle) as (server, transport):
        server.troubles.append(("blob", answering(lambda: web.Response(body=raw))))
        await transport.fetch(digest, tmp_path / "part", len(raw))

    assert (tmp_path / "part").read_bytes() == raw


async def test_a_beginning_that_is_longer_than_the_blob_is_started_anew(
    bundle: Bundle, part: tuple[bytes, bytes], tmp_path: Path
) -> None:
    digest, raw = part
    (tmp_path / "part").write_bytes(raw + b"more")
    async with connected(bundle) as (server, transport):
        server.troubles.append(("blob", answering(lambda: web.Response(status=416))))
        await transport.fetch(digest, tmp_path / "part", len(raw))

    assert (tmp_path / "part").read_bytes() == raw


async def test_after_another_range_than_the_one_asked_for_the_next_attempt_starts_anew(
    bundle: Bundle, part: tuple[bytes, bytes], tmp_path: Path
) -> None:
    digest, raw = part
    (tmp_path / "part").write_bytes(raw[:100])
    async with connected(bundle) as (server, transport):
        other = {"Content-Range": f"bytes 0-{len(raw) - 1}/{len(raw)}", "Content-Type": "application/octet-stream"}
        server.troubles.append(("blob", answering(lambda: web.Response(status=206, body=raw, headers=other))))
        with pytest.raises(BadResponse, match="another range"):
            await transport.fetch(digest, tmp_path / "part", len(raw))

    assert (tmp_path / "part").read_bytes() == b""


async def test_a_download_longer_than_announced_ends_early_and_leaves_nothing(
    bundle: Bundle, part: tuple[bytes, bytes], tmp_path: Path
) -> None:
    digest, _ = part
    async with connected(bundle) as (_, transport):
        with pytest.raises(BadResponse, match="more than the 10 bytes that were announced"):
            await transport.fetch(digest, tmp_path / "part", 10)

    assert (tmp_path / "part").read_bytes() == b""


@pytest.mark.parametrize(
    "page",
    [
        lambda: web.Response(text="<html>pay first", content_type="text/html"),
        lambda: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}),
    ],
)
async def test_a_page_instead_of_a_blob_leaves_the_beginning_alone(
    bundle: Bundle, part: tuple[bytes, bytes], tmp_path: Path, page: Callable[[], web.Response]
) -> None:
    digest, raw = part
    (tmp_path / "part").write_bytes(raw[:100])
    async with connected(bundle) as (server, transport):
        server.troubles.append(("blob", answering(page)))
        with pytest.raises(BadResponse, match="not from a FedLens server"):
            await transport.fetch(digest, tmp_path / "part", len(raw))

    assert (tmp_path / "part").read_bytes() == raw[:100]


async def test_an_update_streams_from_its_file_with_its_length(bundle: Bundle, tmp_path: Path) -> None:
    blob = bytes(range(256)) * 4096
    (tmp_path / "blob").write_bytes(blob)
    received = []

    async def take(request: web.Request) -> web.StreamResponse:
        received.append((request.headers.get("Content-Length"), await request.read()))
        return reply(update_pb2.Receipt())

    async with serving(take) as url:
        async with transport_to(url) as transport:
            await transport.put_update(7, 1, b"header", tmp_path / "blob")

    assert received == [(str(6 + len(blob)), b"header" + blob)]


async def test_an_update_costs_at_most_700_bytes_more_than_its_payload(bundle: Bundle) -> None:
    # A linear head 512 x 10: 4 * (512 * 10 + 10) = 20,520 bytes of float32.
    payload = 20_520
    blob_size = 20_736
    assert blob_size > payload
    header = wire.frame_update(
        update_pb2.UpdateHeader(
            protocol=1,
            bundle=bytes([255]) * 32,
            num_examples=250,
            evaluations=[
                update_pb2.EvaluationSums(moment=moment, count=50, correct=40, loss=1.5)
                for moment in (update_pb2.EVALUATION_MOMENT_START, update_pb2.EVALUATION_MOMENT_END)
            ],
            blob_sha256=bytes([255]) * 32,
            blob_size=blob_size,
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

    listener = await asyncio.start_server(count, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        async with transport_to(f"http://127.0.0.1:{port}") as transport:
            await transport.put_update(123, 4567, header, bytes(blob_size))

    assert await read <= payload + 700


async def test_the_secret_is_in_no_message(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    told: list[str] = []
    async with transport_to(
        "http://127.0.0.1:1", backoff=ENDS_AFTER_ONE_S, on_retry=lambda reason, delay_s, attempt: told.append(reason)
    ) as transport:
        with pytest.raises(Unreachable) as caught:
            await transport.check_in(check_in())

    for text in (*told, str(caught.value), caplog.text, repr(transport)):
        assert "c3Nzc3Nzc3" not in text and "ssss" not in text


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


def test_a_ca_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("not a certificate")
    with pytest.raises(Untrusted, match=r"ca\.pem cannot be read as certificates"):
        HttpTransport("https://127.0.0.1", SECRET, ca=tmp_path / "ca.pem")


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
        with pytest.raises(Untrusted, match="certificate is not trusted"):
            await wary.check_in(check_in())

    assert answer.WhichOneof("result") == "finished"


async def test_plain_http_to_a_port_of_https_is_answered_by_the_right_address(tmp_path: Path) -> None:
    async with serving(_never, _tls(tmp_path)) as url:
        async with transport_to(url.replace("https:", "http:")) as transport:
            with pytest.raises(BadResponse, match=f"the server speaks HTTPS: use {url}$"):
                await transport.check_in(check_in())


async def test_https_to_a_port_of_plain_http_is_answered_by_the_cause(tmp_path: Path) -> None:
    _tls(tmp_path)
    async with serving(_never) as url:
        async with transport_to(url.replace("http:", "https:"), ca=tmp_path / "ca.pem") as transport:
            with pytest.raises(BadResponse, match=f"the server speaks plain HTTP there: .* {url}$"):
                await transport.check_in(check_in())


async def test_evaluations_failures_and_forgetting_reach_their_addresses(bundle: Bundle) -> None:
    server = FakeServer(bundle, fedavg_plan(), answer=assignment_pb2.ANSWER_EVALUATION)
    header = wire.frame_update(update_pb2.UpdateHeader(protocol=1))
    async with server, transport_to(server.url) as transport:
        await transport.enrol(TOKEN, enrolment_pb2.Capabilities())
        await transport.put_evaluation(7, 1, header)
        failure = update_pb2.FailureRequest(protocol=1, reason=update_pb2.FAILURE_REASON_POLICY)
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
