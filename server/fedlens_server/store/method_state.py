"""Storage of a method's state: tensor sets and arrays as blobs, plain values as JSON, by client and name."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import delete, select

from fedlens_proto.errors import BlobError
from fedlens_server.planning.method import BadState, State
from fedlens_server.store import PendingBlob, Store, StoredTensors, Transaction, schema
from fedlens_server.store.dialects import insert

TENSORS, ARRAY, PLAIN = "tensors", "array", "plain"
SHARED = b""
"""As the client of an entry that belongs to none."""
PRESENT = 0
"""As the round of a state: the present one."""
_ARRAY_NAME = "value"
_ID_BYTES = 32
_upsert = insert(schema.state_entries)
_UPSERT = _upsert.on_conflict_do_update(
    index_elements=["task", "round", "client", "name"],
    set_={column: _upsert.excluded[column] for column in ("kind", "blob", "value")},
)
_entries = schema.state_entries.c


class Key(NamedTuple):
    """The key of an entry."""

    client: bytes
    name: str


@dataclass(frozen=True)
class Row:
    """A row of the table `state_entries`."""

    key: Key
    kind: str
    blob: bytes | None
    value: str | None


@dataclass(frozen=True)
class PreparedState:
    """A new state whose blobs are written and wait for the transaction that stores them."""

    values: State
    changed: tuple[Row, ...] = ()
    blobs: tuple[PendingBlob, ...] = ()
    removed: frozenset[Key] = field(default_factory=frozenset)


def prepare(store: Store, old: State, new: State, open_blobs: ExitStack) -> PreparedState:
    """Write the new entries of a state; entries that are the same object as in `old` are not written again.

    Args:
        store: The store to write to.
        old: The stored state.
        new: The state from the method.
        open_blobs: To be closed after the transaction.

    Raises:
        BadState: It is no state, or one of its entries cannot be stored.
        StorageFull: There is no room.
    """
    before, after = _by_key(old), _by_key(checked(new))
    values: dict[Key, Any] = {}
    changed: list[Row] = []
    blobs: list[PendingBlob] = []

    def write(tensors: Mapping[str, Any]) -> StoredTensors:
        blob = store.write_tensors(tensors, open_blobs.enter_context(store.incoming()))
        blobs.append(blob)
        return StoredTensors(blob.digest, blob.size, store.blobs.locate)

    for key, value in after.items():
        if key in before and before[key] is value:
            values[key] = value
        elif isinstance(value, Mapping):
            with _naming(key, "a set has an array of numbers for each name"):
                # An update's file is open until its round is aggregated; other threads read a state meanwhile.
                stored = value.unopened() if isinstance(value, StoredTensors) else write(value)
            values[key] = stored
            changed.append(Row(key, TENSORS, stored.digest, None))
        elif isinstance(value, np.ndarray):
            with _naming(key, "an array is of numbers"):
                stored = write({_ARRAY_NAME: value})
            values[key] = _as_stored(value)
            changed.append(Row(key, ARRAY, stored.digest, None))
        else:
            with _naming(key, "what is no set of tensors and no array must be a value that JSON can hold"):
                text = json.dumps(value, allow_nan=False)
            values[key] = json.loads(text)
            if not (isinstance(value, list) and key in before and before[key] == values[key]):
                changed.append(Row(key, PLAIN, None, text))
    return PreparedState(_state(values), tuple(changed), tuple(blobs), frozenset(before.keys() - after.keys()))


def given(state: State) -> State:
    """The state as a method gets it: its lists are copies, in which a change has no effect on what is stored."""

    def copied(entries: Mapping[str, Any]) -> Mapping[str, Any]:
        lists = {name: deepcopy(entry) for name, entry in entries.items() if isinstance(entry, list)}
        return MappingProxyType({**entries, **lists}) if lists else entries

    clients = {client: copied(own) for client, own in state.clients.items()}
    return State(shared=copied(state.shared), clients=MappingProxyType(clients))


def without(prepared: PreparedState, clients: Collection[bytes]) -> PreparedState:
    """The same state without the entries of these clients; their blobs are not stored and their rows are removed."""
    changed = tuple(row for row in prepared.changed if row.key.client not in clients)
    named = {row.blob for row in changed}
    return PreparedState(
        without_clients(prepared.values, clients),
        changed,
        tuple(blob for blob in prepared.blobs if blob.digest in named),
        prepared.removed | of_clients(prepared.values, clients),
    )


def without_clients(state: State, clients: Collection[bytes]) -> State:
    """The state without the entries of these clients."""
    return replace(state, clients={client: own for client, own in state.clients.items() if client not in clients})


def of_clients(state: State, clients: Collection[bytes]) -> frozenset[Key]:
    """The keys of the entries that belong to these clients."""
    return frozenset(key for key in _by_key(state) if key.client in clients)


def save(transaction: Transaction, task: int, prepared: PreparedState) -> None:
    """Store the new state in a transaction."""
    for blob in prepared.blobs:
        transaction.place(blob)
    for row in prepared.changed:
        transaction.later(
            _UPSERT,
            {
                "task": task,
                "round": PRESENT,
                **row.key._asdict(),
                "kind": row.kind,
                "blob": row.blob,
                "value": row.value,
            },
        )
    remove(transaction, task, prepared.removed)


def remove(transaction: Transaction, task: int, keys: Collection[Key]) -> None:
    """Delete entries in a transaction."""
    for client, name in keys:
        of_key = (_entries.task == task, _entries.round == PRESENT, _entries.client == client, _entries.name == name)
        transaction.execute(delete(schema.state_entries).where(*of_key))


def keep(
    transaction: Transaction, task: int, number: int, shared: Mapping[str, Any], blobs: Mapping[Key, bytes]
) -> None:
    """Store a copy of a state's shared entries as they are after a round, given the blob digests of the state."""
    for name, value in shared.items():
        blob = blobs.get(Key(SHARED, name))
        kind = PLAIN if blob is None else ARRAY if isinstance(value, np.ndarray) else TENSORS
        text = json.dumps(value, allow_nan=False) if blob is None else None
        row = {"task": task, "round": number, "client": SHARED, "name": name}
        transaction.later(_UPSERT, {**row, "kind": kind, "blob": blob, "value": text})


