"""Files that are written completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A hidden path beside `out` to write to; it replaces `out` at the end, and is removed after an exception.

    Raises:
        OSError: `out` cannot be replaced.
    """
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
