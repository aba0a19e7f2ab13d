"""The form of numbers and messages in the vectors' JSON files."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from numpy.typing import NDArray

Files = dict[str, bytes]
"""Contents by path below `tests/vectors/`."""


def document(content: Any) -> bytes:
    """A JSON file: ASCII, one space of indentation, keys as they come."""
    return (json.dumps(content, indent=1, ensure_ascii=True, allow_nan=False) + "\n").encode()


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


def encoded(value: Message) -> bytes:
    """A message's bytes, fields in the order of their numbers."""
    return value.SerializeToString(deterministic=True)
