"""Parts and blobs by digest, in a folder that several clients and processes may share.

    parts/<sha256>        complete, verified when it came and again when a process first meets it
    incoming/<sha256>     a beginning, which the next attempt goes on from; locked by the one who writes it

Everything here can be fetched again: nothing is synced, damage is found by the digest.
"""

import asyncio
import fcntl
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from types import MappingProxyType
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from fedlens_edge_client.errors import BadAnswer, StateError
from fedlens_proto.keyed_hash import DIGEST_BYTES

PARTS = "parts"
INCOMING = "incoming"
_BRIEF_BYTES = 1 << 20
P = ParamSpec("P")
T = TypeVar("T")
Fetch = Callable[[bytes, Path, int], Awaitable[None]]
# Writes what should be the wanted blob into a file, from what is here and little more; or says that it cannot, and
# leaves the file as it was or empty.
Shortcut = Callable[[Path], Awaitable[bool]]


@dataclass
class _Pin:
    descriptor: int
    holders: int


# One shared lock a file and process: thousands of clients in a process must not need as many descriptors.
_pins: dict[Path, _Pin] = {}
_pins_guard = threading.Lock()
_serial = itertools.count()
# Forgotten with the last one who waits.
_downloads: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Path], asyncio.Lock] = WeakValueDictionary()


