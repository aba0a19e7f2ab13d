"""The sections of `fedlens.toml`, with the meaning and the allowed values of each key.

A test compares the table of all keys in `docs/operate.md` with these models.
"""

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from sqlalchemy import URL

from fedlens_proto.errors import StatementRefused
from fedlens_proto.programs.statements import Publisher
from fedlens_server.store import address

_SHA256_HEX = re.compile(r"\A[0-9a-f]{64}\Z")
_PORT = "an integer from 0 to 65535; 0 takes any free port"
_HOST = "an address or host name"
_SOCKET = "the path of a file"
_NETWORKS = "a list of addresses and networks, such as `10.0.0.0/8`"
_BACKUPS = f"the path of a folder, or such as `{address.BUCKET_EXAMPLE}`"
_PUBLISHERS = "a list of paths of .pub files"
_FINGERPRINTS = "a list of texts of 32 pairs of hexadecimal digits in upper case, with colons between"
_PACKAGE = r"\A[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)+\z"
_FINGERPRINT = r"\A[0-9A-F]{2}(:[0-9A-F]{2}){31}\z"

DIGEST = "`printf %s TOKEN | sha256sum` gives its digest"

Network = IPv4Network | IPv6Network


def _relative_to_the_config(value: Path | None, info: ValidationInfo) -> Path | None:
    folder: Path = (info.context or {}).get("folder", Path())
    return None if value is None else folder / value.expanduser()


def _texts(value: object, allowed: str) -> list[str]:
    """A list of texts as the file has it; empty for the default."""
    if value == ():
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"found {value!r}, must be {allowed}")
    return value


def _key(meaning: str, allowed: str, **settings: Any) -> Any:
    return Field(description=meaning, json_schema_extra={"allowed": allowed}, **settings)


