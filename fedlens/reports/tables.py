"""Tables for people."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table as wide as the terminal; as wide as it needs to be, within 200 columns, where there is none."""
    table = Table(*columns)
    for row in rows:
        # As plain text: names come from others, and rich reads square brackets as markup.
        table.add_row(*(Text(plain(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def plain(text: str) -> str:
    """Text that others wrote, without what a terminal would take for commands."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
