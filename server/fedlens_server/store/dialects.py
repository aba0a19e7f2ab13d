"""Everything in which SQLite and PostgreSQL differ: types, connections, and what their errors mean.

Statements for rows that may be there are written with `insert` of this module: SQLite has taken ON CONFLICT from
PostgreSQL, and SQLAlchemy writes it alike for both.
"""

import secrets
import socket
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    BigInteger,
    ColumnClause,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Float,
    Integer,
    Table,
    TableClause,
    Text,
    cast,
    create_engine,
    delete,
    event,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import REGCLASS, insert
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError, TimeoutError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.types import TypeDecorator, TypeEngine

from fedlens_server.errors import ServerError, StorageFull, Unavailable

__all__ = [
    "INTEGER",
    "Database",
    "Postgres",
    "Sqlite",
    "Textual",
    "fault",
    "full",
    "insert",
    "reading",
    "reason",
    "uncertain",
]

DATABASE_FILE = "server.sqlite3"
FULL_RETRY_MS = 10_000
AWAY_RETRY_MS = 2_000
# SQLSTATEs, and their classes, of a server that cannot serve now: its connection, resources, operators or system; a
# server that has become a replica; a transaction that lost against another.
_AWAY = ("08", "53", "57", "58", "25006", "40")
_DISK_FULL = "53100"
# A server that is gone is noticed within some 10 s, while the connection idles and while it waits for an answer.
_CONNECTION = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# The lead is taken at once, or not by this transaction; one whose process hangs must not keep others from it.
_TAKING_S = {"lock_timeout": "2s", "idle_in_transaction_session_timeout": "4s"}
_SESSIONS = TableClause(
    "pg_stat_activity", ColumnClause("pid"), ColumnClause("application_name"), ColumnClause("datname")
)
_SEQUENCE = TableClause("sqlite_sequence", ColumnClause("name"), ColumnClause("seq"))
_SCHEMA_LOCK = int.from_bytes(b"fedlens")

INTEGER = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits in both: an INTEGER of PostgreSQL ends at 2^31, and in SQLite no other type numbers rows."""


class Textual(TypeDecorator[str]):
    """Text in the order of its bytes, in which U+FFFD stands for NUL, which PostgreSQL cannot store."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[str]:
        """The database's own type."""
        return dialect.type_descriptor(Text(collation="C") if dialect.name == "postgresql" else Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """The text as it is stored."""
        return None if value is None else value.replace("\0", "\N{REPLACEMENT CHARACTER}")


class Database(ABC):
    """A database that holds a server's state.

    Attributes:
        place: Its name for operators, without credentials.
        holder: The name of this server among those that have it open, at most 63 bytes.
        is_shared: True if servers on other machines reach it.
        clock: Its time, in seconds since the epoch.
    """

    place: str
    holder: str
    is_shared: bool
    clock: ColumnElement[float]

    @abstractmethod
    def engine(self, *, writes: bool = False, durable: bool = True) -> Engine:
        """Connections that read, each transaction as of one commit, or that write.

        Commits survive a power failure, or without `durable` only the end of this process.
        """

    @abstractmethod
    def lock_schema(self, connection: Connection) -> None:
        """Wait for others that change the schema, and have them wait until the transaction ends."""

    @abstractmethod
    def end_sessions(self, connection: Connection, holder: str) -> None:
        """End the transactions of a server that may hang in one, in a transaction that itself hangs for 4 s at most."""

    @abstractmethod
    def size(self, connection: Connection) -> int:
        """The bytes that it takes."""

    @abstractmethod
    def counter(self, connection: Connection, table: Table) -> int:
        """The last number that a table, which numbers its rows by itself, has given to one."""

    @abstractmethod
    def set_counter(self, connection: Connection, table: Table, last: int) -> None:
        """Have a table go on after a number."""


class Sqlite(Database):
    """A file."""

    holder, is_shared = "", False
    clock = (func.julianday("now") - 2_440_587.5) * 86_400.0

    def __init__(self, folder: Path, name: str = DATABASE_FILE) -> None:
        """In `folder`; the first connection makes the file."""
        self.path = folder / name
        self.place = str(self.path)

    def engine(self, *, writes: bool = False, durable: bool = True) -> Engine:
        """As in `Database`."""
        # Parameters hold data of clients and operators, which must not get into the log with an error's text.
        engine = create_engine(
            f"sqlite:///{self.path}", connect_args={"check_same_thread": False}, hide_parameters=True
        )

        @event.listens_for(engine, "connect")
        def prepare(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
            connection.isolation_level = None  # otherwise the driver begins transactions itself, and late
            cursor = connection.cursor()
            synchronous = f"synchronous = {'FULL' if durable else 'OFF'}"
            for pragma in (synchronous, "journal_mode = WAL", "foreign_keys = ON", "busy_timeout = 10000"):
                cursor.execute(f"PRAGMA {pragma}")
            cursor.close()

        @event.listens_for(engine, "begin")
        def start(connection: Connection) -> None:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine

    def lock_schema(self, connection: Connection) -> None:
        """As in `Database`: whoever writes is alone anyway."""

    def end_sessions(self, connection: Connection, holder: str) -> None:
        """As in `Database`: there is none."""

    def size(self, connection: Connection) -> int:
        """As in `Database`."""
        return self.path.stat().st_size

    def counter(self, connection: Connection, table: Table) -> int:
        """As in `Database`."""
        (column,) = table.primary_key.columns
        greatest: int = connection.execute(select(func.max(column))).scalar() or 0
        if table.dialect_options["sqlite"]["autoincrement"]:
            last = connection.execute(select(_SEQUENCE.c.seq).where(_SEQUENCE.c.name == table.name)).scalar()
            return max(greatest, last or 0)
        return greatest

    def set_counter(self, connection: Connection, table: Table, last: int) -> None:
        """As in `Database`; a table that has no counter goes on after its greatest number anyway."""
        if table.dialect_options["sqlite"]["autoincrement"]:
            connection.execute(delete(_SEQUENCE).where(_SEQUENCE.c.name == table.name))
            connection.execute(_SEQUENCE.insert(), {"name": table.name, "seq": last})


class Postgres(Database):
    """A database of a PostgreSQL server."""

    is_shared = True
    clock = cast(func.extract("epoch", func.clock_timestamp()), Float)

    def __init__(self, url: URL) -> None:
        """Without a password in `url`: libpq finds it in the environment or in a file."""
        self._url = url.set(drivername="postgresql+psycopg")
        self.place = url.render_as_string()
        # Unique, also among the servers of one machine; the sessions of each have its name.
        self.holder = f"fedlens {socket.gethostname()[:40]} {secrets.token_hex(3)}"

    def engine(self, *, writes: bool = False, durable: bool = True) -> Engine:
        """As in `Database`."""
        # A transaction that opens a round also computes; one whose process hangs is ended by whoever takes the lead.
        settings = "-c idle_in_transaction_session_timeout=0"
        settings += "" if durable else " -c synchronous_commit=off"
        defaults = {name: value for name, value in _CONNECTION.items() if name not in self._url.query}
        given = {**defaults, "application_name": self.holder}
        engine = create_engine(
            self._url,
            connect_args={**given, "options": f"{settings} {self._url.query.get('options', '')}"},
            hide_parameters=True,
            # A read can begin anew on another connection; a transaction that writes must not.
            pool_pre_ping=not writes,
            isolation_level="READ COMMITTED" if writes else "REPEATABLE READ",
        )
        event.listen(engine, "handle_error", _without_values)
        return engine

    def lock_schema(self, connection: Connection) -> None:
        """As in `Database`."""
        connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))

    def end_sessions(self, connection: Connection, holder: str) -> None:
        """As in `Database`."""
        connection.execute(select(*(func.set_config(name, value, True) for name, value in _TAKING_S.items())))
        found = _SESSIONS.c
        of_holder = [found.application_name == holder, found.application_name != ""]
        elsewhere = [found.datname == func.current_database(), found.pid != func.pg_backend_pid()]
        ending = select(func.pg_terminate_backend(found.pid)).select_from(_SESSIONS)
        connection.execute(ending.where(*of_holder, *elsewhere))

    def size(self, connection: Connection) -> int:
        """As in `Database`."""
        size: int = connection.execute(select(func.pg_database_size(func.current_database()))).scalar_one()
        return size

    def counter(self, connection: Connection, table: Table) -> int:
        """As in `Database`."""
        last: int | None = connection.execute(select(func.pg_sequence_last_value(_sequence(table)))).scalar()
        return last or 0

    def set_counter(self, connection: Connection, table: Table, last: int) -> None:
        """As in `Database`."""
        if last:
            connection.execute(select(func.setval(_sequence(table), last)))


