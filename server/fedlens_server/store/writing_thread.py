"""The one thread that writes: it takes all waiting operations, commits once, then resolves their futures.

An operation is a function of a `Transaction`. It reads the view in memory, which equals the database for the keys that
the operation declares, and writes through the transaction. The view changes only after the commit, in `after_commit`
functions. Operations with disjoint keys share a commit; an operation without keys has a commit of its own.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable, bindparam, update
from sqlalchemy.exc import DBAPIError

from fedlens_server.errors import ServerError, StorageFull, Unavailable
from fedlens_server.store import schema
from fedlens_server.store.blobs import Blobs
from fedlens_server.store.dialects import fault, full, insert, reason, uncertain
from fedlens_server.store.incoming import PendingBlob, storage_full
from fedlens_server.store.lead import Lead
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event
from fedlens_server.telemetry.timings import Timings

log = logging.getLogger(__name__)
T = TypeVar("T")
MAX_GROUP = 1024
SLOW_S = 1.0
_KEEP_BLOB = (
    update(schema.blobs).where(schema.blobs.c.digest == bindparam("kept")).values(kept_until=bindparam("until"))
)
_INSERT_BLOB = insert(schema.blobs).on_conflict_do_nothing()


class CommitUncertain(Unavailable):
    """A commit failed in such a way that the database alone knows whether it is done."""


class Transaction:
    """The writes of one operation; undone alone if the operation raises."""

    def __init__(self, connection: Connection, blobs: Blobs) -> None:
        """Made by the writing thread."""
        self._connection = connection
        self._blobs = blobs
        self._savepoint = False
        self._later: list[tuple[Executable, Mapping[str, Any]]] = []
        self._placed: list[Callable[[], None]] = []
        self._hooks: list[Callable[[], None]] = []
        self._renamed: list[PendingBlob] = []
        self._refusal: ServerError | None = None

    def execute(self, statement: Executable, rows: Any = None) -> CursorResult[Any]:
        """Run a statement now, after those of earlier operations in the same commit."""
        if not self._savepoint:
            self._connection.exec_driver_sql("SAVEPOINT operation")
            self._savepoint = True
        return self._connection.execute(statement, rows)

    def later(self, statement: Executable, row: Mapping[str, Any]) -> None:
        """Run a statement at the end, together with all rows for the same statement object."""
        self._later.append((statement, row))

    def place(self, blob: PendingBlob, kept_until: float | None = None) -> None:
        """Store a pending blob in this transaction, unless the same bytes are stored already.

        Raises:
            StorageFull: There is no room.
            Unavailable: The blob's temporary file is gone.
        """
        blobs = self._blobs
        if blob.digest in blobs.sizes:
            if kept_until is not None:
                self.later(_KEEP_BLOB, {"kept": blob.digest, "until": kept_until})
                self.after_commit(lambda: blobs.kept_until.__setitem__(blob.digest, kept_until))
            return
        if blob.raw is not None:
            blobs.begin_placing(blob.digest, blob.raw)
        elif blob not in self._renamed:
            try:
                blobs.files.take(blob)
            except FileNotFoundError as error:
                # The connection that wrote the file was lost, and the file was removed with it.
                raise Unavailable("the upload was cut off; send it again") from error
            self._renamed.append(blob)
        row = {"digest": blob.digest, "size": blob.size, "raw": blob.raw, "object": blob.key}
        self.later(_INSERT_BLOB, {**row, "kept_until": kept_until})

        def placed() -> None:
            # The first of those that place the same bytes in one commit has the row.
            if blob.key is not None:
                blobs.files.keys.setdefault(blob.digest, blob.key)
            blobs.sizes[blob.digest] = blob.size
            if kept_until is not None:
                blobs.kept_until[blob.digest] = kept_until
            if blob.raw is not None:
                blobs.remember(blob.digest, blob.raw)

        self._placed.append(placed)

    def after_commit(self, hook: Callable[[], None]) -> None:
        """Call `hook` on the writing thread once the commit is durable. It changes the view and must not raise."""
        self._hooks.append(hook)

    def refuse(self, error: ServerError) -> None:
        """Commit the writes, but end the operation's future with an error."""
        self._refusal = error


@dataclass(eq=False)
class _Operation(Generic[T]):
    run: Callable[[Transaction], T]
    keys: frozenset[Hashable] | None
    future: Future[T] = field(default_factory=Future)
    since: float = field(default_factory=time.perf_counter)
    context: Context = field(default_factory=copy_context)  # of the caller, for what its hooks log


