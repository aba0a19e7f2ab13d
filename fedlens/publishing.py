"""Bundles that are signed where they lie."""

import time
from pathlib import Path

from fedlens.whole_file import replacing
from fedlens_export.signing import Terms, private_key, stated
from fedlens_proto.manifest import STATEMENT_FILE, Bundle


def sign_bundle(bundle: Bundle, key: Path, terms: Terms) -> bytes:
    """Write a signed statement into a bundle's folder; returns it, a serialised `SignedStatement`.

    Args:
        bundle: The bundle.
        key: The publisher's `.key` file.
        terms: What to say of it.

    Raises:
        ExportError: The key or the terms cannot be used.
        OSError: The file cannot be written.
    """
    statement = stated(bundle, private_key(key), terms, time.time())
    with replacing(bundle.folder / STATEMENT_FILE) as partial:
        partial.write_bytes(statement)
    return statement
