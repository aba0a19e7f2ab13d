"""Files of a folder by keys, as `ObjectStore` has them in a bucket."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from fedlens_server.store.copies.moving import copied_into, pieces_of
from fedlens_server.store.incoming import sync


class Folder:
    """A folder whose files survive a power failure, and are deleted with the folders that they leave empty."""

    def __init__(self, root: Path) -> None:
        """Nothing is made or read yet."""
        self._root = root

    def put(self, key: str, source: Path | bytes) -> None:
        """Write a file, which has its name once it is whole; a synced one of the same disk is moved there.

        Raises:
            OSError: It cannot be written. So in all functions.
        """
        path = self._root / key
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, mode=0o700)
            sync(self._root)
        if isinstance(source, Path):
            source.rename(path)
        else:
            copied_into(path, [source])
        sync(path.parent)

    def read(self, key: str) -> Iterator[bytes]:
        """The bytes of a file, piece by piece."""
        return pieces_of(self._root / key)

    def list(self) -> Iterator[tuple[str, float, int]]:
        """The keys of the files in its folders, each with the time of its writing and its bytes."""
        for path in self._root.glob("*/*"):
            found = path.stat()
            yield f"{path.parent.name}/{path.name}", found.st_mtime, found.st_size

    def delete(self, keys: Iterable[str]) -> None:
        """Delete files, if they are there."""
        parents = set()
        for key in keys:
            (self._root / key).unlink(missing_ok=True)
            parents.add((self._root / key).parent)
        for parent in parents:
            sync(parent)
            with suppress(OSError):  # other files are in it
                parent.rmdir()
