"""The protocol over HTTP: one connection pool, one credential, every response checked."""

import asyncio
import ssl
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from http import HTTPStatus
from io import BytesIO
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO, TypeVar
from urllib.parse import urlsplit

import aiohttp
from google.protobuf.message import Message

from fedlens_edge_client.client.retrying import Backoff, OnRetry, TryAgain, repeat
from fedlens_edge_client.client.transport import Blobs
from fedlens_edge_client.errors import BadResponse, Refused, Untrusted
from fedlens_proto import keyed_hash, wire
from fedlens_proto.errors import WireError
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, error_pb2, update_pb2

MAX_RESPONSE_BYTES = 1 << 20
MAX_ERROR_BYTES = 64 << 10
MAX_SERVER_WAIT_S = 3600.0
CONNECT_TIMEOUT_S = 15.0
SILENCE_TIMEOUT_S = 60.0
_CHUNK_BYTES = 256 << 10
_BLOB_TYPE = "application/octet-stream"
# OpenSSL's reasons for refusing bytes that are not TLS.
_PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST")
# aiohttp adds these by default; the protocol does not need them.
_NO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding")

M = TypeVar("M", bound=Message)


class HttpTransport:
    """A `Transport` to a server's address."""

    def __init__(
        self,
        server: str,
        secret: bytes,
        *,
        ca: Path | None = None,
        ssl_context: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        """Remember the settings; the first call connects.

        Args:
            server: Such as `https://fl.example.org:8443`; plain HTTP is allowed to this machine only.
            secret: 32 bytes, from which the client's id follows.
            ca: Certificates (PEM) to trust instead of the system's.
            ssl_context: Replaces the one made from `ca`, so that many transports can share it.
            backoff: The waits between attempts.
            on_retry: Called with the reason, the wait in seconds and the number of attempts so far.

        Raises:
            Untrusted: `server` is neither HTTPS nor on this machine, or `ca` cannot be read.
        """
        self._base = _checked(server)
        self._id = keyed_hash.client_id(secret)
        self._headers = {"Authorization": "Bearer " + urlsafe_b64encode(secret).rstrip(b"=").decode()}
        self._ssl = (ssl_context or trust(ca)) if self._base.startswith("https:") else None
        self._backoff = backoff or Backoff()
        self._on_retry = on_retry
        self._session: aiohttp.ClientSession | None = None

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        """As `Transport.enrol`."""
        request = enrolment_pb2.EnrolRequest(
            protocol=wire.PROTOCOL, enrolment_token=token, client_id=self._id, capabilities=capabilities
        )
        return await self._call("POST", "/v1/clients", request.SerializeToString(), enrolment_pb2.EnrolResponse)

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As `Transport.check_in`."""
        body = request.SerializeToString()
        return await self._call(
            "POST", "/v1/check-in", body, check_in_pb2.CheckInResponse, hold_s=request.hold_ms / 1000
        )

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        """As `Transport.fetch`."""

        async def attempt() -> None:
            with into.open("ab") as file:
                await self._fetch(sha256, file, max_bytes)

        await repeat(attempt, self._backoff, self._on_retry)

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        """As `Transport.put_update`."""
        path = f"/v1/tasks/{task}/rounds/{round_number}/update"
        return await self._call("PUT", path, header, update_pb2.Receipt, blobs=blobs)

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        """As `Transport.put_evaluation`."""
        return await self._call("PUT", f"/v1/tasks/{task}/rounds/{round_number}/evaluation", header, update_pb2.Receipt)

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        """As `Transport.report_failure`."""
        path = f"/v1/tasks/{task}/rounds/{round_number}/failure"
        await self._call("POST", path, request.SerializeToString(), update_pb2.FailureResponse)

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        """As `Transport.forget`."""
        body = enrolment_pb2.ForgetRequest(protocol=wire.PROTOCOL).SerializeToString()
        return await self._call("DELETE", "/v1/clients/self", body, enrolment_pb2.ForgetResponse)

    async def close(self) -> None:
        """As `Transport.close`."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _call(
        self, method: str, path: str, body: bytes, kind: type[M], *, blobs: Blobs = (), hold_s: float = 0.0
    ) -> M:
        async def attempt() -> M:
            headers = {"Content-Type": wire.MEDIA_TYPE}
            data: bytes | AsyncIterator[bytes] = b"".join([body, *(blob for blob in blobs if isinstance(blob, bytes))])
            # Not opened by what sends them, which after a cut connection ends only with the garbage collector.
            with ExitStack() as files:
                if any(isinstance(blob, Path) for blob in blobs):
                    opened = [files.enter_context(b.open("rb")) if isinstance(b, Path) else BytesIO(b) for b in blobs]
                    headers["Content-Length"] = str(len(body) + sum(file.seek(0, SEEK_END) for file in opened))
                    data = _stream(body, opened)
                async with self._request(method, path, headers, data, hold_s) as response:
                    if response.status != HTTPStatus.OK:
                        raise await _error(response)
                    return await _message(response, kind, MAX_RESPONSE_BYTES)

        return await repeat(attempt, self._backoff, self._on_retry)

    async def _fetch(self, sha256: bytes, file: BinaryIO, max_bytes: int) -> None:
        have = file.tell()
        headers = {"Range": f"bytes={have}-"} if have else {}
        async with self._request("GET", f"/v1/blobs/{sha256.hex()}", headers) as response:
            if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                file.truncate(0)
                raise TryAgain("the server has no such range; starting from the first byte", at_once=True)
            if response.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise await _error(response)
            _require_type(response, _BLOB_TYPE)
            if response.status == HTTPStatus.OK:
                file.truncate(0)
                have = 0
            elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                # Resuming from here would cause the same error again, as below.
                file.truncate(0)
                raise BadResponse(f"{response.url.path}: another range came back than the one asked for")
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                have += len(chunk)
                if have > max_bytes:
                    file.truncate(0)
                    raise BadResponse(f"{response.url.path}: more than the {max_bytes} bytes that were announced")
                file.write(chunk)

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        data: bytes | AsyncIterator[bytes] | None = None,
        hold_s: float = 0.0,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=True if self._ssl is None else self._ssl),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_NO_HEADERS,
                auto_decompress=False,
                headers=self._headers,
            )
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_TIMEOUT_S + hold_s
        )
        url = self._base + path
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError) as error:
            raise await _from_network(error, self._base) from error


