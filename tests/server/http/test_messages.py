"""Requests that cannot be read: each gets an `Error` message, none a traceback."""

import logging
from collections.abc import AsyncIterator

import pytest

from fedlens_proto.v1 import check_in_pb2, error_pb2
from fedlens_proto.wire import MEDIA_TYPE
from fedlens_server.http.bodies import MAX_BODY_BYTES
from tests.server.http.running import Server, connected, head

CHECK_IN = check_in_pb2.CheckInRequest(protocol=1).SerializeToString()
MESSAGE_ENDPOINTS = {
    "enrol": ("POST", "/v1/clients"),
    "forget": ("DELETE", "/v1/clients/self"),
    "check-in": ("POST", "/v1/check-in"),
    "failure": ("POST", "/v1/tasks/1/rounds/1/failure"),
    "evaluation": ("PUT", "/v1/tasks/1/rounds/1/evaluation"),
}


async def test_another_content_type_or_a_content_encoding_is_415(server: Server) -> None:
    client, assignment = await server.member()
    kinds = ["", "application/json", "application/x-protobuf", f"{MEDIA_TYPE}; charset=x"]
    encodings = ["gzip", "deflate", "br", "identity"]

    typed = [await client.send("POST", "/v1/check-in", CHECK_IN, Content_Type=kind) for kind in kinds]
    typed.append(await client.upload(assignment, Content_Type="application/octet-stream"))
    encoded = [await client.send("POST", "/v1/check-in", CHECK_IN, Content_Encoding=each) for each in encodings]

    assert [answer.outcome for answer in typed + encoded] == [(415, "wrong-media-type")] * 9
    assert all(MEDIA_TYPE in answer.error.message for answer in typed)


async def test_more_bytes_than_the_table_allows_are_413_with_and_without_a_length(server: Server) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield bytes(1024)

    client = await server.client(1)
    too_long = {endpoint: bytes(most + 1) for endpoint, most in MAX_BODY_BYTES.items()}

    answers = [await client.send(*where, too_long[endpoint]) for endpoint, where in MESSAGE_ENDPOINTS.items()]
    answers.append(await client.send("POST", "/v1/check-in", endless()))
    answers.append(await server.admin("POST", "/v1/admin/tasks", too_long["create-task"]))

    assert [answer.outcome for answer in answers] == [(413, "too-large")] * 7


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x0a\x7fcut off", b"\x08\x02", b"\x00\x00\x00\x00"])
async def test_a_message_that_cannot_be_read_is_400(server: Server, body: bytes) -> None:
    client = await server.client(1)

    answers = [await client.send(method, path, body) for method, path in MESSAGE_ENDPOINTS.values()]

    assert [answer.outcome for answer in answers] == [(400, "malformed")] * 5
    assert {answer.error.retry for answer in answers} == {error_pb2.RETRY_NEVER}


@pytest.mark.parametrize(("protocol", "found"), [(0, "unset"), (2, "2"), (4_294_967_295, "4294967295")])
async def test_another_protocol_version_is_400_and_named(server: Server, protocol: int, found: str) -> None:
    client = await server.client(1)
    message = check_in_pb2.CheckInRequest(protocol=protocol)

    answer = await client.send("POST", "/v1/check-in", message.SerializeToString())

    assert answer.outcome == (400, "malformed")
    assert answer.error.message == f"CheckInRequest.protocol is {found}; this version speaks 1"


async def test_unknown_fields_are_ignored(server: Server) -> None:
    client = await server.client(1)
    field_1000_is_7 = b"\xc0\x3e\x07"

    answer = await client.send("POST", "/v1/check-in", CHECK_IN + field_1000_is_7)

    assert answer.status == 200


async def test_the_largest_numbers_are_read_and_found_unknown(server: Server) -> None:
    client = await server.client(1)
    message = check_in_pb2.CheckInRequest(protocol=1, task=2**64 - 1, num_examples=2**64 - 1)

    answer = await client.send("POST", "/v1/check-in", message.SerializeToString())

    assert answer.outcome == (404, "unknown")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/check-in"),
        ("PUT", "/v1/clients"),
        ("GET", "/v1/blobs/xyz"),
        ("GET", "/v1/blobs/" + "0" * 64),
        ("PUT", "/v1/tasks/99/rounds/1/update"),
        ("PUT", "/v1/tasks/1/rounds/99999999999999999999/update"),
        ("POST", "/v1/tasks/x/rounds/1/failure"),
        ("GET", "/v1/blobs/..%2f..%2fetc%2fpasswd"),
    ],
)
async def test_what_is_not_there_is_404(server: Server, method: str, path: str) -> None:
    client = await server.client(1)

    answer = await client.send(method, path, b"")

    assert answer.outcome == (404, "unknown")


@pytest.mark.parametrize("path", ["/", "/tasks/2", "/v2/check-in", "/%ff%00", "/metrics"])
async def test_outside_of_the_api_an_error_is_a_text(server: Server, path: str) -> None:
    answer = await server.request("GET", server.url + path)

    assert (answer.status, answer.headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
    assert answer.body.startswith(b"there is no GET /")


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/check-in HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/check-in HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: \x85S3CRET\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer S3CRET\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_http_are_400_and_not_logged(
    server: Server, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async with connected(server.url) as (reader, writer):
        writer.write(raw)
        answer = await reader.read()

    headers, _, body = answer.partition(b"\r\n\r\n")
    assert headers.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))
    assert MEDIA_TYPE.encode() in headers
    assert error_pb2.Error.FromString(body).code == "malformed"
    assert "S3CRET" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_body_that_is_cut_off_is_no_error_of_the_server(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = await server.client(1)
    announced = head(client.bearer, "/v1/check-in", 100, method="POST")
    chunked = announced.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")

    for request in (announced + b"abc", chunked + b"5\r\nab"):
        async with connected(server.url) as (_, writer):
            writer.write(request)
            await writer.drain()

    assert (await client.check_in()).WhichOneof("result") == "wait"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