class Cache:
    """Where a bundle's parts and downloaded blobs are."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Make the folder if need be; beyond `max_bytes` the least recently used files are deleted."""
        self.folder = folder
        self.max_bytes = max_bytes
        self._verified: set[bytes] = set()
        try:
            for name in (PARTS, INCOMING):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"cache folder {folder} cannot be used: {error}") from error

    def path(self, digest: bytes) -> Path:
        """Where a part or blob is, if it is there; as `Bundle.part` has it."""
        return self.folder / PARTS / digest.hex()

    def has(self, digest: bytes) -> bool:
        """Whether it is there, undamaged; counts as a use."""
        path = self.path(digest)
        try:
            if digest not in self._verified:
                if _digest(path) != digest:
                    path.unlink(missing_ok=True)
                    return False
                self._verified.add(digest)
            os.utime(path)
        except FileNotFoundError:
            self._verified.discard(digest)
            return False
        return True

    async def obtain(
        self, digest: bytes, size: int, fetch: Fetch, *, exact: bool = True, shortcut: Shortcut | None = None
    ) -> bool:
        """Have a part or blob in the cache.

        Args:
            digest: Its name.
            size: Its length in bytes; with `exact` false, the most that it may have.
            fetch: As `Transport.fetch`.
            exact: Whether the length is known.
            shortcut: Tried before fetching; what it writes counts if it has the digest.

        Returns:
            Whether it had to be fetched.

        Raises:
            BadAnswer: Twice something else came, or the name is none.
            StateError: There is no room, or the folder cannot be used.
        """
        if len(digest) != DIGEST_BYTES:
            raise BadAnswer(f"a blob is named by {len(digest)} bytes, a digest has {DIGEST_BYTES}")
        try:
            if await _aside(size, self.has, digest):
                return False
            # A round begins for all clients at once: the others wait for the first one's download.
            turn = _downloads.setdefault((asyncio.get_running_loop(), self.path(digest)), asyncio.Lock())
            async with turn:
                return await self._download(digest, size, fetch, exact, shortcut)
        except OSError as error:
            raise StateError(f"cache folder {self.folder} cannot be used: {error}") from error

    async def _download(self, digest: bytes, size: int, fetch: Fetch, exact: bool, shortcut: Shortcut | None) -> bool:
        if await _aside(size, self.has, digest):
            return False
        with self._incoming(digest) as file:
            # All of it may have come before a process ended; the server has nothing to send then.
            if _length(file) >= max(1, size) and await _aside(size, self._fault, file, digest, size, exact) is None:
                return False
            if shortcut is not None and await shortcut(file):
                if await _aside(size, self._fault, file, digest, size, exact) is None:
                    return False
            for is_last in (False, True):
                await fetch(digest, file, size)
                # What a crash left of an earlier attempt may be damaged: once more, from the first byte.
                fault = await _aside(size, self._fault, file, digest, size, exact)
                if fault is None:
                    return True
                if is_last:
                    raise BadAnswer(f"blob {digest.hex()}: {fault} came, {size} bytes were announced")
        raise AssertionError("unreachable")

    def _fault(self, file: Path, digest: bytes, size: int, exact: bool) -> str | None:
        """Take the file in if it is what is wanted; otherwise empty it and say what was in it."""
        length, found = _length(file), _digest(file)
        if found == digest and (length == size or not exact):
            file.replace(self.path(digest))
            self._verified.add(digest)
            return None
        os.truncate(file, 0)
        return f"{length} bytes with digest {found.hex()}"

    async def hold_present(self, digest: bytes, stack: ExitStack) -> bool:
        """Keep a part or blob in the cache until `stack` is closed, if it is there now."""
        path = self.path(digest)
        if not await asyncio.to_thread(self.has, digest) or not _pin(path):
            return False
        stack.callback(_unpin, path)
        return True

    async def hold(
        self,
        wanted: Mapping[bytes, int],
        fetch: Fetch,
        stack: ExitStack,
        shortcuts: Mapping[bytes, Shortcut] = MappingProxyType({}),
    ) -> list[bytes]:
        """Have parts or blobs, by digest and length, in the cache until `stack` is closed.

        Args:
            wanted: Length by digest.
            fetch: As `Transport.fetch`.
            stack: Lets them go.
            shortcuts: By digest, as in `obtain`.

        Returns:
            The digests of those that had to be fetched.

        Raises:
            BadAnswer: Twice something else came.
            StateError: There is no room.
        """
        fetched = []
        for digest, size in wanted.items():
            # Another process may evict a file before it is pinned here.
            while True:
                if await self.obtain(digest, size, fetch, shortcut=shortcuts.get(digest)):
                    fetched.append(digest)
                if _pin(self.path(digest)):
                    stack.callback(_unpin, self.path(digest))
                    break
        return fetched

    def trim(self) -> None:
        """Delete the least recently used files that nobody uses, until the rest is within the limit."""
        files = []
        for path in (*(self.folder / PARTS).iterdir(), *(self.folder / INCOMING).iterdir()):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue
            files.append((found.st_mtime_ns, found.st_size, path))
        excess = sum(size for _, size, _ in files) - self.max_bytes
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            if _delete_unused(path):
                excess -= size

    @contextmanager
    def _incoming(self, digest: bytes) -> Iterator[Path]:
        """A file to fetch into: the one that can be resumed, or one of our own while somebody else writes that."""
        path = self.folder / INCOMING / digest.hex()
        lock = _lock_new(path)
        if lock is None:
            path = path.with_suffix(f".{os.getpid()}.{next(_serial)}")
            lock = _lock_new(path)
        try:
            yield path
        finally:
            if path.suffix or (path.exists() and path.stat().st_size == 0):
                path.unlink(missing_ok=True)
            if lock is not None:
                os.close(lock)


def _lock_new(path: Path) -> int | None:
    """A descriptor that holds the lock of the file, made if need be; None if somebody else has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    # Its last holder has just completed it and moved it away.
    os.close(descriptor)
    return None


async def _aside(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` returns, called in a thread if it reads so many bytes that the event loop would stand still."""
    if size <= _BRIEF_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def _length(file: Path) -> int:
    return file.stat().st_size


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return file_digest(file, "sha256").digest()


def _pin(path: Path) -> bool:
    with _pins_guard:
        pin = _pins.get(path)
        if pin is not None:
            pin.holders += 1
            return True
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            return False
        _pins[path] = _Pin(descriptor, 1)
        return True


def _unpin(path: Path) -> None:
    with _pins_guard:
        pin = _pins[path]
        pin.holders -= 1
        if pin.holders == 0:
            del _pins[path]
            os.close(pin.descriptor)


def _delete_unused(path: Path) -> bool:
    with _pins_guard:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return False
        finally:
            os.close(descriptor)
        return True
