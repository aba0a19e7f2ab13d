"""The log on a stream: a line for people, or a JSON object, each of limited rate and without a credential."""

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Hashable
from datetime import UTC, datetime
from typing import Literal, TextIO

from fedlens_server.telemetry.events import OF_CLIENTS, Shown, of_request
from fedlens_server.telemetry.rate_limits import WINDOW_S, KeptBack, RateLimits

MOST_OF_CLIENTS = 20
"""Lines a minute of one kind that clients can cause."""
MOST = 600
_MOST_CHARACTERS = 300  # of a text
# A bearer credential or a token: no fact has one, but a text may quote what somebody sent in the wrong place.
_CREDENTIAL = re.compile(r"(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
_PLAIN = re.compile(r"[\w.:/{}+-]+", re.ASCII)


LogFormat = Literal["human", "json"]
"""The form of a line."""


class LogLines(logging.StreamHandler[TextIO]):
    """A handler of the root logger; `close` counts what was kept back last."""

    def __init__(
        self, stream: TextIO, form: LogFormat = "human", elapsed: Callable[[], float] = time.monotonic
    ) -> None:
        """Lines of this form on a stream; `elapsed` is a clock that never goes back."""
        super().__init__(stream)
        self._as_text = _json if form == "json" else _human
        self._elapsed = elapsed
        self._limits = RateLimits()
        self._alarm: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless too many of its kind came in this minute; called with the handler's lock held."""
        self.count_kept_back()
        facts: dict[str, Shown] = getattr(record, "facts", {})
        record.facts = facts = facts | {name: fact for name, fact in of_request().items() if name not in facts}
        most = MOST_OF_CLIENTS if getattr(record, "event", "") in OF_CLIENTS else MOST
        if self._limits.admits(_kind(record, facts), most, self._elapsed(), str(facts.get("address", ""))):
            super().emit(record)
        elif self._alarm is None:
            self._set_alarm()

    def count_kept_back(self, *, all_of_them: bool = False) -> None:
        """Write a line for each kind whose minute is over, or for all, with what was kept back."""
        for kept_back in self._limits.over(self._elapsed(), all_of_them=all_of_them):
            super().emit(_summary(kept_back))

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line, and below it the lines of an error."""
        return _CREDENTIAL.sub("[removed]", self._as_text(record))

    def close(self) -> None:
        """Count what was kept back, and end."""
        self.acquire()
        try:
            if self._alarm is not None:
                self._alarm.cancel()
            self.count_kept_back(all_of_them=True)
        finally:
            self.release()
        super().close()

    def _set_alarm(self) -> None:
        self._alarm = threading.Timer(WINDOW_S, self._ring)
        self._alarm.daemon = True
        self._alarm.start()

    def _ring(self) -> None:
        self.acquire()
        try:
            self._alarm = None
            self.count_kept_back()
            if self._limits.keep_back:
                self._set_alarm()
        finally:
            self.release()


def log_to(stream: TextIO, form: LogFormat) -> None:
    """Send everything that is logged in this process, from level INFO on, to a stream."""
    logging.basicConfig(level=logging.INFO, handlers=[LogLines(stream, form)])
    logging.getLogger("alembic").setLevel(logging.WARNING)


def _kind(record: logging.LogRecord, facts: dict[str, Shown]) -> Hashable:
    event = getattr(record, "event", None)
    # A line of the source stands for all messages that are written there, whatever they quote.
    if event is None:
        return record.pathname, record.lineno
    return event, facts.get("code") or facts.get("task", "")  # one task's events hide no other one's


def _summary(kept_back: KeptBack) -> logging.LogRecord:
    assert isinstance(kept_back.kind, tuple)
    first, second = kept_back.kind
    kind = f"{first} {second}".strip() if isinstance(second, str) else f"{first}:{second}"
    record = logging.LogRecord("fedlens_server.events", logging.WARNING, "", 0, f"{kind}: {kept_back}", None, None)
    record.facts = {"kept_back": kept_back.lines, "addresses": kept_back.addresses}
    return record


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _human(record: logging.LogRecord) -> str:
    event, facts = getattr(record, "event", None), getattr(record, "facts", {})
    # What is no event was written by others, and may quote anything.
    said = "".join(character if character.isprintable() else " " for character in record.getMessage())
    what = event or f"{record.name}: {said}"
    line = " ".join(
        [_time(record), record.levelname, what, *(f"{name}={_quoted(fact)}" for name, fact in facts.items())]
    )
    return "\n".join([line, *_error(record).splitlines()])


def _json(record: logging.LogRecord) -> str:
    event, facts = getattr(record, "event", None), getattr(record, "facts", {})
    line: dict[str, object] = {"time": _time(record), "level": record.levelname.lower()}
    if event is not None:
        line["event"] = event
    else:
        line |= {"logger": record.name, "message": record.getMessage()}
    line |= {name: _cut(fact) for name, fact in facts.items()}
    if error := _error(record):
        line["error"] = error
    return json.dumps(line)


def _error(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def _quoted(fact: Shown) -> str:
    cut = _cut(fact)
    return str(cut) if not isinstance(cut, str) or _PLAIN.fullmatch(cut) else json.dumps(cut)


def _cut(fact: Shown) -> Shown:
    return f"{fact[:_MOST_CHARACTERS]}..." if isinstance(fact, str) and len(fact) > _MOST_CHARACTERS else fact
