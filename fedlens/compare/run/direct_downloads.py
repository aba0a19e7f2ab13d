"""The downloads of a study's clients, which stay where the round engine, in the same process, has them.

A client downloads what a phone would, and the engine counts it; but nothing is copied, checked again, or kept in files
of the client's own. What several clients have is in memory once.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from weakref import WeakValueDictionary

from fedlens_edge_client.errors import BadResponse
from fedlens_edge_client.storage.cache import Fetch, Shortcut
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_server.store import Location, encoding

# Larger ones that the engine computes for one client lie in files, which take no memory while the client has them.
_MAX_COMPUTED_BYTES = 1 << 20


class SharedBlobs:
    """The bundles of a study, and the blobs that at least one client has."""

    def __init__(self, bundles: Iterable[Bundle]) -> None:
        """There are no blobs yet."""
        self.bundles = {bundle.id: bundle for bundle in bundles}
        self._parts = {
            part.sha256: each.part(part.sha256) for each in self.bundles.values() for part in each.manifest.parts
        }
        self._blobs: WeakValueDictionary[bytes, Blob] = WeakValueDictionary()

    def is_part(self, digest: bytes) -> bool:
        """Tell whether this is a manifest or a part of a bundle."""
        return digest in self._parts or digest in self.bundles

    def blob(self, digest: bytes, make: Callable[[], Blob] | None = None) -> Blob:
        """A blob, which `make` makes unless some client has it; without `make`, a part."""
        found = self._blobs.get(digest)
        if found is None:
            found = self._blobs[digest] = make() if make is not None else Blob.open(self._parts[digest], digest)
        return found


class DirectDownloads:
    """The `Downloads` of one client."""

    def __init__(self, locate: Callable[[bytes, int], Location], shared: SharedBlobs, max_bytes: int) -> None:
        """Begin with nothing.

        Args:
            locate: Counts a download of at most so many bytes, and says where it is; raises as `Transport.fetch`.
            shared: What the clients of a run share.
            max_bytes: Bound for downloads that are not in use.
        """
        self.max_bytes = max_bytes
        self._locate, self._shared = locate, shared
        # Size and content, the least recently used first; parts of bundles are opened where they are read.
        self._present: OrderedDict[bytes, tuple[int, Blob | None]] = OrderedDict()
        self._pins: Counter[bytes] = Counter()

    async def obtain(
        self, digest: bytes, size: int, fetch: Fetch, *, exact: bool = True, shortcut: Shortcut | None = None
    ) -> bool:
        """As `Cache.obtain`, without a use for `fetch`."""
        if digest in self._present:
            self._present.move_to_end(digest)
            return False
        restored = None if shortcut is None else await _restored(digest, shortcut)
        if restored is not None:
            self._present[digest] = restored.size, self._shared.blob(digest, lambda: restored)
            return False
        found = self._locate(digest, size)
        if exact and found.size != size:
            raise BadResponse(f"blob {digest.hex()}: {found.size} bytes; {size} bytes were announced")
        is_part = self._shared.is_part(digest)
        blob = None if is_part else self._shared.blob(digest, partial(_opened, digest, found))
        self._present[digest] = found.size, blob
        return True

    async def hold_present(self, digest: bytes, stack: ExitStack) -> bool:
        """As `Cache.hold_present`."""
        if digest not in self._present:
            return False
        self._pins[digest] += 1
        stack.callback(self._unpin, digest)
        return True

    async def hold(
        self,
        wanted: Mapping[bytes, int],
        fetch: Fetch,
        stack: ExitStack,
        shortcuts: Mapping[bytes, Shortcut] = MappingProxyType({}),
    ) -> list[bytes]:
        """As `Cache.hold`, without a use for `fetch`."""
        fetched = []
        for digest, size in wanted.items():
            if await self.obtain(digest, size, fetch, shortcut=shortcuts.get(digest)):
                fetched.append(digest)
            await self.hold_present(digest, stack)
        return fetched

    def bundle(self, digest: bytes) -> Bundle:
        """As `Cache.bundle`."""
        return self._shared.bundles[digest]

    def blob(self, digest: bytes) -> Blob:
        """As `Cache.blob`."""
        return self._present[digest][1] or self._shared.blob(digest)

    def trim(self) -> None:
        """As `Cache.trim`."""
        excess = sum(size for size, _ in self._present.values()) - self.max_bytes
        for digest in [each for each in self._present if not self._pins[each]]:
            if excess <= 0:
                break
            excess -= self._present.pop(digest)[0]

    def _unpin(self, digest: bytes) -> None:
        self._pins[digest] -= 1
        if not self._pins[digest]:
            del self._pins[digest]


def _opened(digest: bytes, found: Location) -> Blob:
    if found.path is not None:
        return Blob.open(found.path, digest)
    if found.raw is not None:
        return Blob.from_bytes(found.raw)
    assert found.computed is not None  # one of the three is set
    pieces = encoding.pieces(found.computed)
    if found.size <= _MAX_COMPUTED_BYTES:
        return Blob.from_bytes(b"".join(pieces))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "computed"
        with file.open("wb") as stream:
            stream.writelines(pieces)
        return Blob.open(file, digest)  # what is mapped outlives its name


async def _restored(digest: bytes, shortcut: Shortcut) -> Blob | None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "restored"
        if not await shortcut(file):
            return None
        found = Blob.open_checked(file)
        return found if found.digest == digest else None
