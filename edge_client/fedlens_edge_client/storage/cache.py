"""Parts and blobs by digest, in a folder that several clients and processes may share.

    parts/<sha256>        complete; verified on arrival and when a process first uses it
    incoming/<sha256>     a partial download, which the next attempt resumes; locked by its writer

Everything here can be fetched again: nothing is synced, and the digest reveals damage.
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
from typing import ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from fedlens_edge_client.errors import BadResponse, StateError
from fedlens_proto import manifest
from fedlens_proto.blob import Blob
from fedlens_proto.keyed_hash import DIGEST_BYTES
from fedlens_proto.manifest import Bundle

PARTS = "parts"
INCOMING = "incoming"
_BRIEF_BYTES = 1 << 20
# Downloads of one client: a request waits for the network more than for the server.
_AT_A_TIME = 4
P = ParamSpec("P")
T = TypeVar("T")
Fetch = Callable[[bytes, Path, int], Awaitable[None]]
# Writes a candidate for the blob into a file without a full download. Returns whether it did; if not, the file is
# unchanged or empty.
Shortcut = Callable[[Path], Awaitable[bool]]


class Downloads(Protocol):
    """The downloads of a client: parts of bundles, and blobs. `Cache` keeps them in a folder.

    Attributes:
        max_bytes: Bound for those that are not in use.
    """

    max_bytes: int

    async def obtain(
        self, digest: bytes, size: int, fetch: Fetch, *, exact: bool = True, shortcut: Shortcut | None = None
    ) -> bool:
        """As `Cache.obtain`."""
        ...

    async def hold_present(self, digest: bytes, stack: ExitStack) -> bool:
        """As `Cache.hold_present`."""
        ...

    async def hold(
        self,
        wanted: Mapping[bytes, int],
        fetch: Fetch,
        stack: ExitStack,
        shortcuts: Mapping[bytes, Shortcut] = MappingProxyType({}),
    ) -> list[bytes]:
        """As `Cache.hold`."""
        ...

    def bundle(self, digest: bytes) -> Bundle:
        """As `Cache.bundle`."""
        ...

    def blob(self, digest: bytes) -> Blob:
        """As `Cache.blob`."""
        ...

    def trim(self) -> None:
        """As `Cache.trim`."""
        ...


@dataclass
class _Pin:
    descriptor: int
    holders: int


# One shared lock per file and process, so that thousands of clients in a process do not need a descriptor each.
_pins: dict[Path, _Pin] = {}
_pins_guard = threading.Lock()
_serial = itertools.count()
# A lock disappears with its last waiter.
_downloads: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, Path], asyncio.Lock] = WeakValueDictionary()


class Cache:
    """A bundle's parts and downloaded blobs."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """Create the folder if missing; `trim` deletes the least recently used files beyond `max_bytes`."""
        self.folder = folder
        self.max_bytes = max_bytes
        self._verified: set[bytes] = set()
        try:
            for name in (PARTS, INCOMING):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(f"cache folder {folder} cannot be used: {error}") from error

    def path(self, digest: bytes) -> Path:
        """The path of a part or blob, as in `Bundle.part`; the file may be missing."""
        return self.folder / PARTS / digest.hex()

    def bundle(self, digest: bytes) -> Bundle:
        """The bundle whose manifest has this digest; its parts may be missing.

        Raises:
            FileNotFoundError: The manifest is not in the cache.
            ManifestError: It is invalid.
        """
        raw = self.path(digest).read_bytes()
        return Bundle(manifest.parse(raw), raw, self.folder)

    def blob(self, digest: bytes) -> Blob:
        """A blob that is held.

        Raises:
            BlobError: It is damaged.
        """
        return Blob.open(self.path(digest), digest)

    def has(self, digest: bytes) -> bool:
        """Tell whether an undamaged file is present; this counts as a use."""
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
        """Fetch a part or blob unless the cache has it.

        Args:
            digest: SHA-256 of the content.
            size: Its length in bytes, or an upper bound if `exact` is false.
            fetch: As `Transport.fetch`.
            exact: Whether `size` is the exact length.
            shortcut: Tried before fetching; its output counts if it has the digest.

        Returns:
            Whether it was fetched.

        Raises:
            BadResponse: The server sent other bytes twice, or `digest` is no digest.
            StateError: The disk is full, or the folder cannot be used.
        """
        if len(digest) != DIGEST_BYTES:
            raise BadResponse(f"a blob is named by {len(digest)} bytes; a digest has {DIGEST_BYTES}")
        try:
            if await _aside(size, self.has, digest):
                return False
            # All clients need a round's blobs at once; the others wait for the first client's download.
            turn = _downloads.setdefault((asyncio.get_running_loop(), self.path(digest)), asyncio.Lock())
            async with turn:
                return await self._download(digest, size, fetch, exact, shortcut)
        except OSError as error:
            raise StateError(f"cache folder {self.folder} cannot be used: {error}") from error

    async def _download(self, digest: bytes, size: int, fetch: Fetch, exact: bool, shortcut: Shortcut | None) -> bool:
        if await _aside(size, self.has, digest):
            return False
        with self._incoming(digest) as file:

            async def fault() -> str | None:
                return await _aside(size, self._fault, file, digest, size, exact)

            # An earlier process may have received all of it; the server then has nothing left to send.
            if file.stat().st_size >= max(1, size) and await fault() is None:
                return False
            if shortcut is not None and await shortcut(file) and await fault() is None:
                return False
            found = None
            # The remains of a crashed attempt may be damaged; the second fetch then starts from the first byte.
            for _ in range(2):
                await fetch(digest, file, size)
                if (found := await fault()) is None:
                    return True
            raise BadResponse(f"blob {digest.hex()}: received {found}; {size} bytes were announced")

    def _fault(self, file: Path, digest: bytes, size: int, exact: bool) -> str | None:
        """Move the file into the cache if its content is right; otherwise empty it and describe the content."""
        length, found = file.stat().st_size, _digest(file)
        if found == digest and (length == size or not exact):
            file.replace(self.path(digest))
            self._verified.add(digest)
            return None
        os.truncate(file, 0)
        return f"{length} bytes with digest {found.hex()}"

    async def hold_present(self, digest: bytes, stack: ExitStack) -> bool:
        """Protect a part or blob from eviction until `stack` is closed; return whether it is present."""
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
        """Fetch missing parts or blobs, a few at a time, and protect all of them until `stack` is closed.

        Args:
            wanted: Length by digest.
            fetch: As `Transport.fetch`.
            stack: Ends the protection.
            shortcuts: By digest, as in `obtain`.

        Returns:
            The digests of the fetched ones.

        Raises:
            BadResponse: The server sent other bytes twice.
            StateError: The disk is full, or the folder cannot be used.
        """
        turns = asyncio.Semaphore(_AT_A_TIME)

        async def hold(digest: bytes, size: int) -> bool:
            fetched = False
            # Another process may evict a file before this one pins it.
            while True:
                async with turns:
                    fetched |= await self.obtain(digest, size, fetch, shortcut=shortcuts.get(digest))
                if _pin(self.path(digest)):
                    stack.callback(_unpin, self.path(digest))
                    return fetched

        # Of several failures the first is the reason; the other downloads end with it.
        each = [asyncio.ensure_future(hold(digest, size)) for digest, size in wanted.items()]
        try:
            fetched = await asyncio.gather(*each)
        finally:
            for download in each:
                download.cancel()
            await asyncio.gather(*each, return_exceptions=True)
        return [digest for digest, was in zip(wanted, fetched, strict=True) if was]

    def trim(self) -> None:
        """Delete unused files, the least recently used first, until the rest is within the limit."""
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
        """A file to fetch into: the resumable one, or a separate one while another writer holds that."""
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
    """A descriptor that holds the lock of the file, created if missing; None if another writer holds the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    # The last holder has just moved the complete file away.
    os.close(descriptor)
    return None


async def _aside(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function`, in a thread if it reads so many bytes that it would block the event loop."""
    if size <= _BRIEF_BYTES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


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
