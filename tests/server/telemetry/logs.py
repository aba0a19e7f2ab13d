"""A log in a text, as a test reads it."""

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedlens_server.telemetry.log_lines import LogFormat, LogLines


class Log:
    """All that the root logger gets, written to a text, on a clock that stands."""

    def __init__(self, form: LogFormat) -> None:
        self.now = 0.0
        self.text = io.StringIO()
        self.lines = LogLines(self.text, form, lambda: self.now)

    def __str__(self) -> str:
        return self.text.getvalue()


@contextmanager
def logged(form: LogFormat) -> Iterator[Log]:
    """What is logged until the end."""
    log, root = Log(form), logging.getLogger()
    before = root.level
    root.addHandler(log.lines)
    root.setLevel(logging.INFO)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        yield log
    finally:
        root.setLevel(before)
        root.removeHandler(log.lines)
        log.lines.close()