def trust(ca: Path | None) -> ssl.SSLContext:
    """A TLS context that trusts the certificates in `ca` (PEM), or else the system's.

    Raises:
        Untrusted: The file cannot be read as certificates.
    """
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise Untrusted(f"{ca} cannot be read as certificates (PEM): {error}") from error


async def _stream(header: bytes, blobs: Sequence[BinaryIO]) -> AsyncIterator[bytes]:
    yield header
    for blob in blobs:
        blob.seek(0)
        while chunk := await asyncio.to_thread(blob.read, _CHUNK_BYTES):
            yield chunk


async def _message(response: aiohttp.ClientResponse, kind: type[M], limit: int) -> M:
    _require_type(response, wire.MEDIA_TYPE)
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > limit:
            raise BadResponse(f"{response.url.path}: a response of more than {limit} bytes")
    try:
        return wire.decode(kind, bytes(body))
    except WireError as error:
        raise BadResponse(f"{response.url.path}: {error}") from error


async def _error(response: aiohttp.ClientResponse) -> Exception:
    """The exception for a response that is no success."""
    status, path = response.status, response.url.path
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return BadResponse(f"{path}: redirected ({status}), which is not followed; give the server's own address")
    if status < HTTPStatus.BAD_REQUEST:
        return BadResponse(f"{path}: status {status} is not part of the protocol")
    if response.content_type != wire.MEDIA_TYPE:
        return _foreign_error(status, path)
    error = await _message(response, error_pb2.Error, MAX_ERROR_BYTES)
    after_s = min(error.retry_after_ms / 1000, MAX_SERVER_WAIT_S)
    if error.retry == error_pb2.RETRY_NOW:
        return TryAgain(f"{error.code}: {error.message}", after_s, at_once=True)
    if error.retry == error_pb2.RETRY_LATER:
        return TryAgain(f"{error.code}: {error.message}", after_s)
    return Refused(error.code, error.message)


def _foreign_error(status: int, path: str) -> Exception:
    """The exception for an error page of a proxy, or of another program at this address."""
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return TryAgain(f"status {status} from something between here and the server")
    return BadResponse(f"{path}: status {status}, not from a FedLens server; check the address")


def _require_type(response: aiohttp.ClientResponse, wanted: str) -> None:
    if response.content_type != wanted or "Content-Encoding" in response.headers:
        raise BadResponse(
            f"{response.url.path}: a response of type {response.content_type}; not from a FedLens server, "
            "check the address"
        )


async def _from_network(error: Exception, server: str) -> Exception:
    """The exception for a failure below HTTP."""
    # An HTTPS server closes a plain HTTP connection without a response, as a stopping server does.
    is_open = not isinstance(error, aiohttp.ClientConnectorError | TimeoutError)
    if not server.startswith("https:") and is_open and await _speaks_tls(server):
        return BadResponse(f"the server speaks HTTPS: use https{server.removeprefix('http')}")
    if isinstance(error, aiohttp.ClientConnectorSSLError) and error.os_error.reason in _PLAIN:
        return BadResponse(
            f"{server} is an HTTPS address, but the server speaks plain HTTP there: give its HTTPS port or, "
            f"on the server's own machine, http{server.removeprefix('https')}"
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Untrusted(
            f"the server's certificate is not trusted: {error.certificate_error}; give its CA with --ca FILE"
        )
    if isinstance(error, aiohttp.ClientResponseError):
        return BadResponse(f"the response is not HTTP: {error.message}")
    if isinstance(error, aiohttp.SocketTimeoutError):
        return TryAgain("no response in time")
    return TryAgain(f"connection failed: {error}")


async def _speaks_tls(server: str) -> bool:
    """Try a TLS handshake at a plain HTTP address, without sending data or trusting the server."""
    parts = urlsplit(server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _checked(server: str) -> str:
    try:
        parts = urlsplit(server)
        parts.port  # noqa: B018  (raises for one that is no number up to 65535)
    except ValueError as error:
        raise Untrusted(f"server {server!r} is no address: {error}; it looks like https://host:8443") from error
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment:
        raise Untrusted(f"server {server!r} is no address; it looks like https://host:8443")
    if parts.username is not None or parts.password is not None:
        raise Untrusted("the server's address must not hold a user or a password")
    if parts.scheme == "http" and not wire.is_loopback(parts.hostname):
        raise Untrusted(f"server {server!r}: plain HTTP would show the secret to others on the way; use https://")
    return server.rstrip("/")
