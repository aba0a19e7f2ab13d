"""Files that are written as a whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A path beside `out` to write to; it takes the place of `out` at the end, or is removed after an exception.

    Raises:
        OSError: It cannot take that place.
    """
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
