"""The form of numbers and messages in the vectors' JSON files."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from numpy.typing import NDArray

from fedlens_proto.errors import ProtoError
from fedlens_proto.v1 import assignment_pb2

Files = dict[str, bytes]
"""Contents by path below `tests/vectors/`."""


def document(content: Any, indent: int | None = 1) -> bytes:
    """A JSON file: ASCII, one space of indentation or all on one line, keys as they come."""
    return (json.dumps(content, indent=indent, ensure_ascii=True, allow_nan=False) + "\n").encode()


def array(values: NDArray[Any]) -> dict[str, Any]:
    """float32 or int64 numbers: type, shape, and the elements in row-major order as little-endian hexadecimal bytes."""
    name, kind = {"f": ("float32", "<f4"), "i": ("int64", "<i8")}[values.dtype.kind]
    return {
        "dtype": name,
        "shape": list(values.shape),
        "hex": np.ascontiguousarray(values, np.dtype(kind)).tobytes().hex(),
    }


def arrays(tensors: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Each of these, by name in the order of the names' UTF-8 bytes."""
    return {name: array(tensors[name]) for name in sorted(tensors, key=str.encode)}


def array_of(form: Mapping[str, Any]) -> NDArray[Any]:
    """Read the result of `array`."""
    kind = {"float32": "<f4", "int64": "<i8"}[form["dtype"]]
    return np.frombuffer(bytes.fromhex(form["hex"]), kind).reshape(form["shape"])


def message(value: Message) -> dict[str, Any]:
    """protobuf's own JSON form, with the names of the `.proto` files; what is unset is left out."""
    found: dict[str, Any] = MessageToDict(value, preserving_proto_field_name=True)
    return found


def hyper(**values: float) -> list[assignment_pb2.HyperValue]:
    """Values of hyper-parameters in a stage."""
    return [assignment_pb2.HyperValue(name=name, value=value) for name, value in values.items()]


def refusal(read: Callable[..., object], *given: Any) -> str:
    """The reason why `read` refuses what it is given, without the words of the protobuf library behind it."""
    try:
        read(*given)
    except ProtoError as error:
        return str(error).partition(": Error parsing")[0]
    raise AssertionError(f"{given} is accepted")


def encoded(value: Message) -> bytes:
    """A message's bytes, fields in the order of their numbers."""
    return value.SerializeToString(deterministic=True)
