"""Events that operators read in the log, each one line: a kind and named facts.

The engine notes an event once its commit is durable, so a line tells what is on disk. A line written while a request is
served also has the request's id, address and endpoint, on the writing thread too.
"""

import logging
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

_log = logging.getLogger("fedlens_server.events")
Shown = str | int | float
"""A fact as lines have it."""
_SHORT = 6  # bytes of a client's id that are shown


class Event(StrEnum):
    """The kinds of events; docs/observe.md describes each."""

    STANDBY = "standby"
    LEAD_TAKEN = "lead-taken"
    LEAD_DOUBTFUL = "lead-doubtful"
    LEAD_LOST = "lead-lost"
    CLOCKS_APART = "clocks-apart"
    STATE_READ = "state-read"
    READY = "ready"
    STOPPING = "stopping"
    CERTIFICATE_READ = "certificate-read"
    CERTIFICATE_UNUSABLE = "certificate-unusable"
    ENROLLED = "enrolled"
    FORGOTTEN = "forgotten"
    REFUSED = "refused"
    NOT_HTTP = "not-http"
    OPERATED = "operated"
    BACKUP_MADE = "backup-made"
    BACKUP_FAILED = "backup-failed"
    DISK_NEARLY_FULL = "disk-nearly-full"
    DISK_HAS_ROOM = "disk-has-room"
    OBJECTS_MISSING = "objects-missing"
    TASK_STARTED = "task-started"
    TASK_ENDED = "task-ended"
    TASK_SUSPENDED = "task-suspended"
    TASK_PAUSED = "task-paused"
    STATEMENT_ENDS = "statement-ends"
    ROUND_OPENED = "round-opened"
    ROUND_CLOSED = "round-closed"
    ROUND_COMMITTED = "round-committed"
    ROUND_ABANDONED = "round-abandoned"
    QUARANTINED = "quarantined"
    EXCLUDED = "excluded"
    FAILED = "failed"
    SLOW_REQUEST = "slow-request"
    SLOW_WRITE = "slow-write"


OF_CLIENTS = frozenset(
    {
        *(Event.ENROLLED, Event.FORGOTTEN, Event.REFUSED, Event.NOT_HTTP),
        *(Event.QUARANTINED, Event.EXCLUDED, Event.FAILED, Event.SLOW_REQUEST),
    }
)
"""Events that strangers can cause as often as they like."""
_WARNINGS = frozenset(
    {
        *(Event.TASK_SUSPENDED, Event.TASK_PAUSED, Event.ROUND_ABANDONED, Event.QUARANTINED, Event.EXCLUDED),
        *(Event.SLOW_REQUEST, Event.SLOW_WRITE, Event.CERTIFICATE_UNUSABLE, Event.STATEMENT_ENDS),
        *(Event.LEAD_DOUBTFUL, Event.LEAD_LOST, Event.CLOCKS_APART, Event.BACKUP_FAILED, Event.DISK_NEARLY_FULL),
        Event.OBJECTS_MISSING,
    }
)


@dataclass(slots=True)
class Request:
    """The request that is being served, as lines name it.

    Attributes:
        id: Short and random; also in the response.
        address: Of the client; empty: not known.
        endpoint: Method and route, never the path that was sent.
        client: The id that its credential gives; empty: none yet.
        by: The operator who sent it; empty: none, or not known yet.
        held: True once it waited for work.
        code: Of the error that it was answered with.
    """

    id: str
    address: str
    endpoint: str
    client: bytes = b""
    by: str = ""
    held: bool = False
    code: str = "ok"


REQUEST: ContextVar[Request | None] = ContextVar("request", default=None)
"""The request on whose behalf the present code runs."""


def note(event: Event, **facts: str | int | float | bytes) -> None:
    """Log an event with its facts, in their order; a client's id is shortened, an empty text is left out.

    No fact may hold a secret or a token.
    """
    level = logging.WARNING if event in _WARNINGS else logging.INFO
    if _log.isEnabledFor(level):
        shown = {name: _shown(fact) for name, fact in facts.items() if fact != ""}
        _log.log(level, "%s %s", event.value, shown, extra={"event": event.value, "facts": shown})


def of_request() -> dict[str, Shown]:
    """The facts of the request on whose behalf the present code runs; none: there is no such request."""
    request = REQUEST.get()
    if request is None:
        return {}
    sender = {"client": _shown(request.client)} if request.client else {"by": request.by} if request.by else {}
    return {**sender, "endpoint": request.endpoint, "request": request.id, "address": request.address}


def _shown(fact: str | int | float | bytes) -> Shown:
    if isinstance(fact, bytes):
        return fact[:_SHORT].hex()
    return round(fact, 3) if isinstance(fact, float) else fact
