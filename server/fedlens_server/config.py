"""The operator's `fedlens.toml`: parsed once, into frozen models, with errors that name the key.

A relative path is relative to the config file. `docs/operate.md` has the table of all keys; a test compares it with
these models.
"""

import difflib
import ipaddress
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

_SHA256_HEX = re.compile(r"\A[0-9a-f]{64}\Z")
_HASHES = ("token_sha256", "sha256")
_PORT = "an integer from 0 to 65535; 0 takes any free port"


class ConfigError(Exception):
    """A config that cannot be used; the text names the key, what was found and what is allowed."""


def _key(meaning: str, allowed: str, **settings: Any) -> Any:
    return Field(description=meaning, json_schema_extra={"allowed": allowed}, **settings)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class ServerSection(_Section):
    """`[server]`: where clients come in, and where everything is stored."""

    host: str = _key("Address for clients.", "an address or host name", default="127.0.0.1", min_length=1)
    port: int = _key("Port for clients.", _PORT, default=8443, ge=0, le=65535)
    certfile: Path | None = _key(
        "Certificate chain (PEM) for clients and operators.", "the path of a file", default=None, strict=False
    )
    keyfile: Path | None = _key(
        "Private key (PEM) of the certificate.", "the path of a file", default=None, strict=False
    )
    behind_proxy: bool = _key(
        "A reverse proxy ends TLS: plain HTTP is allowed on any address.", "true or false", default=False
    )
    data: Path = _key(
        "Folder of the database and the blobs.", "the path of a folder", default=Path("data"), strict=False
    )

    @field_validator("certfile", "keyfile", "data", mode="after")
    @classmethod
    def _relative_to_the_config(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        folder: Path = (info.context or {}).get("folder", Path())
        return None if value is None else folder / value.expanduser()

    @field_validator("certfile", "keyfile", mode="after")
    @classmethod
    def _is_there(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_file():
            raise ValueError(f"found {str(value)!r}, but there is no such file")
        return value

    @model_validator(mode="after")
    def _certificate_with_key(self) -> Self:
        if (self.certfile is None) != (self.keyfile is None):
            given, missing = ("certfile", "keyfile") if self.certfile else ("keyfile", "certfile")
            raise ValueError(f"found {given} without {missing}; set both, or neither")
        return self


class AdminSection(_Section):
    """`[admin]`: where operators come in."""

    host: str = _key("Address for operators.", "an address or host name", default="127.0.0.1", min_length=1)
    port: int = _key("Port for operators.", _PORT, default=8444, ge=0, le=65535)
    token_sha256: str = _key(
        "SHA-256 of the operators' token, in hexadecimal.", "64 hexadecimal digits in lower case", pattern=_SHA256_HEX
    )


class LimitsSection(_Section):
    """`[limits]`: what the server lends out at most."""

    max_part_bytes: int = _key(
        "Largest part of a bundle that an operator may store, in bytes.",
        "an integer from 1",
        default=1 << 30,
        ge=1,
    )
    max_uploads: int = _key(
        "Updates above 64 KiB received at the same time; further ones are told to come back.",
        "an integer from 1",
        default=256,
        ge=1,
    )
    max_polls: int = _key(
        "Check-ins held open at the same time; further ones are told to wait.",
        "an integer from 0",
        default=2000,
        ge=0,
    )
    max_hold_ms: int = _key(
        "Longest time for which a check-in is held open, in milliseconds.",
        "an integer from 0 to 600000",
        default=30_000,
        ge=0,
        le=600_000,
    )
    upload_stall_s: float = _key(
        "An update of which no byte arrives for this long is given up, in seconds.",
        "a number above 0, at most 3600",
        default=60.0,
        gt=0,
        le=3600,
    )
    stop_s: float = _key(
        "How long a stopping server waits for requests that it has begun, in seconds.",
        "a number from 0 to 3600",
        default=30.0,
        ge=0,
        le=3600,
    )


class EnrolmentSection(_Section):
    """`[[enrolment]]`: a token with which clients enrol; there may be several."""

    name: str = _key("For people.", "a text that is not empty", min_length=1)
    role: Literal["trainer", "evaluator"] = _key("What its clients do.", '"trainer" or "evaluator"')
    sha256: str = _key(
        "SHA-256 of the token, in hexadecimal.", "64 hexadecimal digits in lower case", pattern=_SHA256_HEX
    )
    max_uses: int | None = _key(
        "How many clients may enrol with it. Unset: any number.", "an integer from 1", default=None, ge=1
    )
    expires_at: datetime | None = _key(
        "From when on nobody enrols with it. Unset: never.", "a date and time with an offset", default=None
    )

    @field_validator("expires_at", mode="after")
    @classmethod
    def _has_an_offset(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError(f"found {value.isoformat()}, must be a date and time with an offset, such as a final Z")
        return None if value is None else value.astimezone(UTC)


class Config(_Section):
    """A whole `fedlens.toml`."""

    server: ServerSection
    admin: AdminSection
    limits: LimitsSection
    enrolment: tuple[EnrolmentSection, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _no_plain_http_to_the_outside(self) -> Self:
        if self.server.certfile is None and not self.server.behind_proxy:
            for where, host in (("server.host", self.server.host), ("admin.host", self.admin.host)):
                if not is_loopback(host):
                    raise ValueError(
                        f"{where}: found {host!r} without a certificate; set server.certfile and server.keyfile, "
                        "or server.behind_proxy = true where a proxy ends TLS, or use 127.0.0.1"
                    )
        return self

    @model_validator(mode="after")
    def _each_token_once(self) -> Self:
        for what in ("name", "sha256"):
            seen = [getattr(entry, what) for entry in self.enrolment]
            if twice := [value for value in seen if seen.count(value) > 1]:
                raise ValueError(f"enrolment.{what}: found {twice[0]!r} in two entries, must be different in each")
        return self


def is_loopback(host: str) -> bool:
    """Whether this address is only reached from the same machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def load(path: Path) -> Config:
    """Read a config file.

    Raises:
        ConfigError: No such file, no TOML, or a key that is missing, unknown or out of range. One line per fault.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file; `fedlens serve --init DIR` makes one") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: this is no TOML: {error}") from error
    return parse(raw, path.parent, str(path.name))


def parse(raw: dict[str, Any], folder: Path, source: str = "fedlens.toml") -> Config:
    """Check a config that has been read.

    Args:
        raw: As TOML gives it.
        folder: To which relative paths are relative.
        source: Name of the file in error texts.

    Raises:
        ConfigError: As `load`.
    """
    try:
        return Config.model_validate({"server": {}, "admin": {}, "limits": {}} | raw, context={"folder": folder})
    except ValidationError as error:
        faults = [_sentence(dict(fault)) for fault in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults)) from error


def keys() -> dict[str, FieldInfo]:
    """Every key as an operator writes it, such as `server.port`; a table that may repeat is `enrolment.*`."""
    sections: dict[str, type[_Section]] = {
        "server": ServerSection,
        "admin": AdminSection,
        "limits": LimitsSection,
        "enrolment": EnrolmentSection,
    }
    return {
        f"{section}.{name}": field for section, model in sections.items() for name, field in model.model_fields.items()
    }


def _sentence(fault: dict[str, Any]) -> str:
    names = [part for part in fault["loc"] if isinstance(part, str)]
    entries = [part for part in fault["loc"] if isinstance(part, int)]
    key = ".".join(names)
    where = f"{key} (entry {entries[0] + 1})" if entries else key
    kind = fault["type"]
    if kind == "value_error":
        text = str(fault["ctx"]["error"])
        return f"{where}: {text}" if where else text
    if kind == "extra_forbidden":
        return f"{where}: unknown key; {_nearest(names)}"
    field = keys().get(key)
    if field is None:
        allowed = "a list of tables, [[enrolment]]" if key == "enrolment" else f"a table, [{key}]"
    else:
        allowed = str((field.json_schema_extra or {})["allowed"])  # type: ignore[index]  # set by _key, always a dict
    if kind == "missing":
        found = "found nothing"
    elif names[-1] in _HASHES:
        # Whoever puts the token itself here must not find it in the log.
        found = "found something else"
    else:
        found = f"found {fault['input']!r}"
    return f"{where}: {found}, must be {allowed}"


def _nearest(names: list[str]) -> str:
    prefix = ".".join(names[:-1])
    known = (
        list(Config.model_fields)
        if not prefix
        else [k.removeprefix(f"{prefix}.") for k in keys() if k.startswith(f"{prefix}.")]
    )
    near = difflib.get_close_matches(names[-1], known, n=1, cutoff=0.5)
    if near:
        return f"did you mean {'.'.join([*names[:-1], near[0]])}?"
    return f"allowed are {', '.join('.'.join([*names[:-1], name]) for name in known)}"
