"""Options, errors and the connection of commands that speak to the admin API."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from fedlens.commands.options import reported

if TYPE_CHECKING:
    from fedlens.admin_client import AdminClient

Admin = Annotated[
    Path | None,
    typer.Option(
        "--admin", envvar="FEDLENS_ADMIN", help="Profile of the server, the admin.toml that `serve --init` wrote."
    ),
]
_LARGE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@contextmanager
def reported_admin() -> Iterator[None]:
    """Print errors of the admin API as sentences, and end the command with status 1."""
    from fedlens.errors import FedlensError
    from fedlens_export.errors import ExportError
    from fedlens_proto.errors import ProtoError

    with reported(FedlensError, ExportError, ProtoError):
        try:
            yield
        except UnicodeEncodeError as error:
            raise FedlensError(f"found {error.object!r}, must be text in UTF-8") from error


def admin_client(profile: Path | None) -> "AdminClient":
    """A client of the admin API by the profile of a server."""
    from fedlens.admin_client import AdminClient, AdminError, Profile

    if profile is None:
        raise AdminError("no server is given; name its profile with --admin DIR/admin.toml, or in FEDLENS_ADMIN")
    return AdminClient(Profile.read(profile))


def seconds(text: str | None, option: str) -> float:
    """The seconds of a length of time such as `30d`, `12h`, `45m` or `90s`; 0 for none."""
    from fedlens.errors import FedlensError

    if text is None:
        return 0.0
    found = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if found is None or found[1].strip("0") == "":
        raise FedlensError(f"{option}: found {text!r}, must be a length of time such as 30d, 12h, 45m or 90s")
    return float(int(found[1]) * _UNITS_S[found[2]])


def readable_time(when: float, form: str = "%Y-%m-%d %H:%M:%SZ") -> str:
    """A time, by seconds since the epoch, in UTC; `-` for none."""
    return datetime.fromtimestamp(when, UTC).strftime(form) if when else "-"


def message_values(message: Message) -> dict[str, Any]:
    """A message for `--json`, by the names of its fields, with those that have their default; enums as words."""
    values = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    for field in message.DESCRIPTOR.fields:
        if field.enum_type is not None and not field.is_repeated:
            prefix = field.enum_type.values[0].name.removesuffix("UNSPECIFIED")
            values[field.name] = values[field.name].removeprefix(prefix).lower().replace("_", "-")
    # Protobuf's JSON writes 64-bit integers as texts.
    large = {field.name for field in message.DESCRIPTOR.fields if field.cpp_type in _LARGE and not field.is_repeated}
    return values | {name: int(values[name]) for name in large & values.keys()}
