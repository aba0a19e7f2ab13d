"""Files that are written completely or not at all."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(out: Path) -> Iterator[Path]:
    """A hidden path beside `out` to write to; it replaces `out` at the end, and is removed after an exception.

    Raises:
        OSError: `out` cannot be replaced; it is a folder, a device or a pipe.
    """
    out = out.resolve()  # what a link leads to is replaced, and not the link
    if out.exists() and not out.is_file():
        number = errno.EISDIR if out.is_dir() else errno.EINVAL
        raise OSError(number, os.strerror(number) if out.is_dir() else "it is no regular file", str(out))
    partial = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
