"""WeightedSums that clients download: named by the digest of bytes that are nowhere, kept as recipes.

A recipe says which tensors of which stored blobs are added up with which weights. It is a row of the database as long
as a round or an evaluation names the weighted sum; so long the blobs that go into it are in reach, and after a restart
the same recipe gives the same bytes. Finding the digest means computing the weighted sum once, and a large one is
computed again each time that a client fetches it: time instead of disk. Small ones stay in memory while there is room.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects.sqlite import insert

from fedlens_server.engine.view import Federation, Task
from fedlens_server.methods import TensorSet, WeightedSum
from fedlens_server.store import ComputedBlob, Location, StoredTensors, Transaction, encoding, schema
from fedlens_server.store.method_state import PreparedState

log = logging.getLogger(__name__)
Locate = Callable[[bytes], Location]
# Reading and adding up release the interpreter's lock; requests and the writing thread want a core too.
THREADS = min(os.cpu_count() or 1, 4)
SMALL_BYTES = 1 << 20
NOT_NEEDED = 0  # as the size of a stored set of which only tensors are read
MAX_SOURCES_BYTES = 64 << 20
_INSERT = insert(schema.weighted_sums).on_conflict_do_nothing()
_DELETE = delete(schema.weighted_sums).where(schema.weighted_sums.c.digest == bindparam("gone"))


def recipe_of(tensors: TensorSet) -> str | None:
    """How a weighted sum is made, as kept in the database; None: it is none, or made of sets that are not stored."""
    if not isinstance(tensors, WeightedSum):
        return None
    names: dict[tuple[tuple[float, str], ...], list[str]] = {}
    for name, terms in tensors.terms.items():
        digests = [(weight, source.digest.hex()) for weight, source in terms if isinstance(source, StoredTensors)]
        if len(digests) < len(terms):
            return None
        names.setdefault(tuple(digests), []).append(name)
    return json.dumps([{"names": each, "terms": terms} for terms, each in names.items()])


def prepare(federation: Federation, task: Task, downloads: Iterable[TensorSet], prepared: PreparedState | None) -> None:
    """Find the digests of weighted sums before the transaction that opens their round, so that it need not wait.

    Args:
        federation: Which remembers them, until `forget_prepared`.
        task: Whose round it is.
        downloads: Sets of the round to come; what is no weighted sum is left alone.
        prepared: The state to come, whose blobs wait for that transaction; None: the state stays.
    """
    waiting = {} if prepared is None else {blob.digest: blob for blob in prepared.blobs}

    def locate(digest: bytes) -> Location:
        blob = waiting.get(digest)
        return federation.store.blobs.locate(digest) if blob is None else Location(blob.size, blob.raw, blob.path)

    source = _sources(_reading_once(locate))

    def find(recipe: str) -> None:
        try:
            federation.weighted_sum_digests[task.id, recipe] = _found(federation, recipe, source)
        except Exception as error:  # the transaction meets it again and says what follows
            log.warning("task %s: a weighted_sum could not be computed ahead: %s", task.name, error)

    recipes = {recipe for tensors in downloads if (recipe := recipe_of(tensors)) is not None}
    with ThreadPoolExecutor(THREADS, thread_name_prefix="fedlens-weighted_sum") as pool:
        list(pool.map(find, sorted(recipes)))


def forget_prepared(federation: Federation, task: Task) -> None:
    """Drop what `prepare` has found for a task."""
    for key in [key for key in list(federation.weighted_sum_digests) if key[0] == task.id]:
        federation.weighted_sum_digests.pop(key, None)


def name(federation: Federation, transaction: Transaction, task: Task, recipe: str) -> tuple[bytes, int]:
    """Digest and size of a weighted sum, with its recipe kept from this transaction on.

    Raises:
        BlobError: It holds a NaN or an infinity.
        Unknown: A blob that goes into it is not stored.
    """
    found = federation.weighted_sum_digests.get((task.id, recipe))
    digest, size = found or _found(federation, recipe, _sources(_reading_once(federation.store.blobs.locate)))
    transaction.later(_INSERT, {"digest": digest, "size": size, "recipe": recipe})
    # At once, as the round that this transaction opens asks for it; one that fails leaves it to the next sweep.
    if digest not in federation.store.blobs.computed:
        _register(federation, digest, size, recipe)
    return digest, size


def load(federation: Federation) -> None:
    """Have the store compute the weighted sums that the database names."""
    for row in federation.store.read(select(schema.weighted_sums)):
        _register(federation, row.digest, row.size, row.recipe)


def drop(federation: Federation, transaction: Transaction, digests: Iterable[bytes]) -> None:
    """Forget weighted sums in a transaction."""
    gone = tuple(digests)
    for digest in gone:
        transaction.later(_DELETE, {"gone": digest})

    def follow() -> None:
        for digest in gone:
            federation.store.blobs.computed.pop(digest, None)
            federation.store.blobs.drop_cached(digest)

    transaction.after_commit(follow)


def _register(federation: Federation, digest: bytes, size: int, recipe: str) -> None:
    weighted_sum = _weighted_sum(recipe, _sources(federation.store.blobs.locate))
    sources = frozenset(bytes.fromhex(source) for part in json.loads(recipe) for _, source in part["terms"])
    federation.store.blobs.computed[digest] = ComputedBlob(size, weighted_sum, sources)


def _sources(locate: Locate) -> Callable[[str], StoredTensors]:
    """Stored sets by digest in hex, each made, and its header read, only once."""
    known: dict[str, StoredTensors] = {}

    def source(digest: str) -> StoredTensors:
        found = known.get(digest)
        if found is None:
            raw = bytes.fromhex(digest)
            found = known.setdefault(digest, StoredTensors(raw, NOT_NEEDED, locate))
        return found

    return source


def _weighted_sum(recipe: str, source: Callable[[str], StoredTensors]) -> WeightedSum:
    terms = {}
    for part in json.loads(recipe):
        shared = tuple((weight, source(digest)) for weight, digest in part["terms"])
        terms.update(dict.fromkeys(part["names"], shared))
    return WeightedSum(terms)


def _found(federation: Federation, recipe: str, source: Callable[[str], StoredTensors]) -> tuple[bytes, int]:
    weighted_sum = _weighted_sum(recipe, source)
    size = weighted_sum.layout.size
    if size > SMALL_BYTES:
        return encoding.digest(weighted_sum), size
    raw = b"".join(encoding.pieces(weighted_sum))
    digest = sha256(raw).digest()
    federation.store.blobs.remember(digest, raw)
    return digest, size


def _reading_once(locate: Locate) -> Locate:
    """The same, but small files are read once: the weighted sums of a round have most of their sources in common."""
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
