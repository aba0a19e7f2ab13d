"""Writing a bundle as a whole or not at all.

Layout and trust: `docs/bundle.md`.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fedlens_export.errors import TargetExists
from fedlens_proto import manifest as reading
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb


def check_target(folder: Path) -> None:
    """Check that `write` can use `folder`, except that another bundle there shows only when it writes.

    Raises:
        TargetExists: The folder holds something else.
    """
    folder = folder.absolute()
    place = next(place for place in (folder, *folder.parents) if place.exists() or place.is_symlink())
    if not place.is_dir():
        found = "a file" if place.exists() else "a link to nothing"
        raise TargetExists(f"{place} is {found}; choose another folder for the new bundle")
    if place == folder and any(folder.iterdir()) and not (folder / reading.MANIFEST_FILE).is_file():
        raise _taken(folder, "something else")


def write(folder: Path, manifest: pb.Manifest, parts: Mapping[bytes, bytes]) -> Bundle:
    """Write a bundle to `folder`, which must not exist, be empty, or hold exactly this bundle.

    Raises:
        ManifestError: The manifest contradicts itself.
        TargetExists: The folder holds something else.
        OSError: It cannot be written; nothing is left behind.
    """
    raw = manifest.SerializeToString(deterministic=True)
    reading.parse(raw)
    folder = folder.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        present = folder / reading.MANIFEST_FILE
        if present.is_file() and present.read_bytes() == raw:
            return Bundle.open(folder)
        raise _taken(folder, "another bundle" if present.is_file() else "something else")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, because a folder can be renamed only inside one file system.
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (unfinished / reading.PARTS_FOLDER).mkdir()
        for digest, content in parts.items():
            _write_durably(unfinished / reading.PARTS_FOLDER / digest.hex(), content)
        _write_durably(unfinished / reading.MANIFEST_FILE, raw)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return Bundle.open(folder)


def _taken(folder: Path, found: str) -> TargetExists:
    return TargetExists(f"{folder} holds {found}; remove it or choose another folder for the new bundle")


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
