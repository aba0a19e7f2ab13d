"""Blobs that must survive the process: small ones are stored in a database row, large ones as files."""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from fedlens_edge_client.errors import StateError
from fedlens_edge_client.storage.state_folder import fsync_folder
from fedlens_proto import blob
from fedlens_proto.blob import Array, Blob, Layout
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import blob_pb2

MAX_ROW_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class EncodedTensors:
    """Digest and length of a stored blob, and its bytes if it is small; a large one is a file."""

    sha256: bytes
    size: int
    inline: bytes | None


class TensorFiles:
    """The `tensors` folder of a client; a file is named by its digest."""

    def __init__(self, folder: Path, durable: bool = True) -> None:
        """Create the folder if missing; without `durable`, files survive the process but not a power failure.

        Raises:
            StateError: It cannot be created.
        """
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StateError(f"the folder for tensors cannot be made: {error}") from error
        self._folder = folder
        self._durable = durable

    def path(self, digest: bytes) -> Path:
        """The path of a stored large blob.

        Raises:
            StateError: It is missing.
        """
        path = self._path(digest)
        if not path.is_file():
            raise StateError(f"stored tensors are missing: {path}; the state folder is damaged")
        return path

    def _path(self, digest: bytes) -> Path:
        return self._folder / digest.hex()

    def store(self, tensors: Mapping[str, Array], floats: blob_pb2.Dtype, base: bytes | None = None) -> EncodedTensors:
        """Encode tensors; when this returns, a large blob is on disk under its final name.

        Args:
            tensors: By name.
            floats: The dtype in which float tensors are stored.
            base: SHA-256 of the base if the tensors are a delta.

        Raises:
            BlobError: The tensors cannot be encoded: a NaN, an infinity, a value too large for the codec.
            StateError: The disk is full or cannot be written.
        """
        if Layout.of(blob.specs_of(tensors, floats), base).size <= MAX_ROW_BYTES:
            raw = blob.encode(tensors, floats=floats, base=base)
            return EncodedTensors(sha256(raw).digest(), len(raw), raw)
        fresh = self._folder / "new"
        try:
            with fresh.open("wb") as file:
                digest, layout = blob.write(file, tensors, floats=floats, base=base)
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())
            fresh.rename(self._path(digest))
            if self._durable:
                fsync_folder(self._folder)
        except OSError as error:
            raise StateError(f"tensors cannot be stored in {self._folder}: {error}") from error
        finally:
            fresh.unlink(missing_ok=True)
        return EncodedTensors(digest, layout.size, None)

    def open(self, digest: bytes, inline: bytes | None) -> Blob:
        """The tensors of a stored blob.

        Raises:
            StateError: Its file is missing or damaged.
        """
        try:
            return Blob.open(self._path(digest), digest) if inline is None else Blob.from_bytes(inline)
        except (OSError, BlobError) as error:
            raise StateError(f"stored tensors cannot be read: {error}; the state folder is damaged") from error

    def sweep(self, needed: Collection[bytes]) -> None:
        """Delete all files except those with these digests.

        Raises:
            StateError: One cannot be deleted.
        """
        names = {digest.hex() for digest in needed}
        try:
            for file in self._folder.iterdir():
                if file.name not in names:
                    file.unlink()
        except OSError as error:
            raise StateError(f"old tensors cannot be deleted: {error}") from error
