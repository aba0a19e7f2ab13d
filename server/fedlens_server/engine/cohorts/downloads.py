"""The sets that members download: encoded by the task's codec, as differences, or computed on demand.

A set is encoded once, when the round opens, and its blob stays until the round has ended; so a restart changes no byte.
With `download_difference` a set that all members share is a float32 blob R, and clients that still hold the R before
it need only the difference:

    R_t = the set itself                                    where there is no R_{t-1}, or no shorter way from it
    R_t = float32(R_{t-1} + decode(encode(set - R_{t-1})))  otherwise

The difference is taken to what clients hold, not to the set before, so what a codec loses does not add up. A set with a
tensor that clients do not exchange, such as a table, is float32 and whole.

A weighted sum is not stored: its blob is computed on demand from a stored recipe, which says which tensors of which
stored blobs are added up with which weights. The recipe is a row of the database as long as a round or an evaluation
names the blob, and the blobs in it stay as long; so a restart changes no byte here either. Finding the digest means
computing the sum once; a large one is computed again for each client that fetches it, which takes time instead of disk.
"""

import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256

from sqlalchemy import bindparam, delete, select

from fedlens_proto.blob import FLOATS, Array, Layout, TensorSpec
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.errors import BlobError
from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2, blob_pb2
from fedlens_server.engine.cohorts.members import Round
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.methods.arithmetic.weighted_sum import WeightedSum
from fedlens_server.planning.method import TensorSet
from fedlens_server.store import ComputedBlob, Location, PendingBlob, StoredTensors, Transaction, encoding, schema
from fedlens_server.store.columns import BlobSets
from fedlens_server.store.dialects import insert

log = logging.getLogger(__name__)
BlobSet = assignment_pb2.BlobSet
Locate = Callable[[bytes], Location]
Digests = Mapping[str, tuple[bytes, int]]  # of computed blobs, with their size, by recipe
# Reading and adding up release the interpreter's lock; requests and the writing thread want a core too.
THREADS = min(os.cpu_count() or 1, 4)
SMALL_BYTES = 1 << 20
MAX_SOURCES_BYTES = 64 << 20
_INSERT = insert(schema.weighted_sums).on_conflict_do_nothing()
_DELETE = delete(schema.weighted_sums).where(schema.weighted_sums.c.digest == bindparam("gone"))


