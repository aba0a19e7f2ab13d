"""Bundles and downloaded sets: fetched if missing, and protected from eviction while in use."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

from fedlens_edge_client.client.events import Downloaded, Event
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.policy import Policy
from fedlens_edge_client.storage.cache import Downloads, Shortcut
from fedlens_edge_client.storage.restoring import restore
from fedlens_edge_client.training import requirements
from fedlens_proto import manifest, plans
from fedlens_proto.blob import Blob
from fedlens_proto.errors import BlobError, ManifestError
from fedlens_proto.keyed_hash import DIGEST_BYTES
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, manifest_pb2, update_pb2

# Programs that a client runs besides those that a plan names.
_ALWAYS = frozenset({"embed", "extract", "predict", "view"})


@dataclass
class Fetcher:
    """Brings the bundle and the downloads that a client needs into its cache; keeps one bundle open.

    Attributes:
        transport: The connection to the server.
        cache: The downloaded parts and blobs.
        policy: The rules on which bundles may be opened.
        program_format: The format of the program files to fetch.
        emit: Called with each event.
    """

    transport: Transport
    cache: Downloads
    policy: Policy
    program_format: manifest_pb2.ProgramFormat
    emit: Callable[[Event], None]
    _bundle: Bundle | None = field(default=None, init=False)
    _parts: ExitStack = field(default_factory=ExitStack, init=False)
    _held: set[bytes] = field(default_factory=set[bytes], init=False)  # digests of the blobs that `_parts` protects

    async def open(self, digest: bytes) -> Bundle:
        """The bundle with this digest; its programs may still be missing.

        Raises:
            AssignmentFailed: It is not pinned, or its manifest is invalid.
            Refused: The server does not provide it.
        """
        requirements.check_pinned(digest, self.policy)
        if self._bundle is not None and self._bundle.id == digest:
            return self._bundle
        self.close()
        found: Bundle | None = None
        while found is None:
            await self.cache.obtain(digest, manifest.MAX_MANIFEST_BYTES, self.transport.fetch, exact=False)
            try:
                # Another process may evict the manifest before this one reads it.
                with suppress(FileNotFoundError):
                    found = self.cache.bundle(digest)
            except ManifestError as error:
                raise AssignmentFailed(update_pb2.FAILURE_REASON_BUNDLE, str(error)) from error
        self._bundle = found
        return found

    async def obtain_programs(self, bundle: Bundle, plan: assignment_pb2.LocalPlan) -> None:
        """Fetch what a plan needs of the open bundle, and the programs for features, views and predictions."""
        named = plans.programs(plan) | _ALWAYS
        sizes = {part.sha256: part.size for part in bundle.manifest.parts}
        wanted = {
            file.sha256: sizes[file.sha256]
            for program in bundle.manifest.programs
            for file in program.files
            if program.name in named and file.format == self.program_format
        }
        # Programs of other formats contain the frozen tensors.
        if bundle.manifest.frozen and self.program_format == manifest_pb2.PROGRAM_FORMAT_PT2:
            wanted[bundle.manifest.frozen] = sizes[bundle.manifest.frozen]
        if plans.reads_rows(plan, assignment_pb2.ROWS_PUBLIC):
            wanted[bundle.manifest.public.sha256] = sizes[bundle.manifest.public.sha256]
        missing = {digest: size for digest, size in wanted.items() if digest not in self._held}
        await self._hold(missing, self._parts)
        self._held |= missing.keys()

    async def hold_sets(self, entries: Iterable[assignment_pb2.BlobSet], stack: ExitStack) -> None:
        """Fetch these sets, by their delta if possible, and protect them until `stack` is closed."""

        def fetched(digest: bytes, size: int) -> None:
            self.emit(Downloaded(digest, size))

        entries = list(entries)
        shortcuts: dict[bytes, Shortcut] = {
            entry.sha256: partial(restore, self.cache, self.transport.fetch, entry, fetched=fetched)
            for entry in entries
            if entry.HasField("difference")
        }
        await self._hold({entry.sha256: entry.size for entry in entries}, stack, shortcuts)

    def read(self, entry: assignment_pb2.BlobSet) -> Blob:
        """The tensors of a set that has been fetched.

        Raises:
            AssignmentFailed: The blob is damaged, or a delta.
        """
        try:
            found = self.cache.blob(entry.sha256)
        except BlobError as error:
            raise AssignmentFailed(update_pb2.FAILURE_REASON_INTERNAL, f"set {entry.name!r}: {error}") from error
        if (base := found.layout.base) is not None:
            raise AssignmentFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED,
                f"set {entry.name!r} holds the difference to blob {base.hex()}; a set must hold whole weights",
            )
        return found

    def close(self) -> None:
        """Close the bundle and let its parts be evicted."""
        self._parts.close()
        self._held.clear()
        self._bundle = None

    async def _hold(
        self, wanted: Mapping[bytes, int], stack: ExitStack, shortcuts: Mapping[bytes, Shortcut] | None = None
    ) -> None:
        for digest, size in wanted.items():
            if len(digest) != DIGEST_BYTES or size == 0 or sum(wanted.values()) > self.cache.max_bytes:
                raise AssignmentFailed(
                    update_pb2.FAILURE_REASON_UNSUPPORTED,
                    f"blob {digest.hex()} of {size} bytes, {sum(wanted.values())} in all; the cache of this client "
                    f"takes up to {self.cache.max_bytes}",
                )
        fetched = await self.cache.hold(wanted, self.transport.fetch, stack, shortcuts or {})
        for digest in fetched:
            self.emit(Downloaded(digest, wanted[digest]))
        if fetched or shortcuts:
            self.cache.trim()