def _sequence(table: Table) -> ColumnElement[Any]:
    (column,) = table.primary_key.columns
    return cast(func.pg_get_serial_sequence(table.name, column.name), REGCLASS)


def _without_values(context: ExceptionContext) -> None:
    """Leave the details out of an error, for they quote rows."""
    error = context.original_exception
    if (said := getattr(getattr(error, "diag", None), "message_primary", None)) is not None:
        error.args = (said,)
        if context.sqlalchemy_exception is not None:
            context.sqlalchemy_exception.args = (f"({type(error).__name__}) {said}",)


def fault(error: DBAPIError) -> ServerError | None:
    """What clients are told of a transaction that failed and left nothing behind; None: it is a fault of this program.

    A failed COMMIT is another matter while it is `uncertain`.
    """
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        if (code := _code(cause)) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
            return Unavailable(f"the server's database: {cause}; nothing was stored, try again", AWAY_RETRY_MS)
        return full() if code == sqlite3.SQLITE_FULL else None
    state = getattr(cause, "sqlstate", None) or ""
    if state == _DISK_FULL:
        return full()
    # Without a state the error is the driver's own: it has no connection, or no longer.
    if state.startswith(_AWAY) or (not state and isinstance(error, OperationalError)):
        return Unavailable("the server's database cannot be reached; nothing was stored, try again", AWAY_RETRY_MS)
    return None


def uncertain(error: DBAPIError) -> bool:
    """True if nobody knows whether a COMMIT that failed is done.

    Its connection was lost; or SQLite may have written all of it and could not sync it: then whoever opens the file
    after a crash finds it done.
    """
    cause = error.orig
    if isinstance(cause, sqlite3.Error):
        return _code(cause) not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY)
    return error.connection_invalidated


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, without what exactly failed; 0: it has none."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


@contextmanager
def reading() -> Iterator[None]:
    """Turn errors of a query into those that clients are told, as far as they are no fault of this program."""
    try:
        yield
    except DBAPIError as error:
        if (told := fault(error)) is None:
            raise
        raise told from error
    except TimeoutError as error:
        raise Unavailable("the server's database does not answer; try again", AWAY_RETRY_MS) from error


def full() -> StorageFull:
    """The error for a disk without room."""
    return StorageFull("the server's disk is full; nothing was stored, try again later", FULL_RETRY_MS)


def reason(error: DBAPIError) -> str:
    """What the database says, in one line."""
    return str(error.orig).partition("\n")[0]
