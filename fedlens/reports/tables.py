"""Tables and figures as text."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    caption: str | None = None,
    *,
    dropped: Sequence[str] = (),
    uncut: bool = False,
) -> None:
    """Print a table as wide as the terminal; without a terminal as wide as it needs, up to 200 columns, or uncut.

    Args:
        columns: Headers.
        rows: Their cells.
        caption: A line below it.
        dropped: Columns that go where the terminal is too narrow, one after the other.
        uncut: In a terminal that is too narrow, print lines instead: the first cell of a row, and below it the others.
    """
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None if it is closed
    console = Console(width=None if is_terminal else 200)
    # As plain text: names come from others, and rich reads square brackets as markup.
    cells = [[Text("\n".join(map(plain, cell.splitlines()))) for cell in row] for row in rows]
    gone = 0
    while (width := _width(table := _table(columns, cells, dropped[:gone]))) > console.width and gone < len(dropped):
        gone += 1
    if uncut and not is_terminal:
        console.width = max(console.width, width)
    elif uncut and width > console.width:
        for row in cells:
            console.print(row[0], soft_wrap=True)
            others = Text(", ").join(Text(f"{columns[i]} ") + row[i] for i in range(1, len(row)))
            console.print(Padding(others, (0, 0, 0, 4)))
        if caption:
            console.print(caption)
        return
    table.caption = caption
    console.print(table)


def _table(columns: Sequence[str], cells: Iterable[Sequence[Text]], without: Sequence[str]) -> Table:
    kept = [i for i, name in enumerate(columns) if name not in without]
    table = Table(*(columns[i] for i in kept))
    for row in cells:
        table.add_row(*(row[i] for i in kept))
    return table


def _width(table: Table) -> int:
    """The columns of a terminal in which no cell is wrapped."""
    return Console(width=10_000).measure(table).maximum


def readable_bytes(count: float) -> str:
    """`3.4 MB`; decimal units."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"


def counted(count: int, noun: str) -> str:
    """`1 blob`, `2,000 blobs`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def plain(text: str) -> str:
    """Replace the control characters in a text that comes from others."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
