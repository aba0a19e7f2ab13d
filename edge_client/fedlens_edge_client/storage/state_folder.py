"""The state folder: everything that a client must not lose, bound to one server and used by one process at a time.

secret           32 bytes, mode 0600; they are the identity of this client
client.sqlite3   enrolment, outbox, client state, noisy answers, digests of photos already read
tensors/         blobs of the outbox and of client state that are too large for a row
lock             held while a client is open
cache/           files that can be fetched or computed again (`cache.py`, `feature_cache.py`)
"""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Self

from fedlens_edge_client.errors import StateError
from fedlens_proto import keyed_hash

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE outbox (
    task INTEGER, round INTEGER, answer INTEGER NOT NULL, header BLOB NOT NULL, body_sha256 BLOB NOT NULL,
    PRIMARY KEY (task, round)
);
CREATE TABLE outbox_blobs (
    task INTEGER, round INTEGER, position INTEGER, blob_sha256 BLOB NOT NULL, blob BLOB,
    PRIMARY KEY (task, round, position)
);
CREATE TABLE client_state (
    task INTEGER, name TEXT, round INTEGER, is_current INTEGER NOT NULL, blob_sha256 BLOB NOT NULL, blob BLOB,
    PRIMARY KEY (task, name, round, is_current)
);
CREATE TABLE photo_digests (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, sha256 BLOB NOT NULL) WITHOUT ROWID;
"""


class StateFolder:
    """An open state folder."""

    def __init__(self, folder: Path, secret: bytes, database: sqlite3.Connection) -> None:
        """Use `open`."""
        self.folder = folder
        self.secret = secret
        self._database = database
        self._resources = ExitStack()
        self._turn = threading.Lock()

    @classmethod
    def open(cls, folder: Path, server: str, secret: bytes | None = None, durable: bool = True) -> Self:
        """Open or make the state folder of a client of `server`.

        Args:
            folder: Created if missing.
            server: Its address; a folder that belongs to another server is refused.
            secret: Identity to use instead of the folder's own, which is then not created.
            durable: Stored data survives a power failure; otherwise only the end of the process.

        Raises:
            StateError: The folder belongs to another server or identity, is in use, damaged or from a newer version.
        """
        with ExitStack() as resources:
            _lock(folder, resources)
            identity = _read_secret(folder) if secret is None else secret
            database = _open_database(folder / "client.sqlite3", durable, resources)
            state = cls(folder, identity, database)
            state._bind("server", server.encode(), f"server {server}")
            state._bind("client_id", state.client_id, "this identity")
            state._resources = resources.pop_all()
        return state

    @property
    def client_id(self) -> bytes:
        """The public id, 32 bytes."""
        return keyed_hash.client_id(self.secret)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Change all or nothing; the change is on disk when the block ends. Threads take turns; do not nest.

        Raises:
            StateError: The database cannot be written: disk full, damaged.
        """
        with self._turn:
            try:
                with self._database as database:
                    database.execute("BEGIN IMMEDIATE")
                    yield database
            except sqlite3.Error as error:
                raise StateError(f"{self.folder / 'client.sqlite3'} cannot be used: {error}") from error

    def select(self, query: str, *parameters: object) -> list[Any]:
        """The rows that a query returns; errors as in `transaction`."""
        with self.transaction() as database:
            return database.execute(query, parameters).fetchall()

    def get(self, key: str) -> bytes | None:
        """The value stored under `key`."""
        rows = self.select("SELECT value FROM meta WHERE key = ?", key)
        return bytes(rows[0][0]) if rows else None

    def set(self, key: str, value: bytes) -> None:
        """Store `value` under `key`."""
        with self.transaction() as database:
            database.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def reset(self) -> None:
        """Delete enrolment, pause, results and client state: a server that forgot the client cannot use them.

        Noisy answers stay, because fresh noise for a second answer would let the noise average out.
        """
        with self.transaction() as database:
            database.execute("DELETE FROM meta WHERE key IN ('enrolment', 'not_before')")
            for table in ("outbox", "outbox_blobs", "client_state"):
                database.execute(f"DELETE FROM {table}")
        try:
            for file in (self.folder / "tensors").glob("*"):
                file.unlink()
        except OSError as error:
            raise StateError(f"old tensors cannot be deleted: {error}") from error

    def erase(self) -> None:
        """Do as `reset` and delete the identity, after the server has forgotten the client."""
        self.reset()
        with self.transaction() as database:
            database.execute("DELETE FROM meta WHERE key = 'client_id'")
        (self.folder / "secret").unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process use the folder."""
        self._resources.close()

    def _bind(self, key: str, value: bytes, what: str) -> None:
        bound = self.get(key)
        if bound is None:
            self.set(key, value)
        elif bound != value:
            found = bound.decode() if key == "server" else f"client {bound.hex()}"
            raise StateError(f"state folder {self.folder} belongs to {found}, not to {what}; use another folder")


def fsync_folder(folder: Path) -> None:
    """Write the directory entries of a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(folder: Path, resources: ExitStack) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        resources.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StateError(
            f"state folder {folder} is in use by another process; stop it, or use another folder"
        ) from error
    except OSError as error:
        raise StateError(f"state folder {folder} cannot be used: {error}") from error


def _read_secret(folder: Path) -> bytes:
    path = folder / "secret"
    try:
        if not path.exists():
            _make_secret(path)
        secret = path.read_bytes()
    except OSError as error:
        raise StateError(f"{path} cannot be used: {error}") from error
    if len(secret) != keyed_hash.DIGEST_BYTES:
        raise StateError(f"{path} must hold {keyed_hash.DIGEST_BYTES} bytes, found {len(secret)}; restore it")
    return secret


def _make_secret(path: Path) -> None:
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(os.urandom(keyed_hash.DIGEST_BYTES))
        file.flush()
        os.fsync(descriptor)
    fresh.rename(path)
    fsync_folder(path.parent)


def _open_database(path: Path, durable: bool, resources: ExitStack) -> sqlite3.Connection:
    try:
        # The client uses the database from several threads, one at a time.
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        database = resources.enter_context(closing(connection))
        # First, because the change to WAL waits for the disk if it may.
        database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
        database.execute("PRAGMA journal_mode = WAL")
        ((found,),) = database.execute("PRAGMA user_version").fetchall()
        if found > SCHEMA_VERSION:
            raise StateError(
                f"{path} was written by a newer fedlens (schema {found}, this one reads {SCHEMA_VERSION}); "
                "upgrade, or use another state folder"
            )
        if found == 0:
            database.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")
    except sqlite3.Error as error:
        raise StateError(f"{path} cannot be used: {error}") from error
    return database
