"""The sets that the members of a round download: named by digest, encoded by the task's codec, told as differences.

Whatever is encoded is encoded once, when the round opens, and kept until it has ended; so a restart changes no byte.
With `download_difference` a set that all members share is a float32 blob R, and clients that still hold the R before
it need only the difference:

    R_t = the set itself                                    where there is no R_{t-1}, or no shorter way from it
    R_t = float32(R_{t-1} + decode(encode(set - R_{t-1})))  otherwise

The difference is taken to what clients hold, not to the set before, so what a codec loses does not add up.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from fedlens_proto.blob import FLOATS, Array, Layout, TensorSpec
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.errors import BlobError
from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2, blob_pb2
from fedlens_server.engine import weighted_sums
from fedlens_server.engine.view import BlobSets, Federation, Round, Task
from fedlens_server.methods import TensorSet
from fedlens_server.store import StoredTensors, Transaction

BlobSet = assignment_pb2.BlobSet


class Downloads:
    """The sets of one round or one evaluation, some of them still to be encoded."""

    def __init__(
        self, federation: Federation, transaction: Transaction, task: Task, before: Round | None, *, exact: bool = False
    ) -> None:
        """New blobs are placed by `transaction`; `before` is the round whose blobs clients may still hold.

        With `exact` nothing is encoded.
        """
        self._federation = federation
        self._transaction = transaction
        self._task = task
        settings = task.settings
        self._floats = blob_pb2.DTYPE_FLOAT32 if exact else FLOATS[settings.wire_download_codec]
        self._by_difference = settings.download_difference and not exact
        self._bases = _shared(before) if before is not None else {}
        self._members: dict[bytes, dict[str, StoredTensors | BlobSet]] = {}
        # By `id` of a set, which is held so that it stays its own.
        self._written: dict[int, tuple[TensorSet, BlobSet]] = {}
        self._encoded: dict[bytes, BlobSet] = {}  # by digest of what is stored

    def add(self, client: bytes, downloaded: Mapping[str, TensorSet]) -> None:
        """Take what the method gives a client.

        Raises:
            BlobError: A tensor of it holds a NaN or an infinity.
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
        told: dict[str, BlobSet] = {}

        def entry(name: str, tensors: StoredTensors | BlobSet) -> BlobSet:
            if isinstance(tensors, BlobSet):
                return _named(name, tensors)
            if name == INITIAL:  # clients keep that part of the bundle; other bytes of it would only be more
                return BlobSet(name=name, sha256=tensors.digest, size=tensors.size)
            if self._by_difference and name in shared:
                if name not in told:
                    told[name] = self._from_base(tensors, self._bases.get(name))
                return _named(name, told[name])
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
        recipe = weighted_sums.recipe_of(tensors) if self._floats == blob_pb2.DTYPE_FLOAT32 else None
        if recipe is not None:
            digest, size = weighted_sums.name(self._federation, self._transaction, self._task, recipe)
            return BlobSet(sha256=digest, size=size)
        found = self._encode(tensors, self._floats)
        self._written[id(tensors)] = tensors, found
        return found

    def _stored_as(self, tensors: StoredTensors, floats: blob_pb2.Dtype) -> BlobSet:
        """A stored set with its floats stored like this; as it is if they are, or if they are too coarse for that."""
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
        """Written like this, or as float32 if a value is too large for it."""
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


def holds(tensors: StoredTensors, wanted: Iterable[TensorSpec]) -> bool:
    """Whether a set has all these tensors, in whatever type they are stored."""
    shapes = {spec.name: spec.shape for spec in tensors.layout.specs}
    return all(shapes.get(spec.name) == spec.shape for spec in wanted)


def to_json(sets: BlobSets) -> str:
    """As kept in the database: by name the digest; with a difference a list of digest, difference and base."""
    return json.dumps(
        {
            item.name: [item.sha256.hex(), item.difference.sha256.hex(), item.difference.base.hex()]
            if item.HasField("difference")
            else item.sha256.hex()
            for item in sets
        },
        sort_keys=True,
    )


def from_json(text: str, size: Callable[[bytes], int]) -> BlobSets:
    """What `to_json` wrote; `size` gives the bytes of each blob by digest."""
    sets = []
    for name, kept in json.loads(text).items():
        digest, *way = [bytes.fromhex(each) for each in ([kept] if isinstance(kept, str) else kept)]
        found = BlobSet(name=name, sha256=digest, size=size(digest))
        if way:
            found.difference.sha256, found.difference.base = way
            found.difference.size = size(way[0])
        sets.append(found)
    return tuple(sets)


def _shared(before: Round) -> dict[str, bytes]:
    """By name the digests of the sets that all members of a round had alike; who has left has none."""
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
