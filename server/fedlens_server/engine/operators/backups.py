"""Backups of a running server: the files of blobs stay while one is made."""

import logging

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine.operators import audit
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import SlowDown, Unavailable, Unknown
from fedlens_server.store import Transaction
from fedlens_server.store.copies import backups
from fedlens_server.store.incoming import storage_full
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

_log = logging.getLogger(__name__)
ACTION = "backup"
"""Of a backup that was made, in the log of changes."""


def make(federation: Federation, place: backups.Place | None, keep: int, by: Operator) -> admin_pb2.BackupResponse:
    """Back up the server into a folder of its machine or into a bucket. Blocks on the disk and the network.

    Args:
        federation: Goes on meanwhile.
        place: Setting `server.backups`.
        keep: The number of latest backups that stay, with this one; 0: all.
        by: The operator.

    Raises:
        Unknown: There is no place for backups.
        SlowDown: Another backup is being made.
        StorageFull: There is no room.
        Unavailable: The place cannot be written.
    """
    if place is None:
        raise Unknown("server.backups is not set; name a folder or bucket in the server's config, and restart it")
    if not federation.backing_up.acquire(blocking=False):
        raise SlowDown("another backup is being made; try again when it has ended", backups.RETRY_MS)
    try:
        taken_at, began = _begin(federation).result(), federation.clock.elapsed()
        try:
            made = _copied(federation, place, taken_at, keep, by)
        except Exception as error:
            events.note(Event.BACKUP_FAILED, reason=str(error))
            raise
        finally:
            try:
                _end(federation).result()
            except Exception:  # the backup is what it is; `tidy` tries again
                _log.exception("blobs that were dropped during a backup stay for now")
    finally:
        federation.backing_up.release()
    cost = {"blobs": made.blobs, "copied": made.copied, "copied_bytes": made.copied_bytes, "removed": made.removed}
    events.note(Event.BACKUP_MADE, backup=made.name, **cost, seconds=federation.clock.elapsed() - began)
    return admin_pb2.BackupResponse(name=made.name, place=str(place / made.name), taken_at=taken_at, **cost)


def tidy(federation: Federation) -> None:
    """Delete what was dropped during a backup, if that failed when it ended. Blocks on the database."""
    if federation.store.blobs.keeps_files and federation.backing_up.acquire(blocking=False):
        try:
            _end(federation).result()
        finally:
            federation.backing_up.release()


def _copied(federation: Federation, place: backups.Place, taken_at: float, keep: int, by: Operator) -> backups.Copied:
    whole: list[str] = []

    def note(name: str) -> None:
        whole.append(name)
        _record(federation, name, by).result()

    try:
        with storage_full():
            return backups.make(federation.store.address, place, taken_at, keep, note)
    except OSError as error:
        what = f"backup {whole[0]} is whole, but older ones stay" if whole else "no backup was made"
        told = f"{what}: {error.filename or place}: {error.strerror}"
        raise Unavailable(told, backups.RETRY_MS) from error


# A commit of its own for each: no operation that deletes or places a blob is half done then.
@operation()
def _begin(federation: Federation, transaction: Transaction) -> float:
    transaction.after_commit(federation.store.blobs.keep_files)
    return federation.clock.now()


@operation()
def _end(federation: Federation, transaction: Transaction) -> None:
    transaction.after_commit(federation.store.blobs.end_keeping_files)


@operation()
def _record(federation: Federation, transaction: Transaction, name: str, by: Operator) -> None:
    audit.record(federation, transaction, by, ACTION, name)
