"""Named tensors in files of several formats: FedLens' own blobs, safetensors, and PyTorch state dicts.

The ending determines the format: `.safetensors`, `.pt` or `.pth`, and `.blob` or none. All formats are limited to the
tensors of a blob: float32, float16 and int64, finite, with printable names. Anything else is refused, not rounded.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from hashlib import file_digest
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedlens.errors import FedlensError
from fedlens.whole_file import replacing
from fedlens_proto import blob, difference
from fedlens_proto.blob import Array, Blob, Layout
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import blob_pb2

CODECS = {"f32": blob_pb2.DTYPE_FLOAT32, "f16": blob_pb2.DTYPE_FLOAT16, "int8": blob_pb2.DTYPE_INT8}
"""Storage of a blob's float tensors."""

_STORED = {number: name for name, number in CODECS.items()} | {blob_pb2.DTYPE_INT64: "i64"}


class BlobFileError(FedlensError):
    """A file of tensors cannot be read or written; the text says what was wrong, and what to do."""


class Format(StrEnum):
    """Formats of files."""

    BLOB = "blob"
    SAFETENSORS = "safetensors"
    STATE_DICT = "state_dict"


_ENDINGS = {
    ".safetensors": Format.SAFETENSORS,
    ".pt": Format.STATE_DICT,
    ".pth": Format.STATE_DICT,
    ".blob": Format.BLOB,
    "": Format.BLOB,
}


@dataclass(frozen=True)
class TensorFile:
    """The contents of a file.

    Attributes:
        tensors: float32 or int64 by name, ascending.
        stored: Storage of each tensor: `f32`, `f16`, `int8` or `i64`.
        stored_bytes: Size of each tensor in the file, in bytes.
        base: For a blob of differences the SHA-256 of its base blob; otherwise None.
        sha256: Digest of the file.
        size: Size of the file, in bytes.
    """

    path: Path
    format: Format
    tensors: Mapping[str, Array]
    stored: Mapping[str, str]
    stored_bytes: Mapping[str, int]
    base: bytes | None
    sha256: bytes
    size: int


def format_of(path: Path) -> Format:
    """The format of a file name's ending.

    Raises:
        BlobFileError: The ending is unknown.
    """
    found = _ENDINGS.get(path.suffix)
    if found is None:
        raise BlobFileError(
            f"{path}: the ending {path.suffix!r} is unknown; there are .safetensors, .pt or .pth for a PyTorch state "
            "dict, and .blob or none for a blob"
        )
    return found


def read(path: Path, kind: Format | None = None) -> TensorFile:
    """Read and check the tensors of a file.

    Args:
        path: The file.
        kind: Its format; None: that of its ending, and a blob where the ending is unknown.

    Raises:
        BlobFileError: The file cannot be read, is damaged, or holds tensors that a blob cannot hold.
    """
    kind = kind or _ENDINGS.get(path.suffix, Format.BLOB)
    try:
        if kind is Format.BLOB:
            return _blob(path)
        arrays = _safetensors(path) if kind is Format.SAFETENSORS else _state_dict(path)
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").digest()
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise BlobFileError(f"there is no file {path}") from error
    except (OSError, BlobError) as error:
        raise BlobFileError(f"{path} cannot be read: {error}") from error
    _check(path, arrays)
    return TensorFile(
        path=path,
        format=kind,
        tensors={name: arrays[name].astype(_read_as(arrays[name]), copy=False) for name in sorted(arrays)},
        stored={name: f"{array.dtype.kind}{array.dtype.itemsize * 8}" for name, array in arrays.items()},
        stored_bytes={name: array.nbytes for name, array in arrays.items()},
        base=None,
        sha256=digest,
        size=size,
    )


def whole(found: TensorFile, base: Path | None) -> Mapping[str, Array]:
    """The whole tensors of a file: its own or, for differences, their sums with the base.

    Args:
        found: The file.
        base: File of the base blob; None for a file of whole tensors.

    Raises:
        BlobFileError: The base is missing, wrong, or not needed.
    """
    if found.base is None:
        if base is not None:
            raise BlobFileError(f"{found.path} holds whole tensors, no difference; leave --base out")
        return found.tensors
    if base is None:
        raise BlobFileError(
            f"{found.path} holds the difference to blob {found.base.hex()}; name the file of that blob with --base"
        )
    start = read(base, Format.BLOB)
    if start.sha256 != found.base:
        raise BlobFileError(
            f"{base} is blob {start.sha256.hex()}; {found.path} holds the difference to blob {found.base.hex()}"
        )
    if start.base is not None:
        raise BlobFileError(f"{base} holds a difference itself; convert it to a whole blob first, with its own --base")
    return difference.Sums(start.tensors, found.tensors)