def drop_copies(transaction: Transaction, task: int, numbers: Collection[int]) -> None:
    """Delete the copies of a state as it was after these rounds."""
    if numbers:
        of_rounds = (_entries.task == task, _entries.round.in_(numbers))
        transaction.execute(delete(schema.state_entries).where(*of_rounds))


def copies(store: Store, task: int) -> dict[int, frozenset[bytes]]:
    """By round the blob digests of the stored copy of a task's state as it was after it."""
    found: dict[int, set[bytes]] = {}
    of_task = (_entries.task == task, _entries.round != PRESENT)
    for row in store.read(select(_entries.round, _entries.blob).where(*of_task).order_by(_entries.round)):
        found.setdefault(row.round, set()).update([] if row.blob is None else [row.blob])
    return {number: frozenset(digests) for number, digests in found.items()}


def load(store: Store, task: int, number: int = PRESENT) -> tuple[State, dict[Key, bytes]]:
    """The stored state of a task, now or as it was after a round, and its blob digests."""
    values: dict[Key, Any] = {}
    blobs: dict[Key, bytes] = {}
    rows = select(schema.state_entries).where(_entries.task == task, _entries.round == number)
    for row in store.read(rows.order_by(_entries.client, _entries.name)):
        key = Key(row.client, row.name)
        if row.kind == PLAIN:
            values[key] = json.loads(row.value)
        else:
            blobs[key] = row.blob
            tensors = store.tensors(row.blob)
            values[key] = tensors if row.kind == TENSORS else _as_stored(tensors[_ARRAY_NAME])
    return _state(values), blobs


def blobs_after(blobs: Mapping[Key, bytes], prepared: PreparedState) -> dict[Key, bytes]:
    """The blob digests of the new state, given those of the old state."""
    kept = _by_key(prepared.values)
    new = {row.key: row.blob for row in prepared.changed}
    merged = {key: digest for key, digest in blobs.items() if key in kept} | new
    return {key: digest for key, digest in merged.items() if digest is not None}


def _by_key(state: State) -> dict[Key, Any]:
    shared = {Key(SHARED, name): entry for name, entry in state.shared.items()}
    owned = {Key(client, name): entry for client, own in state.clients.items() for name, entry in own.items()}
    return shared | owned


def _state(values: Mapping[Key, Any]) -> State:
    clients: dict[bytes, dict[str, Any]] = {}
    for (client, name), entry in values.items():
        clients.setdefault(client, {})[name] = entry
    # A change in place would be lost without a word: a new state is stored by what differs from this one.
    fixed = {client: MappingProxyType(own) for client, own in clients.items()}
    return State(shared=fixed.pop(SHARED, MappingProxyType({})), clients=MappingProxyType(fixed))


def checked(state: object) -> State:
    """What a method gave as its state.

    Raises:
        BadState: It is no state, or the name of an entry or the id of a client is none.
    """
    if not isinstance(state, State):
        raise BadState(f"found {type(state).__name__}, must be a State")
    for client, own in state.clients.items():
        if not isinstance(client, bytes) or len(client) != _ID_BYTES:
            raise BadState(f"clients: found key {client!r}, must be a client's id, {_ID_BYTES} bytes")
        if not isinstance(own, Mapping):
            raise BadState(f"clients: found a {type(own).__name__} for a client, must be its entries by name")
    for name in chain(state.shared, *state.clients.values()):
        if not isinstance(name, str) or not name:
            raise BadState(f"found entry {name!r}, must be a name")
    return state


@contextmanager
def _naming(key: Key, allowed: str) -> Iterator[None]:
    """Name the entry, and what is allowed, in what is raised about its value."""
    try:
        yield
    except (AttributeError, BlobError, TypeError, ValueError) as error:
        owner = f"clients[{key.client.hex()[:8]}...]" if key.client else "shared"
        rule = "" if isinstance(error, BlobError) else f"; {allowed}"
        raise BadState(f"{owner}[{key.name!r}]: {error}{rule}") from error


def _as_stored(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    stored = value.astype(np.float32 if value.dtype.kind == "f" else np.int64)
    stored.flags.writeable = False
    return stored
