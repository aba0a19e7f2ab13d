"""Storage of a method's state: tensor sets and arrays as blobs, plain values as JSON, by name."""

import json
import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import delete, select
from sqlalchemy.dialects.sqlite import insert

from fedlens_server.planning.method import MethodState
from fedlens_server.store import PendingBlob, Store, StoredTensors, Transaction, schema

TENSORS, ARRAY, PLAIN = "tensors", "array", "plain"
_ARRAY_NAME = "value"
_OWNED = re.compile("clients/([0-9a-f]{64})/")
_upsert = insert(schema.state_entries)
_UPSERT = _upsert.on_conflict_do_update(
    index_elements=["task", "name"],
    set_={column: _upsert.excluded[column] for column in ("kind", "blob", "value")},
)
_entries = schema.state_entries.c


@dataclass(frozen=True)
class Entry:
    """A row of the table `state_entries`."""

    name: str
    kind: str
    blob: bytes | None
    value: str | None


@dataclass(frozen=True)
class PreparedState:
    """A new state whose blobs are written and wait for the transaction that stores them."""

    values: MethodState
    changed: tuple[Entry, ...] = ()
    blobs: tuple[PendingBlob, ...] = ()
    removed: frozenset[str] = frozenset()


def prepare(store: Store, old: MethodState, new: MethodState, open_blobs: ExitStack) -> PreparedState:
    """Write the new entries of a state; entries that are the same object as in `old` are not written again.

    Args:
        store: The store to write to.
        old: The stored state.
        new: The state from the method.
        open_blobs: To be closed after the transaction.

    Raises:
        TypeError: An entry has a type that cannot be stored.
        BlobError: A tensor has a NaN or an infinity, or a type that cannot be stored.
        StorageFull: There is no room.
    """
    values: dict[str, Any] = {}
    changed: list[Entry] = []
    blobs: list[PendingBlob] = []

    def write(tensors: Mapping[str, Any]) -> StoredTensors:
        blob = store.write_tensors(tensors, open_blobs.enter_context(store.incoming()))
        blobs.append(blob)
        return StoredTensors(blob.digest, blob.size, store.blobs.locate)

    for name, value in new.items():
        if name in old and old[name] is value:
            values[name] = value
        elif isinstance(value, Mapping):
            stored = value if isinstance(value, StoredTensors) else write(value)
            values[name] = stored
            changed.append(Entry(name, TENSORS, stored.digest, None))
        elif isinstance(value, np.ndarray):
            stored = write({_ARRAY_NAME: value})
            values[name] = _as_stored(value)
            changed.append(Entry(name, ARRAY, stored.digest, None))
        else:
            text = json.dumps(value, allow_nan=False)
            values[name] = json.loads(text)
            changed.append(Entry(name, PLAIN, None, text))
    return PreparedState(values, tuple(changed), tuple(blobs), frozenset(old.keys() - new.keys()))


def without(prepared: PreparedState, clients: Collection[bytes]) -> PreparedState:
    """The same state without the entries of these clients; their blobs are not stored and their rows are removed."""
    names = of_clients(prepared.values, clients)
    changed = tuple(entry for entry in prepared.changed if entry.name not in names)
    named = {entry.blob for entry in changed}
    return PreparedState(
        {name: value for name, value in prepared.values.items() if name not in names},
        changed,
        tuple(blob for blob in prepared.blobs if blob.digest in named),
        prepared.removed | names,
    )


def save(transaction: Transaction, task: int, prepared: PreparedState) -> None:
    """Store the new state in a transaction."""
    for blob in prepared.blobs:
        transaction.place(blob)
    for entry in prepared.changed:
        row = {"task": task, "name": entry.name, "kind": entry.kind, "blob": entry.blob, "value": entry.value}
        transaction.later(_UPSERT, row)
    remove(transaction, task, prepared.removed)


def remove(transaction: Transaction, task: int, names: Collection[str]) -> None:
    """Delete entries in a transaction."""
    for name in names:
        transaction.execute(delete(schema.state_entries).where(_entries.task == task, _entries.name == name))


def load(store: Store, task: int) -> tuple[MethodState, dict[str, bytes]]:
    """The stored state of a task, and the blob digests of its tensor sets and arrays by name."""
    values: dict[str, Any] = {}
    blobs: dict[str, bytes] = {}
    for row in store.read(select(schema.state_entries).where(_entries.task == task).order_by(_entries.name)):
        if row.kind == PLAIN:
            values[row.name] = json.loads(row.value)
        else:
            blobs[row.name] = row.blob
            tensors = store.tensors(row.blob)
            values[row.name] = tensors if row.kind == TENSORS else _as_stored(tensors[_ARRAY_NAME])
    return values, blobs


def blobs_after(blobs: Mapping[str, bytes], prepared: PreparedState) -> dict[str, bytes]:
    """The blob digests of the new state by name, given those of the old state."""
    new = {entry.name: entry.blob for entry in prepared.changed}
    merged = {name: digest for name, digest in blobs.items() if name in prepared.values} | new
    return {name: digest for name, digest in merged.items() if digest is not None}


def of_clients(values: MethodState, clients: Collection[bytes]) -> frozenset[str]:
    """The names of the entries that belong to these clients."""
    owned = ((name, _OWNED.match(name)) for name in values)
    return frozenset(name for name, found in owned if found and bytes.fromhex(found[1]) in clients)


def _as_stored(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    stored = value.astype(np.float32 if value.dtype.kind == "f" else np.int64)
    stored.flags.writeable = False
    return stored
