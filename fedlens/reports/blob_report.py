"""The output of `fedlens blob show` and `diff`: statistics of tensors, as JSON values and as table rows."""

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from fedlens.blob_files import TensorFile
from fedlens_proto.blob import Array

SHOW_COLUMNS: Sequence[str] = ("tensor", "shape", "dtype", "codec", "bytes", "min", "max", "mean", "norm")
DIFF_COLUMNS: Sequence[str] = ("tensor", "shape", "different", "largest", "largest relative", "norm")


def show_values(found: TensorFile) -> dict[str, Any]:
    """A file as JSON values, with hexadecimal digests, statistics in float64, and L2 norms."""
    tensors = [
        {
            "name": name,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype),
            "codec": found.stored[name],
            "bytes": found.stored_bytes[name],
            "min": tensor.min().item(),
            "max": tensor.max().item(),
            "mean": float(tensor.mean(dtype=np.float64)),
            "norm": _norm(tensor),
        }
        for name, tensor in found.tensors.items()
    ]
    return {
        "file": str(found.path),
        "format": str(found.format),
        "sha256": found.sha256.hex(),
        "bytes": found.size,
        "base": found.base and found.base.hex(),
        "elements": sum(tensor.size for tensor in found.tensors.values()),
        "tensors": tensors,
    }


def diff_values(a: TensorFile, b: TensorFile) -> dict[str, Any]:
    """The differences of two files as JSON values; compares decoded numbers, not their storage.

    For each common tensor: `different`, the number of different elements; `largest`, the greatest |a - b|;
    `largest_relative`, the greatest |a - b| / max(|a|, |b|), within 0..2; `norm`, the L2 norm of a - b. All are None if
    shapes or types differ. Blobs of differences are equal only to blobs of differences to the same base.
    """
    shared = [name for name in a.tensors if name in b.tensors]
    tensors = [{"name": name, **_compared(a.tensors[name], b.tensors[name])} for name in shared]
    missing = [name for name in a.tensors if name not in b.tensors]
    extra = [name for name in b.tensors if name not in a.tensors]
    same = not missing and not extra and a.base == b.base and all(entry["equal"] for entry in tensors)
    return {
        "a": {"file": str(a.path), "base": a.base and a.base.hex()},
        "b": {"file": str(b.path), "base": b.base and b.base.hex()},
        "equal": same,
        "missing": missing,
        "extra": extra,
        "tensors": tensors,
    }


def show_row(values: dict[str, Any]) -> list[str]:
    """A row under `SHOW_COLUMNS`."""
    return [
        values["name"],
        shape_text(values["shape"]),
        values["dtype"],
        values["codec"],
        f"{values['bytes']:,}",
        *(f"{values[key]:.6g}" for key in ("min", "max", "mean", "norm")),
    ]


def diff_row(values: dict[str, Any]) -> list[str]:
    """A row under `DIFF_COLUMNS`."""
    shapes = [shape_text(values["shape_a"]), shape_text(values["shape_b"])]
    kinds = [values["dtype_a"], values["dtype_b"]]
    sides = [f"{kind} {shape}" if kinds[0] != kinds[1] else shape for kind, shape in zip(kinds, shapes, strict=True)]
    if values["different"] is None:
        return [values["name"], " | ".join(sides), "other shape" if shapes[0] != shapes[1] else "other type", *"---"]
    numbers = (f"{values[key]:.3g}" for key in ("largest", "largest_relative", "norm"))
    return [values["name"], shapes[0], f"{values['different']:,}", *numbers]


def shape_text(shape: Sequence[int]) -> str:
    """A shape for people: `10 x 512`."""
    return " x ".join(map(str, shape)) or "one number"


def _compared(a: Array, b: Array) -> dict[str, Any]:
    sides = {"shape_a": list(a.shape), "shape_b": list(b.shape), "dtype_a": str(a.dtype), "dtype_b": str(b.dtype)}
    if a.shape != b.shape or a.dtype != b.dtype:
        return {**sides, "equal": False, "different": None, "largest": None, "largest_relative": None, "norm": None}
    distance = _distance(a, b)
    size = np.maximum(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    relative = np.divide(distance, size, out=np.zeros_like(distance), where=size > 0)
    different = int(np.count_nonzero(a != b))
    return {
        **sides,
        "equal": different == 0,
        "different": different,
        "largest": float(distance.max()),
        "largest_relative": float(relative.max()),
        "norm": _norm(distance),
    }


def _distance(a: Array, b: Array) -> Array:
    """|a - b| in float64, rounded from the exact value for integers."""
    if a.dtype.kind == "f":
        return np.abs(a.astype(np.float64) - b.astype(np.float64))
    # A difference of int64 may overflow; modulo 2^64 it is correct as an unsigned number.
    greater, less = np.maximum(a, b), np.minimum(a, b)
    return (greater.view(np.uint64) - less.view(np.uint64)).astype(np.float64)


def _norm(tensor: Array) -> float:
    flat = tensor.astype(np.float64).ravel()
    return sqrt(float(flat @ flat))
