"""The state folder: what a client must not lose, bound to one server and used by one process at a time.

secret           32 bytes, mode 0600; whoever has them is this client
client.sqlite3   identity, outbox, kept sets, noisy answers, digests of photos already read
tensors/         blobs of the outbox and of kept sets that are too large for a row
lock             held while a client is open
cache/           what can be fetched or computed again (`cache.py`, `features.py`)
"""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Self

from fedlens_edge_client.errors import StateError
from fedlens_proto import keyed_hash

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE outbox (
    task INTEGER, round INTEGER, answer INTEGER NOT NULL, header BLOB NOT NULL, body_sha256 BLOB NOT NULL,
    blob_sha256 BLOB, blob BLOB,
    PRIMARY KEY (task, round)
);
CREATE TABLE kept (
    task INTEGER, name TEXT, round INTEGER, is_current INTEGER NOT NULL, blob_sha256 BLOB NOT NULL, blob BLOB,
    PRIMARY KEY (task, name, round, is_current)
);
CREATE TABLE start_rules (task INTEGER PRIMARY KEY, local_plan BLOB NOT NULL);
CREATE TABLE photo_digests (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, sha256 BLOB NOT NULL) WITHOUT ROWID;
"""


class State:
    """An open state folder."""

    def __init__(self, folder: Path, secret: bytes, database: sqlite3.Connection, lock: int) -> None:
        """Use `open`."""
        self.folder = folder
        self.secret = secret
        self._database = database
        self._turn = threading.Lock()
        self._lock = lock

    @classmethod
    def open(cls, folder: Path, server: str, secret: bytes | None = None, durable: bool = True) -> Self:
        """Open or make the state folder of a client of `server`.

        Args:
            folder: Made if it is not there.
            server: Its address; another one than last time is refused.
            secret: Identity to use instead of the folder's own, which is then not made.
            durable: What is stored outlives a power failure; otherwise only the end of the process.

        Raises:
            StateError: It is another server's or another identity's, in use, damaged or from a newer version.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(f"state folder {folder} cannot be used: {error}") from error
        try:
            _take(lock, folder)
            identity = _read_secret(folder) if secret is None else secret
            database = _open_database(folder / "client.sqlite3", durable)
            state = cls(folder, identity, database, lock)
            try:
                state._bind("server", server.encode(), f"server {server}")
                state._bind("client_id", state.client_id, "this identity")
            except BaseException:
                database.close()
                raise
        except BaseException:
            os.close(lock)
            raise
        return state

    @property
    def client_id(self) -> bytes:
        """The public id, 32 bytes."""
        return keyed_hash.client_id(self.secret)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, on disk when the block has ended; not to be nested. Other threads wait for their turn.

        Raises:
            StateError: The database cannot be written: disk full, damaged.
        """
        with self._turn:
            yield from self._transact()

    def _transact(self) -> Iterator[sqlite3.Connection]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            if self._database.in_transaction:
                with suppress(sqlite3.Error):
                    self._database.execute("ROLLBACK")
            raise StateError(f"{self.folder / 'client.sqlite3'} cannot be used: {error}") from error

    def get(self, key: str) -> bytes | None:
        """A value stored under `key`."""
        with self.transaction() as db:
            row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def set(self, key: str, value: bytes) -> None:
        """Store `value` under `key`."""
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def reset(self) -> None:
        """Delete role, results and kept sets, which mean nothing to a server that does not know the client.

        Noisy answers stay: a second one would let their noise average out.
        """
        with self.transaction() as db:
            db.execute("DELETE FROM meta WHERE key = 'role'")
            db.execute("DELETE FROM outbox")
            db.execute("DELETE FROM kept")
            db.execute("DELETE FROM start_rules")

    def erase(self) -> None:
        """As `reset`, and delete the identity, after the server has forgotten the client."""
        self.reset()
        with self.transaction() as db:
            db.execute("DELETE FROM meta WHERE key = 'client_id'")
        (self.folder / "secret").unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process use the folder."""
        self._database.close()
        os.close(self._lock)

    def _bind(self, key: str, value: bytes, what: str) -> None:
        bound = self.get(key)
        if bound is None:
            self.set(key, value)
        elif bound != value:
            found = bound.decode() if key == "server" else f"client {bound.hex()}"
            raise StateError(
                f"state folder {self.folder} belongs to {found}, not to {what}; use a folder of its own for each"
            )


def fsync_folder(folder: Path) -> None:
    """Have the names of a folder's files on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _take(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StateError(
            f"state folder {folder} is in use by another process; stop it, or use a folder of its own"
        ) from error


def _read_secret(folder: Path) -> bytes:
    path = folder / "secret"
    try:
        secret = _secret_in(path)
    except OSError as error:
        raise StateError(f"{path} cannot be used: {error}") from error
    if len(secret) != keyed_hash.DIGEST_BYTES:
        raise StateError(f"{path} must hold {keyed_hash.DIGEST_BYTES} bytes, found {len(secret)}; restore it")
    return secret


def _secret_in(path: Path) -> bytes:
    if not path.exists():
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(keyed_hash.DIGEST_BYTES))
            file.flush()
            os.fsync(descriptor)
        fresh.rename(path)
        fsync_folder(path.parent)
    return path.read_bytes()


def _open_database(path: Path, durable: bool) -> sqlite3.Connection:
    try:
        # The client's work is sequential, but parts of it run in a thread.
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise StateError(f"{path} cannot be opened: {error}") from error
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        with closing(database.execute("PRAGMA user_version")) as cursor:
            (found,) = cursor.fetchone()
        if found > SCHEMA_VERSION:
            raise StateError(
                f"{path} was written by a newer fedlens (schema {found}, this one reads {SCHEMA_VERSION}); "
                "upgrade, or use another state folder"
            )
        if found == 0:
            database.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
    except sqlite3.Error as error:
        database.close()
        raise StateError(f"{path} cannot be used: {error}") from error
    except BaseException:
        database.close()
        raise
    return database