class Downloads:
    """The sets of one round or one evaluation, some of them still to be encoded."""

    def __init__(
        self,
        federation: Federation,
        transaction: Transaction,
        task: Task,
        before: Round | None,
        digests: Digests | None = None,
        encoded: dict[bytes, BlobSet] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """Begin with no client.

        Args:
            federation: Holds the store.
            transaction: Names new blobs.
            task: Its settings say how sets are encoded.
            before: The round whose blobs clients may still hold.
            digests: Of computed blobs, as far as they have been found.
            encoded: By digest of a stored blob the one that clients get instead; new ones are added.
            exact: Encode nothing.
        """
        self._federation = federation
        self._transaction = transaction
        self._digests = digests or {}
        settings = task.settings
        self._floats = blob_pb2.DTYPE_FLOAT32 if exact else FLOATS[settings.wire_download_codec]
        self._exchangeable = {tensor.name for bundle in task.bundles for tensor in bundle.manifest.tensors}
        self._by_difference = settings.download_difference and not exact
        self._bases = _shared(before) if before is not None else {}
        self._members: dict[bytes, dict[str, StoredTensors | BlobSet]] = {}
        # By `id` of a set, which is held so that it stays its own.
        self._written: dict[int, tuple[TensorSet, BlobSet]] = {}
        self._encoded = {} if encoded is None else encoded

    def add(self, client: bytes, downloaded: Mapping[str, TensorSet]) -> None:
        """Take the sets that the method gives a client.

        Raises:
            BlobError: A tensor holds a NaN or an infinity.
            StorageFull: There is no room.
        """
        self._members[client] = {
            name: tensors if isinstance(tensors, StoredTensors) else self._not_stored(tensors)
            for name, tensors in downloaded.items()
        }

    def sets(self) -> dict[bytes, BlobSets]:
        """By client its sets, ascending by name. Errors as in `add`."""
        digests: dict[str, set[bytes]] = defaultdict(set)
        counts: dict[str, int] = defaultdict(int)
        for given in self._members.values():
            for name, tensors in given.items():
                digests[name].add(tensors.digest if isinstance(tensors, StoredTensors) else tensors.sha256)
                counts[name] += isinstance(tensors, StoredTensors)
        every = len(self._members)
        shared = {name for name in digests if len(digests[name]) == 1 and counts[name] == every}
        by_difference: dict[str, BlobSet] = {}

        def entry(name: str, tensors: StoredTensors | BlobSet) -> BlobSet:
            if isinstance(tensors, BlobSet):
                return _named(name, tensors)
            # Clients keep the bundle's initial weights; other bytes of them would only be more.
            if name == INITIAL or not self._is_encoded(tensors):
                return BlobSet(name=name, sha256=tensors.digest, size=tensors.size)
            if self._by_difference and name in shared:
                if name not in by_difference:
                    by_difference[name] = self._from_base(tensors, self._bases.get(name))
                return _named(name, by_difference[name])
            if tensors.digest not in self._encoded:
                self._encoded[tensors.digest] = self._stored_as(tensors, self._floats)
            return _named(name, self._encoded[tensors.digest])

        return {
            client: tuple(entry(name, tensors) for name, tensors in sorted(given.items()))
            for client, given in self._members.items()
        }

    def _not_stored(self, tensors: TensorSet) -> BlobSet:
        if id(tensors) in self._written:
            return self._written[id(tensors)][1]
        floats = self._floats if self._is_encoded(tensors) else blob_pb2.DTYPE_FLOAT32
        recipe = _recipe_of(tensors) if floats == blob_pb2.DTYPE_FLOAT32 else None
        found = self._encode(tensors, floats) if recipe is None else self._computed(recipe)
        self._written[id(tensors)] = tensors, found
        return found

    def _is_encoded(self, tensors: TensorSet) -> bool:
        """Tell whether the task's codec and differences are for a set: one of weights, not a table."""
        return all(name in self._exchangeable for name in tensors)

    def _computed(self, recipe: str) -> BlobSet:
        """A set that is computed on demand; its recipe is stored in this transaction.

        Raises:
            BlobError: It holds a NaN or an infinity.
            Unknown: A blob that goes into it is not stored.
        """
        store = self._federation.store
        known = self._digests.get(recipe)
        digest, size = known or _digest(self._federation, recipe, _sources(_reading_once(store.blobs.locate)))
        self._transaction.later(_INSERT, {"digest": digest, "size": size, "recipe": recipe})
        # At once, as the round that this transaction opens asks for it; one that fails leaves it to the next sweep.
        if digest not in store.blobs.computed:
            _register(self._federation, digest, size, recipe)
        return BlobSet(sha256=digest, size=size)

    def _stored_as(self, tensors: StoredTensors, floats: blob_pb2.Dtype) -> BlobSet:
        """A stored set with its floats in this type, unless it has them so already or they are too coarse for it."""
        wanted = tuple(_spec(spec, floats) for spec in tensors.layout.specs)
        if wanted == tensors.layout.specs or (floats == blob_pb2.DTYPE_FLOAT32 and not self._by_difference):
            return BlobSet(sha256=tensors.digest, size=tensors.size)
        return self._encode(tensors, floats)

    def _from_base(self, tensors: StoredTensors, digest: bytes | None) -> BlobSet:
        """A set as float32, with the difference to what clients hold where that is shorter."""
        store, specs = self._federation.store, [_spec(each, blob_pb2.DTYPE_FLOAT32) for each in tensors.layout.specs]
        if digest == tensors.digest or digest not in store.blobs.sizes:
            return self._stored_as(tensors, blob_pb2.DTYPE_FLOAT32)
        base = store.tensors(digest)
        shorter = Layout.of((_spec(each, self._floats) for each in specs), digest).size < Layout.of(specs).size
        if base.layout.specs != tuple(specs) or not shorter:
            return self._stored_as(tensors, blob_pb2.DTYPE_FLOAT32)
        try:
            difference = self._write(Differences(tensors, base), self._floats, digest)
            found = self._write(Sums(base, store.tensors(difference.sha256)), blob_pb2.DTYPE_FLOAT32)
        except BlobError:  # too far from the base for the codec
            return self._stored_as(tensors, blob_pb2.DTYPE_FLOAT32)
        if found.sha256 != digest:
            found.difference.sha256, found.difference.size = difference.sha256, difference.size
            found.difference.base = digest
        return found

    def _encode(self, tensors: TensorSet, floats: blob_pb2.Dtype) -> BlobSet:
        """Write a set with its floats in this type, or as float32 if a value is too large for it."""
        try:
            return self._write(tensors, floats)
        except BlobError:
            if floats == blob_pb2.DTYPE_FLOAT32:
                raise
            return self._write(tensors, blob_pb2.DTYPE_FLOAT32)

    def _write(self, tensors: Mapping[str, Array], floats: blob_pb2.Dtype, base: bytes | None = None) -> BlobSet:
        store = self._federation.store
        with store.incoming() as incoming:
            blob = store.write_tensors(tensors, incoming, floats, base)
            self._transaction.place(blob)
        return BlobSet(sha256=blob.digest, size=blob.size)


def fetchable(sets: BlobSets) -> set[bytes]:
    """Digests of the blobs that clients with these sets may fetch: also differences and their bases."""
    found = {item.sha256 for item in sets}
    for item in sets:
        if item.HasField("difference"):
            found |= {item.difference.sha256, item.difference.base}
    return found


def holds(tensors: TensorSet, wanted: Iterable[TensorSpec]) -> bool:
    """Tell whether a set has all these tensors, in whatever type they are stored."""
    layout: Layout | None = getattr(tensors, "layout", None)  # saves reading them
    if layout is None:
        shapes = {name: value.shape for name, value in tensors.items()}
    else:
        shapes = {spec.name: spec.shape for spec in layout.specs}
    return all(shapes.get(spec.name) == spec.shape for spec in wanted)


def find_digests(
    federation: Federation, task: Task, downloads: Iterable[TensorSet], waiting: Iterable[PendingBlob]
) -> Digests:
    """Find the digests of computed blobs ahead of the transaction that opens their round, which then need not wait.

    Args:
        federation: Holds the store.
        task: The round's.
        downloads: Sets of the round to come, weighted sums or not.
        waiting: Blobs of the state to come, which that transaction places.
    """
    placed = {blob.digest: blob for blob in waiting}

    def locate(digest: bytes) -> Location:
        blob = placed.get(digest)
        return federation.store.blobs.locate(digest) if blob is None else Location(blob.size, blob.raw, blob.path)

    source = _sources(_reading_once(locate))
    digests: dict[str, tuple[bytes, int]] = {}

    def find(recipe: str) -> None:
        try:
            digests[recipe] = _digest(federation, recipe, source)
        except Exception as error:  # the transaction meets it again and says what follows
            log.warning("task %s: a weighted sum could not be computed ahead: %s", task.name, error)

    recipes = {recipe for tensors in downloads if (recipe := _recipe_of(tensors)) is not None}
    with ThreadPoolExecutor(THREADS, thread_name_prefix="fedlens-computed") as pool:
        list(pool.map(find, sorted(recipes)))
    return digests


def load_computed(federation: Federation) -> None:
    """Have the store compute the blobs whose recipes are in the database."""
    for row in federation.store.read(select(schema.weighted_sums)):
        _register(federation, row.digest, row.size, row.recipe)


def drop_computed(federation: Federation, transaction: Transaction, digests: Iterable[bytes]) -> None:
    """Forget recipes in a transaction."""
    gone = tuple(digests)
    for digest in gone:
        transaction.later(_DELETE, {"gone": digest})

    def follow() -> None:
        for digest in gone:
            federation.store.blobs.computed.pop(digest, None)
            federation.store.blobs.drop_cached(digest)

    transaction.after_commit(follow)


def _recipe_of(tensors: TensorSet) -> str | None:
    """The recipe of a weighted sum of stored sets, for the database; None: it is something else."""
    if not isinstance(tensors, WeightedSum):
        return None
    names: dict[tuple[tuple[float, str], ...], list[str]] = {}
    for name, terms in tensors.terms.items():
        digests = [(weight, source.digest.hex()) for weight, source in terms if isinstance(source, StoredTensors)]
        if len(digests) < len(terms):
            return None
        names.setdefault(tuple(digests), []).append(name)
    return json.dumps([{"names": each, "terms": terms} for terms, each in names.items()])


def _register(federation: Federation, digest: bytes, size: int, recipe: str) -> None:
    blobs = federation.store.blobs
    sources = frozenset(bytes.fromhex(source) for part in json.loads(recipe) for _, source in part["terms"])
    blobs.computed[digest] = ComputedBlob(size, _weighted_sum(recipe, _sources(blobs.locate)), sources)


def _sources(locate: Locate) -> Callable[[str], StoredTensors]:
    """Stored sets by digest in hex, each made, and its header read, only once."""
    # Only tensors are read of them, so no size is needed.
    return cache(lambda digest: StoredTensors(bytes.fromhex(digest), 0, locate))


def _weighted_sum(recipe: str, source: Callable[[str], StoredTensors]) -> WeightedSum:
    terms = {}
    for part in json.loads(recipe):
        shared = tuple((weight, source(digest)) for weight, digest in part["terms"])
        terms.update(dict.fromkeys(part["names"], shared))
    return WeightedSum(terms)


def _digest(federation: Federation, recipe: str, source: Callable[[str], StoredTensors]) -> tuple[bytes, int]:
    """Digest and size of a computed blob; a small one stays in memory while there is room."""
    weighted_sum = _weighted_sum(recipe, source)
    size = weighted_sum.layout.size
    if size > SMALL_BYTES:
        return encoding.digest(weighted_sum), size
    raw = b"".join(encoding.pieces(weighted_sum))
    digest = sha256(raw).digest()
    federation.store.blobs.remember(digest, raw)
    return digest, size


def _reading_once(locate: Locate) -> Locate:
    """A `locate` that reads small files once: the weighted sums of a round have most of their sources in common."""
    known: dict[bytes, Location] = {}
    room = MAX_SOURCES_BYTES

    def found(digest: bytes) -> Location:
        nonlocal room
        location = known.get(digest)
        if location is None:
            location = locate(digest)
            if location.path is not None and location.size <= min(SMALL_BYTES, room):
                room -= location.size
                location = Location(location.size, raw=location.path.read_bytes())
            known[digest] = location
        return location

    return found


def _shared(before: Round) -> dict[str, bytes]:
    """By name the digest of each set that is the same for all members of a round; departed members have none."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for member in before.members.values():
        for item in member.sets:
            found[item.name].add(item.sha256)
    return {name: next(iter(digests)) for name, digests in found.items() if len(digests) == 1}


def _spec(spec: TensorSpec, floats: blob_pb2.Dtype) -> TensorSpec:
    is_integer = spec.dtype == blob_pb2.DTYPE_INT64
    return spec if is_integer else TensorSpec.of_float(spec.name, spec.shape, floats)


def _named(name: str, entry: BlobSet) -> BlobSet:
    named = BlobSet()
    named.CopyFrom(entry)
    named.name = name
    return named