class WritingThread:
    """The thread that runs operations one after the other.

    Attributes:
        after_commit: Called on the thread after each commit and its transactions' hooks.
        on_broken: Called on the thread when it has to stop; from then on `submit` raises `Unavailable`.
        broken: The reason, once that has happened; empty: it has not.
        waits: How long operations waited for the thread.
        commits: How long those that share a commit took, with the commit.
    """

    def __init__(self, engine: Engine, lead: Lead, blobs: Blobs) -> None:
        """Start the thread, which writes to the database of `engine` while it has the lead, and to `blobs`."""
        self.after_commit: Callable[[], None] = lambda: None
        self.on_broken: Callable[[], None] = lambda: None
        self._engine = engine
        self._lead = lead
        self._blobs = blobs
        self._waiting: deque[_Operation[Any]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self.broken = ""
        self.waits, self.commits = Timings(), Timings()
        self._thread = threading.Thread(target=self._loop, name="fedlens-writer")
        self._thread.start()

    def submit(self, operation: Callable[[Transaction], T], keys: frozenset[Hashable] | None = None) -> Future[T]:
        """Queue an operation, as `Store.submit`; its future ends once its writes are durable."""
        item = _Operation(operation, keys)
        with self._wake:
            if self._closing or self.broken:
                raise Unavailable("the server is stopping", 5000)
            self._waiting.append(item)
            self._wake.notify()
        return item.future

    @property
    def waiting(self) -> int:
        """The number of operations that wait."""
        return len(self._waiting)

    def close(self) -> None:
        """Finish all submitted operations, then end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _loop(self) -> None:
        while group := self._next_group():
            try:
                self._run(group)
            except BaseException as error:
                # View and database may differ now, so no further request may be answered from the view.
                known = isinstance(error, ServerError)
                log.error("the writing thread stopped; restart the server", exc_info=None if known else error)
                self._stop_broken(group, error)
                return

    def _next_group(self) -> list[_Operation[Any]]:
        with self._wake:
            while not self._waiting:
                if self._closing:
                    return []
                self._wake.wait()
            group: list[_Operation[Any]] = []
            # What has a key that is taken is passed over until a later group, so that one client's many requests delay
            # others little. Its keys are taken, too: whatever has the same ones stays behind it.
            passed: list[_Operation[Any]] = []
            taken: set[Hashable] = set()
            while self._waiting and len(group) < MAX_GROUP and len(passed) < MAX_GROUP:
                keys = self._waiting[0].keys
                if keys is None and (group or passed):
                    break
                item = self._waiting.popleft()
                if keys is None:
                    return [item]
                (group if taken.isdisjoint(keys) else passed).append(item)
                taken |= keys
            self._waiting.extendleft(reversed(passed))
            return group

    def _run(self, group: list[_Operation[Any]]) -> None:
        began = time.perf_counter()
        for item in group:
            self.waits.add(began - item.since)
        self._commit(group)
        seconds = time.perf_counter() - began
        self.commits.add(seconds)
        if seconds > SLOW_S:
            events.note(Event.SLOW_WRITE, operations=len(group), seconds=seconds)

    def _commit(self, group: list[_Operation[Any]]) -> None:
        wanted = [item for item in group if item.future.set_running_or_notify_cancel()]
        begun: list[Transaction] = []
        done: list[tuple[_Operation[Any], Transaction, Any]] = []
        failed: list[tuple[_Operation[Any], BaseException]] = []
        committing = False
        try:
            with self._engine.connect() as connection, connection.begin():
                self._lead.hold(connection)
                for item in wanted:
                    transaction = Transaction(connection, self._blobs)
                    begun.append(transaction)
                    try:
                        done.append((item, transaction, item.run(transaction)))
                    except DBAPIError:
                        raise
                    except Exception as error:
                        if transaction._savepoint:
                            connection.exec_driver_sql("ROLLBACK TO operation")
                        failed.append((item, error))
                    if transaction._savepoint:
                        connection.exec_driver_sql("RELEASE operation")
                self._write(connection, [transaction for _, transaction, _ in done])
                committing = True
        except (DBAPIError, OSError, StorageFull) as error:
            if committing and isinstance(error, DBAPIError) and uncertain(error):
                told = f"the server's database was lost in a commit ({reason(error)}); send the request again"
                raise CommitUncertain(told, 5000) from error
            self._end_placing(begun)
            failure = (fault(error) or error) if isinstance(error, DBAPIError) else error
            failure = full() if isinstance(failure, StorageFull) else failure
            for item in wanted:
                item.future.set_exception(failure)
            return
        for item, transaction, _ in done:
            for hook in (*transaction._placed, *transaction._hooks):
                item.context.run(hook)
        self._end_placing(begun)
        self.after_commit()
        for item, problem in failed:
            item.future.set_exception(problem)
        for item, transaction, result in done:
            if transaction._refusal is not None:
                item.future.set_exception(transaction._refusal)
            else:
                item.future.set_result(result)

    def _write(self, connection: Connection, transactions: list[Transaction]) -> None:
        batches: dict[int, tuple[Executable, list[Mapping[str, Any]]]] = {}
        for transaction in transactions:
            for statement, row in transaction._later:
                batches.setdefault(id(statement), (statement, []))[1].append(row)
        for statement, rows in batches.values():
            connection.execute(statement, rows)
        if any(transaction._renamed for transaction in transactions):
            with storage_full():
                self._blobs.files.sync()

    def _end_placing(self, transactions: list[Transaction]) -> None:
        self._blobs.end_placing()
        for transaction in transactions:
            for blob in transaction._renamed:
                if blob.digest not in self._blobs.sizes:
                    self._blobs.files.drop(blob.digest, blob.key)

    def _stop_broken(self, group: list[_Operation[Any]], error: BaseException) -> None:
        with self._wake:
            self.broken = str(error) or type(error).__name__
            rest = list(self._waiting)
            self._waiting.clear()
        for item in [*group, *rest]:
            if not item.future.done():
                item.future.set_exception(error if item in group else Unavailable("the server must be restarted"))
        self.on_broken()
