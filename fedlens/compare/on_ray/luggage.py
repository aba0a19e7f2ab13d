"""What runs need at a node, brought there once: bundles and photos, as Ray objects of many files each."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from fedlens.compare.on_ray.cluster import the_ray
from fedlens.compare.plan import RunPlan
from fedlens_edge_client.emulation.partitions import PhotoPool, PoolPhoto

ObjectRef = Any  # Ray's reference to an object in its store
PHOTOS, _PREFIX, _LOCK = "photos", "fedlens-study-", ".lock"
_PACK_BYTES = 64 << 20
_NO_PHOTOS = PhotoPool(Path(), (), (), (), {})
# Of the folders that this process uses, which `_sweep` of another leaves alone.
_held: dict[Path, IO[str]] = {}


@dataclass(frozen=True)
class Luggage:
    """What all runs of a study share.

    Attributes:
        name: Name of a node's folder, different for each command.
        base: Folder of that folder.
        pool: Photos, with paths of the command's machine.
        files: Files with their paths below the node's folder, by what they are: the photos, or the folder of a bundle.
    """

    name: str
    base: Path
    pool: ObjectRef
    files: Mapping[str, Sequence[ObjectRef]]

    @classmethod
    def pack(cls, study_folder: Path, runs: Sequence[RunPlan], base: Path) -> "Luggage":
        """Put all bundles and photos of the runs into Ray's store.

        Raises:
            OSError: A file cannot be read.
        """
        ray = the_ray()
        pool = runs[0].fleet.pool
        photos = {_file_of(photo): photo.path for photo in _photos(pool)}
        files = {PHOTOS: [ray.put(pack) for pack in _packs(photos)]}
        for bundle in {bundle.folder: None for run in runs for bundle in run.bundles}:
            parts = {
                path.relative_to(study_folder).as_posix(): path
                for path in sorted((study_folder / bundle).rglob("*"))
                if path.is_file()
            }
            files[str(bundle)] = [ray.put(pack) for pack in _packs(parts)]
        return cls(f"{_PREFIX}{secrets.token_hex(6)}", base, ray.put(pool), files)

    def folder(self, node: str) -> Path:
        """The folder at a node."""
        return self.base / f"{self.name}-{node}"

    def unpack(self, names: Iterable[str], node: str) -> Path:
        """Fetch the files of these names, unless they are there; gives the folder, which this process keeps."""
        folder = self.folder(node)
        if folder not in _held:
            _sweep(self.base)
            _held[folder] = _hold(folder)
        for name in names:
            with (folder / f".{name.replace('/', '-')}").open("a") as mark:
                fcntl.flock(mark, fcntl.LOCK_EX)
                if mark.tell() == 0:
                    _write(folder, self.files[name])
                    mark.write("complete\n")
        return folder

    def remove(self, node: str) -> None:
        """Remove the folder."""
        folder = self.folder(node)
        shutil.rmtree(folder, ignore_errors=True)
        if folder in _held:
            _held.pop(folder).close()


def without_photos(plan: RunPlan, folder: Path) -> RunPlan:
    """The plan without its pool, which `Luggage` has, and with a folder below that of the study."""
    return replace(plan, folder=folder, fleet=replace(plan.fleet, pool=_NO_PHOTOS))


def at_node(pool: PhotoPool, folder: Path) -> PhotoPool:
    """The pool with the paths of unpacked photos."""

    def moved(side: tuple[tuple[PoolPhoto, ...], ...]) -> tuple[tuple[PoolPhoto, ...], ...]:
        return tuple(tuple(replace(photo, path=folder / _file_of(photo)) for photo in members) for members in side)

    return replace(pool, train=moved(pool.train), test=moved(pool.test))


def _photos(pool: PhotoPool) -> Iterator[PoolPhoto]:
    return (photo for side in (pool.train, pool.test) for members in side for photo in members)


def _file_of(photo: PoolPhoto) -> str:
    name = photo.digest.hex()
    return f"{PHOTOS}/{name[:2]}/{name}{photo.path.suffix}"


def _packs(files: Mapping[str, Path]) -> Iterator[dict[str, bytes]]:
    pack: dict[str, bytes] = {}
    size = 0
    for name, path in files.items():
        pack[name] = path.read_bytes()
        size += len(pack[name])
        if size >= _PACK_BYTES:
            yield pack
            pack, size = {}, 0
    yield pack


def _write(folder: Path, packs: Iterable[ObjectRef]) -> None:
    ray = the_ray()
    for pack in packs:
        for name, content in ray.get(pack).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def _hold(folder: Path) -> IO[str]:
    """Make the folder, and mark it as used while the returned file is open."""
    while True:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (folder / _LOCK).open("a")
        fcntl.flock(lock, fcntl.LOCK_SH)
        if (folder / _LOCK).exists():
            return lock
        lock.close()  # another process has removed the folder meanwhile


def _sweep(base: Path) -> None:
    """Remove the folders of commands that were killed."""
    for folder in base.glob(f"{_PREFIX}*"):
        if folder.stat().st_uid != os.getuid():
            continue
        # Another process may use the folder, or remove it as well.
        with suppress(BlockingIOError, FileNotFoundError), (folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
