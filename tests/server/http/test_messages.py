"""Requests that cannot be read: each gets an `Error` message, none a traceback."""

import asyncio
import logging
from urllib.parse import urlsplit

import pytest

from fedlens_proto.v1 import admin_pb2, check_in_pb2, error_pb2
from fedlens_proto.wire import MEDIA_TYPE
from fedlens_server.http.bodies import MAX_BODY_BYTES
from tests.server.bundles import tiny_bundle
from tests.server.http.running import Client, Server, trained, update

CHECK_IN = check_in_pb2.CheckInRequest(protocol=1).SerializeToString()
MESSAGE_ENDPOINTS = {
    "enrol": ("POST", "/v1/clients"),
    "forget": ("DELETE", "/v1/clients/self"),
    "check-in": ("POST", "/v1/check-in"),
    "failure": ("POST", "/v1/tasks/1/rounds/1/failure"),
    "evaluation": ("PUT", "/v1/tasks/1/rounds/1/evaluation"),
}


@pytest.mark.parametrize("content_type", ["", "application/json", "application/x-protobuf", f"{MEDIA_TYPE}; charset=x"])
async def test_another_content_type_is_415(server: Server, content_type: str) -> None:
    client = await server.client(1)

    answer = await client.send("POST", "/v1/check-in", CHECK_IN, Content_Type=content_type)

    assert answer.outcome == (415, "wrong-media-type")
    assert MEDIA_TYPE in answer.error.message


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity"])
async def test_a_content_encoding_is_415(server: Server, encoding: str) -> None:
    client = await server.client(1)

    answer = await client.send("POST", "/v1/check-in", CHECK_IN, Content_Encoding=encoding)

    assert answer.outcome == (415, "wrong-media-type")


async def test_an_update_needs_the_content_type_too(server: Server) -> None:
    await server.create(tiny_bundle(), population=1)
    client = await server.client(1)
    assignment = await client.assignment()

    answer = await client.upload(assignment, update(assignment, trained()), Content_Type="application/octet-stream")

    assert answer.outcome == (415, "wrong-media-type")


@pytest.mark.parametrize("endpoint", MESSAGE_ENDPOINTS)
async def test_more_bytes_than_the_table_allows_are_413(server: Server, endpoint: str) -> None:
    method, path = MESSAGE_ENDPOINTS[endpoint]
    client = await server.client(1)

    answer = await client.send(method, path, bytes(MAX_BODY_BYTES[endpoint] + 1))

    assert answer.outcome == (413, "too-large")


async def test_more_bytes_than_the_table_allows_are_413_without_a_length_too(server: Server) -> None:
    async def endless():  # type: ignore[no-untyped-def]
        for _ in range(8):
            yield bytes(1024)

    client = await server.client(1)

    answer = await client.send("POST", "/v1/check-in", endless())

    assert answer.outcome == (413, "too-large")


async def test_an_oversized_task_is_413(server: Server) -> None:
    answer = await server.admin("POST", "/v1/admin/tasks", bytes(MAX_BODY_BYTES["create-task"] + 1))

    assert answer.outcome == (413, "too-large")


@pytest.mark.parametrize("endpoint", MESSAGE_ENDPOINTS)
@pytest.mark.parametrize("body", [b"", b"\xff", b"\x0a\x7fcut off", b"\x08\x02", b"\x00\x00\x00\x00"])
async def test_a_message_that_cannot_be_read_is_400(server: Server, endpoint: str, body: bytes) -> None:
    method, path = MESSAGE_ENDPOINTS[endpoint]
    client = await server.client(1)

    answer = await client.send(method, path, body)

    assert answer.outcome == (400, "malformed")
    assert answer.error.retry == error_pb2.RETRY_NEVER


@pytest.mark.parametrize(("protocol", "found"), [(0, "unset"), (2, "2"), (4_294_967_295, "4294967295")])
async def test_another_protocol_version_is_400_and_named(server: Server, protocol: int, found: str) -> None:
    client = await server.client(1)

    answer = await client.send(
        "POST", "/v1/check-in", check_in_pb2.CheckInRequest(protocol=protocol).SerializeToString()
    )

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
        ("GET", "/"),
        ("GET", "/v1/check-in"),
        ("PUT", "/v1/clients"),
        ("POST", "/v2/check-in"),
        ("GET", "/v1/blobs/xyz"),
        ("GET", "/v1/blobs/" + "0" * 64),
        ("PUT", "/v1/tasks/99/rounds/1/update"),
        ("PUT", "/v1/tasks/1/rounds/99999999999999999999/update"),
        ("POST", "/v1/tasks/x/rounds/1/failure"),
        ("GET", "/v1/blobs/..%2f..%2fetc%2fpasswd"),
        ("GET", "/%ff%00"),
    ],
)
async def test_what_is_not_there_is_404(server: Server, method: str, path: str) -> None:
    client = await server.client(1)

    answer = await client.send(method, path, b"")

    assert answer.outcome == (404, "unknown")


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/check-in HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/check-in HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer S3CRET\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_http_are_400_and_not_logged(
    server: Server, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    answer = await _exchange(server, raw)

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400") or head.startswith(b"HTTP/1.0 400")
    assert MEDIA_TYPE.encode() in head
    assert error_pb2.Error.FromString(body).code == "malformed"
    assert "S3CRET" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_body_that_is_cut_off_is_no_error_of_the_server(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(server, bytes(32))
    await client.enrol()
    head = f"POST /v1/check-in HTTP/1.1\r\nHost: x\r\nAuthorization: {client.bearer}\r\nContent-Type: {MEDIA_TYPE}\r\n"

    await _exchange(server, head.encode() + b"Content-Length: 100\r\n\r\nabc", then_close=True)
    await _exchange(server, head.encode() + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", then_close=True)

    assert (await client.check_in()).WhichOneof("result") == "wait"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_damaged_manifest_is_400(server: Server) -> None:
    request = admin_pb2.CreateTaskRequest(protocol=1, name="x", manifests=[b"\xff"], settings_json="{}")

    answer = await server.admin("POST", "/v1/admin/tasks", request.SerializeToString())

    assert answer.outcome == (400, "malformed")


async def _exchange(server: Server, raw: bytes, then_close: bool = False) -> bytes:
    port = urlsplit(server.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        await writer.drain()
        return b"" if then_close else await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
