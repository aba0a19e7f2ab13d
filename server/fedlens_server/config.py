"""The operator's `fedlens.toml`: parsed once into frozen models; errors name the key.

Relative paths are relative to the config file. `sections.py` has the keys.
"""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, model_validator
from pydantic.fields import FieldInfo

from fedlens_proto.wire import is_loopback
from fedlens_server.sections import DIGEST, AdminSection, AppSection, LimitsSection, Section, ServerSection

_HASH = "token_sha256"
_TUPLE = re.compile(r"\('(.*?)',?\)")  # in which `tomllib` names a table


class ConfigError(Exception):
    """An unusable config; the text names the key, the value found and the allowed values."""


class Config(Section):
    """A whole `fedlens.toml`."""

    server: ServerSection
    admin: AdminSection
    limits: LimitsSection

    @model_validator(mode="after")
    def _no_plain_http_to_the_outside(self) -> Self:
        if self.server.certfile is None and not self.server.behind_proxy:
            for where, section in (("server.host", self.server), ("admin.host", self.admin)):
                if section.socket is None and not is_loopback(section.host):
                    raise ValueError(
                        f"{where}: found {section.host!r} without a certificate; set server.certfile and "
                        "server.keyfile, or server.behind_proxy = true if a proxy terminates TLS, or use 127.0.0.1"
                    )
        return self

    @model_validator(mode="after")
    def _two_addresses(self) -> Self:
        server, admin = self.server, self.admin
        hosts, is_tcp = {server.host, admin.host}, server.socket is None and admin.socket is None
        if is_tcp and server.port == admin.port != 0 and (len(hosts) == 1 or hosts == {"0.0.0.0", "127.0.0.1"}):
            raise ValueError(f"admin.port: found {admin.port}, the same as server.port; clients and operators need two")
        return self


def load(path: Path) -> Config:
    """Read a config file.

    Raises:
        ConfigError: The file is missing or no TOML, or a key is missing, unknown or out of range; one line per fault.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file; `fedlens serve --init DIR` creates one") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        text = _TUPLE.sub(lambda found: "[" + found[1].replace("', '", ".") + "]", str(error))
        raise ConfigError(f"{path}: this is not valid TOML: {text}") from error
    sections = {"server": {}, "admin": {}, "limits": {}} | raw
    try:
        return Config.model_validate(sections, context={"folder": path.parent})
    except ValidationError as error:
        faults = [_sentence(dict(fault)) for fault in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{path}: {fault}" for fault in faults)) from error


def keys() -> dict[str, FieldInfo]:
    """Every key as an operator writes it, such as `server.port`."""
    sections: dict[str, type[Section]] = {
        "server": ServerSection,
        "server.apps": AppSection,
        "admin": AdminSection,
        "limits": LimitsSection,
    }
    return {
        f"{section}.{name}": field for section, model in sections.items() for name, field in model.model_fields.items()
    }


def _sentence(fault: dict[str, Any]) -> str:
    names = [part for part in fault["loc"] if isinstance(part, str)]
    key = ".".join(names)
    kind = fault["type"]
    if kind == "value_error":
        text = str(fault["ctx"]["error"])
        return f"{key}: {text}" if key else text
    if kind == "extra_forbidden":
        return f"{key}: unknown key; {_nearest(names)}"
    field = keys().get(key)
    if field is None:
        allowed = f"a table, [{key}]"
    else:
        allowed = str((field.json_schema_extra or {})["allowed"])  # type: ignore[index]  # set by _key, always a dict
    if kind == "missing":
        found = "found nothing"
    elif names[-1] == _HASH:
        # An operator may have put the token itself here; keep it out of the log.
        found = f"found {len(fault['input'])} characters" if isinstance(fault["input"], str) else "found something else"
        allowed += f"; if it is the token itself, {DIGEST}"
    else:
        found = f"found {fault['input']!r}"
    return f"{key}: {found}, must be {allowed}"


def _nearest(names: list[str]) -> str:
    prefix = "".join(f"{name}." for name in names[:-1])
    known = [key for key in keys() if key.startswith(prefix)] if prefix else list(Config.model_fields)
    near = difflib.get_close_matches(names[-1], [key.removeprefix(prefix) for key in known], n=1, cutoff=0.5)
    return f"did you mean {prefix}{near[0]}?" if near else f"allowed are {', '.join(known)}"
