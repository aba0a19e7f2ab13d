"""The SQLite file: lock for one process, connections, schema upgrades."""

import fcntl
import os
import sqlite3
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import ConnectionPoolEntry

from fedlens_server.errors import StoreUnusable

DATABASE_FILE = "server.sqlite3"
LOCK_FILE = "lock"


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


def connect(folder: Path, *, begin: str, durable: bool = True) -> Engine:
    """An engine for the folder's database whose transactions start with `begin`.

    Commits survive a power failure, or without `durable` only the end of the process.
    """
    # Parameters hold data of clients and operators, which must not get into the log with an error's text.
    engine = create_engine(
        f"sqlite:///{folder / DATABASE_FILE}", connect_args={"check_same_thread": False}, hide_parameters=True
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # otherwise the driver begins transactions itself, and late
        cursor = connection.cursor()
        synchronous = f"synchronous = {'FULL' if durable else 'OFF'}"
        for pragma in ("journal_mode = WAL", synchronous, "foreign_keys = ON", "busy_timeout = 10000"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def migrate(engine: Engine, folder: Path) -> None:
    """Upgrade the database to this version's schema, in one transaction.

    Raises:
        StoreUnusable: The schema is unknown to this version, or the file is no database of a FedLens server.
    """
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    script = ScriptDirectory.from_config(config)
    known = {revision.revision for revision in script.walk_revisions()}
    try:
        with engine.begin() as connection:
            found = _revisions(connection)
            if unknown := found - known:
                raise StoreUnusable(
                    f"{folder / DATABASE_FILE} has schema {', '.join(sorted(unknown))}; this version of FedLens "
                    f"knows up to {script.get_current_head()}. It was written by a newer version: upgrade FedLens"
                )
            if found == {script.get_current_head()}:
                return
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DatabaseError as error:
        raise StoreUnusable(f"{folder / DATABASE_FILE} cannot be used as a database: {error.orig}") from error


def _revisions(connection: Connection) -> set[str]:
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        return {row.version_num for row in connection.execute(text("SELECT version_num FROM alembic_version"))}
    if tables:
        raise StoreUnusable(f"the database holds tables of another program ({tables[0]}); choose an empty folder")
    return set()