def write(path: Path, tensors: Mapping[str, Array], codec: str | None = None) -> None:
    """Write tensors in the format of the file's ending, completely or not at all.

    Args:
        path: The file to write or replace.
        tensors: float32 or int64 by name.
        codec: For blobs, one of `CODECS`; None: f32.

    Raises:
        BlobFileError: The ending or the codec is unknown, the format has no codecs, or the file cannot be written.
    """
    kind = format_of(path)
    if codec is not None and kind is not Format.BLOB:
        raise BlobFileError(f"{path}: only blobs have codecs; leave --codec out, or take a name in .blob")
    if codec is not None and codec not in CODECS:
        raise BlobFileError(f"codec {codec!r} is unknown; there are {', '.join(CODECS)}")
    try:
        # Before the file is begun: this computes sums, which may exceed the range of float32.
        arrays = {name: np.asarray(tensors[name]) for name in tensors}
        _check(path, arrays)
        with replacing(path) as partial, partial.open("wb") as file:
            if kind is Format.BLOB:
                blob.write(file, arrays, floats=CODECS[codec or "f32"])
            elif kind is Format.SAFETENSORS:
                file.write(_as_safetensors(arrays))
            else:
                file.write(_as_state_dict(arrays))
    except BlobError as error:
        raise BlobFileError(f"{path}: {error}") from error
    except OSError as error:
        raise BlobFileError(f"{path}: cannot be written: {error.strerror or error}") from error


def _blob(path: Path) -> TensorFile:
    found = Blob.open_checked(path)
    return TensorFile(
        path=path,
        format=Format.BLOB,
        tensors=found,
        stored={spec.name: _STORED[spec.dtype] for spec in found.layout.specs},
        stored_bytes={spec.name: spec.nbytes for spec in found.layout.specs},
        base=found.layout.base,
        sha256=found.digest,
        size=found.size,
    )


def _safetensors(path: Path) -> dict[str, Array]:
    with _needed("safetensors"):
        from safetensors import SafetensorError, safe_open
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            for name in names:
                if (dtype := file.get_slice(name).get_dtype()) not in ("F32", "F16", "I64"):
                    raise BlobFileError(_other_type(path, name, dtype))
            return {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise BlobFileError(f"{path} cannot be read as safetensors: {error}") from error


def _state_dict(path: Path) -> dict[str, Array]:
    with _needed("torch"):
        import torch

        from fedlens_export.errors import WeightsUnusable
        from fedlens_export.models import state_dict
    try:
        tensors = state_dict.read(path)
    except WeightsUnusable as error:
        raise BlobFileError(str(error)) from error
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.float32, torch.float16, torch.int64):
            raise BlobFileError(_other_type(path, name, str(tensor.dtype).removeprefix("torch.")))
    return {name: tensor.numpy(force=True) for name, tensor in tensors.items()}


def _as_safetensors(arrays: Mapping[str, Array]) -> bytes:
    with _needed("safetensors"):
        from safetensors.numpy import save
    return save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def _as_state_dict(arrays: Mapping[str, Array]) -> bytes:
    with _needed("torch"):
        import torch
    stream = BytesIO()  # torch would write a file's name into the archive
    torch.save({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, stream)
    return stream.getvalue()


@contextmanager
def _needed(package: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise BlobFileError(f"{package} is not installed; `pip install {package}`") from error


def _check(path: Path, arrays: Mapping[str, Array]) -> None:
    """Check that a blob could hold these tensors."""
    try:
        Layout.of(blob.specs_of(arrays))
    except BlobError as error:
        raise BlobFileError(f"{path}: {error}") from error
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise BlobFileError(f"{path}: tensor {name!r} holds a NaN or an infinity; a model's numbers must be finite")


def _other_type(path: Path, name: str, dtype: str) -> str:
    return f"{path}: tensor {name!r} has dtype {dtype}; float32, float16 and int64 can be stored, so convert it first"


def _read_as(array: Array) -> np.dtype[Any]:
    return np.dtype(np.float32 if array.dtype.kind == "f" else np.int64)
