"""A client of the admin API over HTTP, with the standard library alone."""

import http.client
import os
import socket
import ssl
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from google.protobuf.message import Message

from fedlens.errors import FedlensError
from fedlens_proto import wire
from fedlens_proto.errors import WireError
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2, admission_pb2, error_pb2

TOKEN_VARIABLE = "FEDLENS_ADMIN_TOKEN"
PROFILE_KEYS = ("url", "ca", "token_file")
TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 20

M = TypeVar("M", bound=Message)


class AdminError(FedlensError):
    """The server refused an operator's request or could not be reached; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A server's address and the operator's token."""

    url: str
    token: str
    ca: Path | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the profile that `fedlens serve --init` writes; $FEDLENS_ADMIN_TOKEN replaces its token.

        Raises:
            AdminError: The file cannot be read, a key is missing, unknown or not a text, or others on the way would see
                the token.
        """
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise AdminError(f"{path}: cannot be read: {error.strerror}; name a profile with --admin") from error
        except ValueError as error:
            raise AdminError(f"{path}: not valid TOML: {error}") from error
        for key, value in raw.items():
            if key not in PROFILE_KEYS:
                raise AdminError(f"{path}: {key}: unknown key; allowed are {', '.join(PROFILE_KEYS)}")
            if not isinstance(value, str) or not value:
                raise AdminError(f"{path}: {key}: found {value!r}, must be a text that is not empty")
        url = raw.get("url")
        try:
            parts = urlsplit(url or "")
            _ = parts.port  # an error where it is no number, or above 65535
        except ValueError:
            parts = urlsplit("")  # refused below
        is_network = parts.scheme in ("http", "https") and parts.hostname
        is_socket = parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/")
        if url is None or not (is_network or is_socket):
            allowed = "must be such as https://127.0.0.1:8444 or unix:/run/fedlens/operators.sock"
            raise AdminError(f"{path}: url: found {url!r}, {allowed}")
        if parts.scheme == "http" and not wire.is_loopback(parts.hostname or ""):
            raise AdminError(
                f"{path}: url: found {url!r}; plain HTTP would show the operators' token to others on the way; use https://"
            )
        ca = path.parent / raw["ca"] if "ca" in raw else None
        if ca is not None and not ca.is_file():
            raise AdminError(f"{path}: ca: found {raw['ca']!r}, but there is no such file")
        return cls(url=url, token=_token(path, raw.get("token_file")), ca=ca)


class AdminClient:
    """The admin API of one server."""

    def __init__(self, profile: Profile) -> None:
        """Each call opens a connection of its own."""
        self._profile = profile
        self._address = urlsplit(profile.url)

    def create_task(self, name: str, bundles: list[Bundle], settings_json: str) -> admin_pb2.Task:
        """Upload missing parts of the bundles, then create the task; the same content again gives the same task.

        Raises:
            AdminError: The server refuses, or cannot be reached. All other calls raise it, too.
        """
        for bundle in bundles:
            for part in bundle.manifest.parts:
                self._put_part(part.sha256, bundle.part(part.sha256))
        request = admin_pb2.CreateTaskRequest(
            protocol=wire.PROTOCOL,
            name=name,
            manifests=[bundle.raw for bundle in bundles],
            settings_json=settings_json,
            statements=[bundle.statement for bundle in bundles],
        )
        return self._call(admin_pb2.Task, "POST", "/v1/admin/tasks", request)

    def tasks(self) -> list[admin_pb2.Task]:
        """All tasks, ascending by id."""
        return list(self._call(admin_pb2.ListTasksResponse, "GET", "/v1/admin/tasks").tasks)

    def show(self, task: str) -> admin_pb2.ShowTaskResponse:
        """A task, by name or id, with its rounds."""
        return self._call(admin_pb2.ShowTaskResponse, "GET", _task_path(task))

    def delete(self, task: str) -> None:
        """Delete a task that has ended."""
        self._done("DELETE", _task_path(task))

    def control(self, task: str, action: str) -> admin_pb2.Task:
        """Have a task `pause`, `resume` or `stop`, or end its open round now: `deadline`."""
        return self._call(admin_pb2.Task, "POST", _task_path(task, f"/{action}"))

    def change(self, task: str, settings_json: str) -> admin_pb2.Task:
        """Change settings of a task that goes on."""
        request = admin_pb2.ChangeTaskRequest(protocol=wire.PROTOCOL, settings_json=settings_json)
        return self._call(admin_pb2.Task, "POST", _task_path(task, "/settings"), request)

    def renew(self, task: str, statements: Sequence[bytes]) -> admin_pb2.Task:
        """Have a task that goes on take newer signed statements about its bundles."""
        request = admin_pb2.RenewTaskRequest(protocol=wire.PROTOCOL, statements=statements)
        return self._call(admin_pb2.Task, "POST", _task_path(task, "/statements"), request)

    def to_round(self, task: str, action: str, number: int) -> admin_pb2.Task:
        """Have a task `rollback` to a committed round, or `release` its model, 0: that of the last one."""
        request = admin_pb2.RoundRequest(protocol=wire.PROTOCOL, round=number)
        return self._call(admin_pb2.Task, "POST", _task_path(task, f"/{action}"), request)

    def model(self, task: str) -> admin_pb2.TaskModelResponse:
        """The digests of the task's global model."""
        return self._call(admin_pb2.TaskModelResponse, "GET", _task_path(task, "/model"))

    def clients(self, limit: int, **wanted: str | float) -> Iterator[admission_pb2.EnrolledClient]:
        """At most so many clients, ascending by id; `wanted` are filters of the endpoint."""
        after: dict[str, str] = {}
        while limit > 0:
            query = urlencode(wanted | {"limit": min(limit, 1000)} | after)
            page = self._call(admission_pb2.ListClientsResponse, "GET", f"/v1/admin/clients?{query}")
            yield from page.clients
            limit -= len(page.clients)
            if not page.has_more:
                return
            after = {"after": page.clients[-1].id.hex()}

    def show_client(self, client_hex: str) -> admission_pb2.ShowClientResponse:
        """All that the server knows of a client."""
        return self._call(admission_pb2.ShowClientResponse, "GET", f"/v1/admin/clients/{quote(client_hex, safe='')}")

    def ban(self, kind: str, name: str, reason: str) -> int:
        """Shut a client out by its id, or all of a token by its name; `kind` is `clients` or `tokens`."""
        request = admission_pb2.BanRequest(protocol=wire.PROTOCOL, reason=reason)
        path = f"/v1/admin/{kind}/{quote(name, safe='')}/ban"
        return self._call(admission_pb2.BanResponse, "POST", path, request).clients

    def unban(self, kind: str, name: str) -> int:
        """Let in again whom `ban` has shut out."""
        path = f"/v1/admin/{kind}/{quote(name, safe='')}/unban"
        return self._call(admission_pb2.BanResponse, "POST", path).clients

    def create_token(
        self,
        name: str,
        role: admission_pb2.TokenRole,
        *,
        max_uses: int = 0,
        per_minute: int = 0,
        expires_in_s: float = 0,
    ) -> admission_pb2.CreateTokenResponse:
        """Make a token, which no other call tells; 0 is the server's default, for `expires_in_s` never."""
        request = admission_pb2.CreateTokenRequest(
            protocol=wire.PROTOCOL,
            name=name,
            role=role,
            max_uses=max_uses,
            per_minute=per_minute,
            expires_in_s=expires_in_s,
        )
        return self._call(admission_pb2.CreateTokenResponse, "POST", "/v1/admin/tokens", request)

    def tokens(self) -> list[admission_pb2.Token]:
        """All tokens, in the order in which they were made."""
        return list(self._call(admission_pb2.ListTokensResponse, "GET", "/v1/admin/tokens").tokens)

    def revoke_token(self, name: str) -> None:
        """Let nobody else in by a token."""
        self._done("POST", f"/v1/admin/tokens/{quote(name, safe='')}/revoke")

    def audit(self, within_s: float = 0) -> list[admission_pb2.AuditEntry]:
        """The changes by operators of the last seconds, the latest first; 0: all that are kept."""
        found: list[admission_pb2.AuditEntry] = []
        while True:
            query = {"within_s": within_s} if within_s else {}
            query |= {"before": found[-1].id} if found else {}
            page = self._call(admission_pb2.ListAuditResponse, "GET", f"/v1/admin/audit?{urlencode(query)}").entries
            if not page:
                return found
            found += page

    def backup(self, keep: int) -> admin_pb2.BackupResponse:
        """Have the server make a backup on its own disk, however long it takes; 0 keeps all older ones."""
        request = admin_pb2.BackupRequest(protocol=wire.PROTOCOL, keep=keep)
        return self._call(admin_pb2.BackupResponse, "POST", "/v1/admin/backups", request, timeout_s=None)

    def fetch(self, digest: bytes, out: BinaryIO) -> None:
        """Write a blob to `out` and check its digest.

        Raises:
            AdminError: As `create_task`; or `out` cannot be written; or the blob arrived damaged, and `out` holds a
                part of it.
        """
        seen = sha256()
        with self._request("GET", f"/v1/admin/blobs/{digest.hex()}") as answer:
            while chunk := answer.read(_CHUNK_BYTES):
                seen.update(chunk)
                try:
                    out.write(chunk)
                except OSError as error:  # else it would be told as one of the connection
                    raise AdminError(f"the blob cannot be written: {error.strerror or error}") from error
        if seen.digest() != digest:
            raise AdminError(f"blob {digest.hex()} arrived damaged or cut short; try again")

    def _put_part(self, digest: bytes, path: Path) -> None:
        address = f"/v1/admin/parts/{digest.hex()}"
        with self._request("HEAD", address, missing_is_fine=True) as answer:
            if answer.status == http.HTTPStatus.OK:
                return
        with path.open("rb") as file, self._request("PUT", address, file, os.fstat(file.fileno()).st_size):
            pass

    def _done(self, method: str, path: str) -> None:
        """Have the server do what it answers without a message."""
        with self._request(method, path) as answer:
            if answer.status != http.HTTPStatus.NO_CONTENT:
                raise AdminError(_foreign(self._profile.url, answer))

    def _call(
        self,
        kind: type[M],
        method: str,
        path: str,
        message: Message | None = None,
        timeout_s: float | None = TIMEOUT_S,
    ) -> M:
        body = b"" if message is None else message.SerializeToString(deterministic=True)
        with self._request(method, path, body, timeout_s=timeout_s) as answer:
            try:
                return wire.decode(kind, answer.read())
            except WireError as error:
                raise AdminError(f"{self._profile.url} gave a response that is not FedLens': {error}") from error

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        body: bytes | BinaryIO = b"",
        size: int | None = None,
        missing_is_fine: bool = False,
        timeout_s: float | None = TIMEOUT_S,
    ) -> Iterator[http.client.HTTPResponse]:
        url, is_plain = self._profile.url, self._address.scheme == "http"
        connection = self._connect(timeout_s)
        headers = {
            "Authorization": f"Bearer {self._profile.token}",
            "Content-Type": wire.MEDIA_TYPE,
            "Content-Length": str(len(body) if isinstance(body, bytes) else size),
        }
        try:
            below = "" if self._address.scheme == "unix" else self._address.path.rstrip("/")
            connection.request(method, below + path, body or None, headers)
            answer = connection.getresponse()
            if answer.status >= 300 and not (missing_is_fine and answer.status == http.HTTPStatus.NOT_FOUND):
                raise AdminError(_refusal(url, answer))
            yield answer
        except ssl.SSLCertVerificationError as error:
            raise AdminError(
                f"the certificate of {url} is not trusted: {error.verify_message}; "
                "name the CA that issued it as `ca` in the profile"
            ) from error
        except ssl.SSLError as error:
            raise AdminError(
                f"{url} does not speak HTTPS ({error.reason}); where the server speaks plain HTTP, let `url` of the "
                "profile begin with http://"
            ) from error
        except TimeoutError as error:
            raise AdminError(f"{url} did not answer within {TIMEOUT_S:.0f} s") from error
        except http.client.HTTPException as error:
            if isinstance(error, http.client.IncompleteRead):
                raise AdminError(f"{url} closed the connection in the middle of its answer") from error
            is_cut = isinstance(error, http.client.RemoteDisconnected)
            raise AdminError(
                f"{url} "
                + ("closed the connection before it had answered" if is_cut else "gave an answer that is not HTTP")
                + ("; where the server speaks HTTPS, let `url` of the profile begin with https://" if is_plain else "")
            ) from error
        except OSError as error:
            raise AdminError(f"{url} cannot be reached: {error.strerror or error}; is the server running?") from error
        finally:
            connection.close()

    def _connect(self, timeout_s: float | None) -> http.client.HTTPConnection:
        if self._address.scheme == "unix":
            return _SocketConnection(self._address.path, timeout_s)
        host, port = self._address.hostname or "", self._address.port
        if self._address.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        try:
            context = ssl.create_default_context(cafile=self._profile.ca)
        except ssl.SSLError as error:
            raise AdminError(f"{self._profile.ca} is no certificate (PEM)") from error
        except OSError as error:
            raise AdminError(f"{self._profile.ca}: cannot be read: {error.strerror}") from error
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


