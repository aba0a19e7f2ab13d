"""The lead: of all servers with one database, the one that writes it and answers from its view of it.

The table `lead` has one row: a term, its holder, and the time until which nobody else takes it, by the database's own
clock. Clocks of servers do not matter.

    take     by whoever finds that time over: ends the sessions of the last holder, and begins the next term
    renew    by the holder, every `RENEW_EVERY_S`; not a key of the row, so it waits for no transaction of its own
    hold     at the beginning of each transaction that writes: the row's key stays as it is until the transaction ends
    certain  on the holder's own clock: nobody can have taken the lead before the last moment that was read from memory

A database that no other machine reaches has no holder and no time: the lock of its folder keeps others out.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import NamedTuple, Self

from sqlalchemy import Connection, Engine, bindparam, select, update
from sqlalchemy.exc import DBAPIError

from fedlens_server.errors import StoreUnusable, Unavailable
from fedlens_server.store import schema
from fedlens_server.store.dialects import Database, reason
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

# By the database's clock, by the holder's own from the sending of a renewal on, and between two of them.
EXPIRES_S, CERTAIN_S, RENEW_EVERY_S = 6.0, 5.0, 2.0
LOOK_EVERY_S, RETRY_S = 1.0, 0.5
CLOCKS_APART_S = 10.0
RETRY_MS = 2_000
# Unlike the monotonic clock it counts the time for which a machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_log = logging.getLogger(__name__)
_row = schema.lead.c
_MINE = _row.term == bindparam("mine")
_HOLD = select(_row.term).where(_MINE).with_for_update(read=True, key_share=True)
_NEXT = update(schema.lead).values(term=_row.term + 1).returning(_row.term)
_RELEASE = update(schema.lead).where(_MINE).values(expires=0.0)


class LeadLost(Unavailable):
    """Another server leads; this one must end."""


class Seen(NamedTuple):
    """The lead as another server saw it."""

    term: int
    holder: str
    expires: float  # in seconds since the epoch, by the database's clock
    left_s: float

    def __str__(self) -> str:
        return f"{self.holder} leads, term {self.term}" if self.left_s > 0 else f"nobody leads since term {self.term}"


class Lead:
    """The lead of one server, or its wish for it.

    Attributes:
        term: Of this server; 0: it does not lead yet.
        seen: The lead at the last look, while another server had it.
        is_contested: True if a server has renewed it between two looks.
        is_lost: True once another server has taken it from this one.
        on_lost: Called on a thread of this class once another server has taken the lead.
    """

    def __init__(self, database: Database, engine: Engine, now: Callable[[], float] = time.time) -> None:
        """By transactions of `engine`; `now` is the machine's clock, which is compared with the database's."""
        self.term = 0
        self.seen = Seen(0, "", 0.0, 0.0)
        self.is_contested = self.is_lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self._database, self._engine, self._now = database, engine, now
        self._certain_until = -inf
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_certain(self) -> bool:
        """True while no other server can have taken the lead."""
        return time.clock_gettime(_CLOCK) < self._certain_until

    def doubt(self) -> Unavailable:
        """The error for a request that no longer may be answered from memory."""
        return Unavailable("the server does not know whether it still leads; send the request again", RETRY_MS)

    def try_take(self) -> bool:
        """Take the lead and keep it, if no server has renewed it for `EXPIRES_S`.

        Raises:
            DBAPIError: The database cannot be reached.
        """
        sent = time.clock_gettime(_CLOCK)
        with self._engine.begin() as connection:
            if not self._database.is_shared:
                self.term, self._certain_until = connection.execute(_NEXT).scalar_one(), inf
                return True
            before, self.seen = self.seen, self._look(connection)
            self.is_contested |= before.term > 0 and before[:3] != self.seen[:3]
            if self.seen.left_s > 0:
                return False
            self._database.end_sessions(connection, self.seen.holder)
            term = self._take(connection)
        if term is None:
            return False
        self.term, self._certain_until = term, sent + CERTAIN_S
        events.note(Event.LEAD_TAKEN, term=term, after=self.seen.holder)
        # It ends with the process, or one that failed would lead for ever.
        self._thread = threading.Thread(target=self._keep, name="fedlens-lead", daemon=True)
        self._thread.start()
        return True

    def take(self) -> None:
        """Take the lead as soon as that of a server that ended is over.

        Raises:
            StoreUnusable: A server goes on renewing it.
            DBAPIError: The database cannot be reached.
        """
        while not self.try_take():
            self.refuse_if_contested("stop that server first")
            time.sleep(self.pause_s)

    def refuse_if_contested(self, remedy: str) -> None:
        """Wait for no server that is alive.

        Raises:
            StoreUnusable: There is one.
        """
        if self.is_contested:
            raise StoreUnusable(f"{self._database.place} is in use by another server: {self.seen}; {remedy}")

    @property
    def pause_s(self) -> float:
        """The seconds until another try may succeed."""
        return min(max(self.seen.left_s, LOOK_EVERY_S / 10), LOOK_EVERY_S)

    def hold(self, connection: Connection) -> None:
        """Hold the lead until the transaction ends.

        Raises:
            LeadLost: Another server has it.
        """
        if connection.execute(_HOLD, {"mine": self.term}).first() is None:
            self._lose()
            raise LeadLost("another server has taken this one's place; send the request again", 5000)

    def close(self) -> None:
        """Give the lead back."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            with suppress(DBAPIError), self._engine.begin() as connection:  # else it expires
                connection.execute(_RELEASE, {"mine": self.term})

    def __enter__(self) -> Self:
        """As `take`."""
        self.take()
        return self

    def __exit__(self, *error: object) -> None:
        """As `close`."""
        self.close()

    def _look(self, connection: Connection) -> Seen:
        before = self._now()
        now = self._database.clock.label("now")
        found = connection.execute(select(_row.term, _row.holder, _row.expires, now)).one()
        after = self._now()
        ahead = (before + after) / 2 - found.now
        if self.seen.term == 0 and abs(ahead) > CLOCKS_APART_S + after - before:
            events.note(Event.CLOCKS_APART, ahead_s=ahead)
        return Seen(found.term, found.holder, found.expires, found.expires - found.now)

    def _take(self, connection: Connection) -> int | None:
        now, term = self._database.clock, self.seen.term
        new = {"term": term + 1, "holder": self._database.holder, "expires": now + EXPIRES_S}
        taking = update(schema.lead).where(_row.term == term, _row.expires <= now).values(new)
        taken: int | None = connection.execute(taking.returning(_row.term)).scalar()
        return taken

    def _keep(self) -> None:
        renewing = update(schema.lead).where(_MINE).values(expires=self._database.clock + EXPIRES_S)
        pause_s = RENEW_EVERY_S
        while not self._ending.wait(pause_s):
            sent = time.clock_gettime(_CLOCK)
            try:
                with self._engine.begin() as connection:
                    is_mine = connection.execute(renewing, {"mine": self.term}).rowcount == 1
            except Exception as error:  # without this thread the server would lead no more, and not end either
                if pause_s != RETRY_S:
                    if isinstance(error, DBAPIError):
                        why = reason(error)
                    else:
                        why = repr(error)
                        _log.exception("the lead could not be renewed")
                    events.note(Event.LEAD_DOUBTFUL, term=self.term, reason=why)
                pause_s = RETRY_S
                continue
            if not is_mine:
                self._lose()
                self.on_lost()
                return
            self._certain_until, pause_s = sent + CERTAIN_S, RENEW_EVERY_S

    def _lose(self) -> None:
        if not self.is_lost:
            self.is_lost, self._certain_until = True, -inf
            events.note(Event.LEAD_LOST, term=self.term)
