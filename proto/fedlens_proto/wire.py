"""The encoding of messages in HTTP bodies, common to all calls, and the hosts that are called without TLS."""

import re
import struct
from ipaddress import ip_address
from typing import TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import DecodeError, Message

from fedlens_proto.errors import WireError
from fedlens_proto.v1 import update_pb2

PROTOCOL = 1
MEDIA_TYPE = "application/vnd.fedlens.v1+protobuf"
MAX_UPDATE_HEADER_BYTES = 64 << 10
LENGTH = struct.Struct("<I")

M = TypeVar("M", bound=Message)


def decode(kind: type[M], body: bytes) -> M:
    """The message of type `kind` in `body`; unknown fields are ignored.

    Raises:
        WireError: The bytes are no such message.
    """
    try:
        return kind.FromString(body)
    except DecodeError as error:
        raise WireError(f"no readable {kind.DESCRIPTOR.name}: {error}") from error


def decode_request(kind: type[M], body: bytes) -> M:
    """Decode a request, whose `protocol` must be a version spoken here.

    Raises:
        WireError: The bytes are no such message, or have another protocol version.
    """
    message = decode(kind, body)
    found = getattr(message, "protocol")  # noqa: B009  (every request has it; the generated types share no base)
    if found != PROTOCOL:
        raise WireError(f"{kind.DESCRIPTOR.name}.protocol is {found or 'unset'}; this version speaks {PROTOCOL}")
    return message


def is_loopback(host: str) -> bool:
    """Tell whether a host, by name or address, is this machine, to which a secret may go without TLS."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_token(text: str) -> bool:
    """True if a text can be a token: printable ASCII without spaces, which a header can carry, and not empty."""
    return re.fullmatch("[!-~]+", text) is not None


def word(enum: EnumTypeWrapper, value: int) -> str:
    """The name of an enum's value without the enum's own, in lower case: `reported` for MEMBER_STATE_REPORTED."""
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")  # the first value of every enum
    return enum.Name(value).removeprefix(prefix).lower()


def frame_update(header: update_pb2.UpdateHeader) -> bytes:
    """The bytes before the blob in the body of an update: the header's length as u32, then the header."""
    raw = header.SerializeToString(deterministic=True)
    return LENGTH.pack(len(raw)) + raw
