"""A server's database: the lock of its folder, and schema upgrades."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DatabaseError

from fedlens_server.errors import StoreUnusable
from fedlens_server.store.address import StateAddress
from fedlens_server.store.dialects import Database, Sqlite, reason

LOCK_FILE = "lock"
_ALL = os.R_OK | os.W_OK | os.X_OK


def lock(folder: Path) -> int:
    """Lock the folder for this process, until the returned descriptor is closed.

    Raises:
        StoreUnusable: Another process holds the lock.
    """
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreUnusable(
            f"{folder} is in use by another server; stop it, or give this one another folder"
        ) from error
    return descriptor


def check_access(folder: Path) -> None:
    """Check that this process may read and write the folders of a state, as far as they are there.

    Raises:
        StoreUnusable: It may not.
    """
    folders = (folder, folder / "blobs", folder / "blobs" / "incoming")
    user = f"user {os.geteuid()}, as which the server runs"
    try:
        for each in folders:
            if not each.is_dir() or os.access(each, _ALL, effective_ids=True):
                continue
            if os.statvfs(each).f_flag & os.ST_RDONLY:
                raise StoreUnusable(f"server.data: {each} is on a disk that is mounted for reading only")
            raise StoreUnusable(
                f"server.data: {each} cannot be read and written by {user}; make it the user's: "
                f"chown -R {os.geteuid()} {folder}"
            )
    except PermissionError as error:
        raise StoreUnusable(f"server.data: {error.filename} cannot be reached by {user}: {error.strerror}") from error


def holds_state(address: Path | StateAddress) -> bool:
    """True if there is a server's state, of whatever version.

    Raises:
        StoreUnusable: Its database cannot be reached, or holds another program's tables.
    """
    database = StateAddress.of(address).open_database()
    if isinstance(database, Sqlite) and not database.path.is_file():
        return False  # a connection would make it
    engine = database.engine()
    try:
        with usable(database), engine.connect() as connection:
            return bool(_revisions(connection, database))
    finally:
        engine.dispose()


def migrate(engine: Engine, database: Database, *, upgrade: bool = True) -> None:
    """Give the database this version's schema, in one transaction; without `upgrade` only where there is none.

    Raises:
        StoreUnusable: The schema is unknown to this version, or it is no database of a FedLens server.
    """
    with usable(database), engine.begin() as connection:
        migrate_within(connection, database, upgrade=upgrade)


def migrate_within(connection: Connection, database: Database, *, upgrade: bool = True) -> None:
    """As `migrate`, in a transaction that others wait for before they look at the schema."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    known = {revision.revision for revision in script.walk_revisions()}
    database.lock_schema(connection)
    found = _revisions(connection, database)
    if unknown := found - known:
        raise StoreUnusable(
            f"{database.place} has schema {', '.join(sorted(unknown))}; this version of FedLens "
            f"knows up to {script.get_current_head()}. It was written by a newer version: upgrade FedLens"
        )
    if found == {script.get_current_head()} or (found and not upgrade):
        return
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@contextmanager
def usable(database: Database) -> Iterator[None]:
    """Turn errors of a database, when it is opened, into `StoreUnusable`."""
    try:
        yield
    except DatabaseError as error:
        raise StoreUnusable(f"{database.place} cannot be used as a database: {reason(error)}") from error


def _revisions(connection: Connection, database: Database) -> set[str]:
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        return {row.version_num for row in connection.execute(text("SELECT version_num FROM alembic_version"))}
    if tables:
        raise StoreUnusable(
            f"{database.place} holds tables of another program ({tables[0]}); choose an empty folder or database"
        )
    return set()
