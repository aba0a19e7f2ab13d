"""Tables and figures as text."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str | None = None) -> None:
    """Print a table as wide as the terminal; without a terminal as wide as it needs, up to 200 columns."""
    table = Table(*columns, caption=caption)
    for row in rows:
        # As plain text: names come from others, and rich reads square brackets as markup.
        table.add_row(*(Text("\n".join(map(plain, cell.splitlines()))) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def readable_bytes(count: float) -> str:
    """`3.4 MB`; decimal units."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"


def plain(text: str) -> str:
    """Replace the control characters in a text that comes from others."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