class Section(BaseModel):
    """A table of the file: no other keys, and no other types than those of its fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, validate_default=True, arbitrary_types_allowed=True
    )


class ListeningSection(Section):
    """The address on which a server listens: a host and a port, or a Unix socket."""

    host: str
    port: int
    socket: Path | None

    @field_validator("socket", mode="after")
    @classmethod
    def _socket_relative_to_the_config(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return _relative_to_the_config(value, info)

    @model_validator(mode="after")
    def _socket_or_host_and_port(self) -> Self:
        also = sorted(self.model_fields_set & {"host", "port"})
        if self.socket is not None and also:
            raise ValueError(f"found socket and {' and '.join(also)}; set socket, or host and port, but not both")
        return self


class AppSection(Section):
    """`[[server.apps]]`: an Android app to which links to join belong."""

    package: str = _key("Its name.", "the name of an Android package, such as `org.example.app`", pattern=_PACKAGE)
    certificates: tuple[Annotated[str, Field(pattern=_FINGERPRINT)], ...] = _key(
        "SHA-256 fingerprints of the certificates that sign it, as `keytool -list` and Google Play's console show.",
        _FINGERPRINTS,
        strict=False,
    )

    @field_validator("certificates", mode="after")
    @classmethod
    def _at_least_one(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # A `min_length` would also complain of a list whose only text is malformed: it counts the others.
        if not value:
            raise ValueError(f"found [], must be {_FINGERPRINTS}")
        return value


class ServerSection(ListeningSection):
    """`[server]`: the address for clients, the storage and how long it keeps what, and the code operators may name."""

    host: str = _key("Address for clients.", _HOST, default="127.0.0.1", min_length=1)
    port: int = _key("Port for clients.", _PORT, default=8443, ge=0, le=65535)
    socket: Path | None = _key(
        "Unix socket for clients, for a reverse proxy on this machine, instead of host and port; without TLS.",
        _SOCKET,
        default=None,
        strict=False,
    )
    certfile: Path | None = _key(
        "Certificate chain (PEM) for clients and operators.", "the path of a file", default=None, strict=False
    )
    keyfile: Path | None = _key(
        "Private key (PEM) of the certificate.", "the path of a file", default=None, strict=False
    )
    behind_proxy: bool = _key(
        "A reverse proxy terminates TLS, so plain HTTP is allowed on any address.", "true or false", default=False
    )
    trusted_proxies: tuple[Network, ...] = _key(
        "Reverse proxies whose `X-Forwarded-For` is believed.", _NETWORKS, default=()
    )
    accel_location: str | None = _key(
        "Internal location of nginx for the folder `blobs` of `server.data`; clients get files from there, by "
        "`X-Accel-Redirect`.",
        "a path that begins and ends with `/`",
        default=None,
        pattern="^/([A-Za-z0-9._-]+/)+$",
    )
    allow_method_modules: bool = _key(
        "Operators may name a method as `module:NAME`; the server then imports that module.",
        "true or false",
        default=False,
    )
    publishers: tuple[Publisher, ...] = _key(
        "Public keys of publishers, as `fedlens keys new` writes them. New tasks take bundles that one of them signed, "
        "and no others. Unset: any bundle.",
        _PUBLISHERS,
        default=(),
    )
    data: Path = _key(
        "Folder of the database and the blobs.", "the path of a folder", default=Path("data"), strict=False
    )
    database: URL | None = _key(
        "PostgreSQL database, instead of a file in `server.data`; its password is in PGPASSWORD or PGPASSFILE.",
        f"such as `{address.DATABASE_EXAMPLE}`",
        default=None,
    )
    blobs: address.Bucket | None = _key(
        "Bucket for blobs above 64 KiB, instead of files in `server.data`, which then holds copies of them.",
        f"such as `{address.BUCKET_EXAMPLE}`",
        default=None,
    )
    cache_bytes: int = _key(
        "Bytes of `server.data` for copies of blobs that are in a bucket. A round's should fit.",
        "an integer from 0",
        default=address.MAX_CACHE_BYTES,
        ge=0,
    )
    backups: Path | address.Bucket | None = _key(
        "Folder or bucket into which `fedlens backup` writes.",
        _BACKUPS,
        default=None,
    )
    retention_days: int = _key(
        "Days for which the results of single members are kept after their round; then only its counts remain.",
        "an integer from 1 to 36500",
        default=30,
        ge=1,
        le=36_500,
    )
    apps: tuple[AppSection, ...] = _key(
        "Android apps that open links to join without asking; see [apps and links](#apps-and-links).",
        "a list of tables, each `[[server.apps]]`",
        default=(),
        strict=False,
    )

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _parsed(cls, value: object) -> tuple[Network, ...]:
        texts = _texts(value, _NETWORKS)
        try:
            return tuple(ip_network(each) for each in texts)
        except ValueError as error:
            raise ValueError(f"found {value!r}, must be {_NETWORKS}: {error}") from error

    @field_validator("publishers", mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> tuple[Publisher, ...]:
        paths = [_relative_to_the_config(Path(each), info) for each in _texts(value, _PUBLISHERS)]
        try:
            return tuple(Publisher.of_file(path) for path in paths if path is not None)
        except OSError as error:
            raise ValueError(f"found {error.filename!r}, which cannot be read: {error.strerror}") from error
        except StatementRefused as error:
            raise ValueError(str(error)) from error

    @field_validator("database", "blobs", "backups", mode="before")
    @classmethod
    def _elsewhere(cls, value: object, info: ValidationInfo) -> object:
        if info.field_name == "backups" and not str(value).startswith("s3://"):
            if not isinstance(value, str | Path | None):
                raise ValueError(f"found {value!r}, must be {_BACKUPS}")
            return _relative_to_the_config(Path(value), info) if isinstance(value, str) else value
        parse = address.database_url if info.field_name == "database" else address.Bucket.parse
        return None if value is None else parse(value)

    @property
    def state(self) -> address.StateAddress:
        """The address of the server's state."""
        return address.StateAddress(
            folder=self.data, database=self.database, bucket=self.blobs, cache_bytes=self.cache_bytes
        )

    @field_validator("certfile", "keyfile", "data", mode="after")
    @classmethod
    def _path_relative_to_the_config(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return _relative_to_the_config(value, info)

    @field_validator("certfile", "keyfile", mode="after")
    @classmethod
    def _is_there(cls, value: Path | None) -> Path | None:
        try:
            is_there = value is None or value.is_file()
        except PermissionError as error:
            raise ValueError(f"found {str(value)!r}, which cannot be read: {error.strerror}") from error
        if not is_there:
            raise ValueError(f"found {str(value)!r}, but there is no such file")
        return value

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.certfile is None) != (self.keyfile is None):
            given, missing = ("certfile", "keyfile") if self.certfile else ("keyfile", "certfile")
            raise ValueError(f"found {given} without {missing}; set both, or neither")
        return self

    @model_validator(mode="after")
    def _backups_are_apart(self) -> Self:
        # A backup deletes from its folder's `blobs` what no backup names, the server from its own what no row names.
        if isinstance(self.backups, Path):
            data, blobs, copies = (each.resolve() for each in (self.data, self.data / "blobs", self.backups / "blobs"))
            if copies == blobs or any(self.backups.resolve().is_relative_to(each) for each in (data, blobs)):
                raise ValueError(
                    f"found backups {str(self.backups)!r}, where the server's own state is; name a folder apart from "
                    "server.data"
                )
        return self

    @model_validator(mode="after")
    def _location_of_a_proxy(self) -> Self:
        if self.accel_location is not None and not (self.behind_proxy or self.trusted_proxies or self.socket):
            raise ValueError(
                f"found accel_location {self.accel_location!r} without a reverse proxy; set trusted_proxies, "
                "behind_proxy or socket, or leave it out"
            )
        return self