class _SocketConnection(http.client.HTTPConnection):
    """A connection through a Unix socket."""

    def __init__(self, path: str, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _token(profile: Path, token_file: str | None) -> str:
    if token := os.environ.get(TOKEN_VARIABLE, "").strip():
        return _checked(token, TOKEN_VARIABLE)
    if token_file is None:
        raise AdminError(f"{profile}: there is no token_file, and {TOKEN_VARIABLE} is not set; set one of them")
    path = profile.parent / token_file
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise AdminError(f"{profile}: token_file: {path} cannot be read; set {TOKEN_VARIABLE} instead?") from error
    return _checked(token, f"{profile}: token_file: {path}")


def _checked(token: str, where: str) -> str:
    if not wire.is_token(token):
        raise AdminError(f"{where}: holds no token, which is one line of printable ASCII without spaces")
    return token


def _task_path(task: str, rest: str = "") -> str:
    return f"/v1/admin/tasks/{quote(task, safe='')}{rest}"


def _foreign(url: str, answer: http.client.HTTPResponse) -> str:
    return f"{url} answered {answer.status} {answer.reason}, which is no answer of FedLens; is the url right?"


def _refusal(url: str, answer: http.client.HTTPResponse) -> str:
    try:
        fault = wire.decode(error_pb2.Error, answer.read())
    except WireError:
        fault = error_pb2.Error()
    if not fault.code:
        return _foreign(url, answer)
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        return f"{url} does not accept the token: {fault.message}"
    return f"{url} refused ({fault.code}): {fault.message}"