class AdminSection(ListeningSection):
    """`[admin]`: the address for operators."""

    host: str = _key("Address for operators.", _HOST, default="127.0.0.1", min_length=1)
    port: int = _key("Port for operators.", _PORT, default=8444, ge=0, le=65535)
    socket: Path | None = _key(
        "Unix socket for operators of this machine, instead of host and port; without TLS.",
        _SOCKET,
        default=None,
        strict=False,
    )
    token_sha256: str = _key(
        "SHA-256 of the operators' token, in hexadecimal.", "64 hexadecimal digits in lower case", pattern=_SHA256_HEX
    )
    metrics_open: bool = _key(
        "`/metrics` is answered without a token.",
        "true or false",
        default=False,
    )

    @field_validator("token_sha256", mode="after")
    @classmethod
    def _not_of_the_sample(cls, value: str) -> str:
        if not value.strip("0"):
            raise ValueError(f"found the sample's zeros; make a token with `openssl rand -hex 32`: {DIGEST}")
        return value


class LimitsSection(Section):
    """`[limits]`: the most that clients and operators can use."""

    max_part_bytes: int = _key(
        "Largest part of a bundle that an operator may store, in bytes.", "an integer from 1", default=1 << 30, ge=1
    )
    max_uploads: int = _key(
        "Most updates above 64 KiB received at the same time; further clients are asked to retry.",
        "an integer from 1",
        default=256,
        ge=1,
    )
    max_uploads_per_address: int = _key(
        "Of these, most of one address. Any number of this machine and trusted proxies.",
        "an integer from 1",
        default=64,
        ge=1,
    )
    max_polls: int = _key(
        "Most check-ins held open at the same time; further clients are asked to wait.",
        "an integer from 0",
        default=2000,
        ge=0,
    )
    max_hold_ms: int = _key(
        "Longest time to hold a check-in open, in milliseconds.",
        "an integer from 0 to 600000",
        default=30_000,
        ge=0,
        le=600_000,
    )
    upload_stall_s: float = _key(
        "Longest pause between the bytes of an update or of an answer on its way, in seconds; then it is dropped.",
        "a number above 0, at most 3600",
        default=60.0,
        gt=0,
        le=3600,
    )
    min_upload_rate: float = _key(
        "Least bytes a second of a request's body or of a blob sent, from `upload_stall_s` after its beginning on.",
        "a number from 0 to 1e9",
        default=500.0,
        ge=0,
        le=1e9,
    )
    idle_s: float = _key(
        "Longest time that a connection stays open without a whole request's head, in seconds.",
        "a number above 0, at most 3600",
        default=75.0,
        gt=0,
        le=3600,
    )
    max_connections: int | None = _key(
        "Most connections of clients; of more, the one that has been open for longest without a request is closed. "
        "Unset: as many as the process may open files, less 1,024 (or half of them).",
        "an integer from 1",
        default=None,
        ge=1,
    )
    max_connections_per_address: int = _key(
        "Most connections of one address; of more, one is closed by the same rule. Any number of this machine and "
        "trusted proxies.",
        "an integer from 1",
        default=200,
        ge=1,
    )
    enrolments_per_address: int = _key(
        "Most clients that enrol from one address within a minute; any number from this machine and trusted proxies.",
        "an integer from 1 to 1000000",
        default=20,
        ge=1,
        le=1_000_000,
    )
    min_free_bytes: int = _key(
        "Free bytes on the disk below which the log has a warning and `/readyz` answers 503; 0: never.",
        "an integer from 0",
        default=256 << 20,
        ge=0,
    )
    stop_s: float = _key(
        "Longest wait of a stopping server for requests in progress, in seconds.",
        "a number from 0 to 3600",
        default=30.0,
        ge=0,
        le=3600,
    )
