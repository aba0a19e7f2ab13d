"""Lines and bars on a terminal."""

from contextlib import nullcontext
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text


def say(console: Console, line: str, style: str = "") -> None:
    """Print a line as it is: file names and messages of others may hold square brackets, rich's markup."""
    console.print(Text(line, style=style), soft_wrap=True)


def counted(count: int, noun: str) -> str:
    """`1 client`, `2,000 clients`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


class LiveDisplay:
    """Bars on a terminal during a `with` block; a subclass draws them in `__rich__`."""

    def __init__(self, console: Console) -> None:
        """A console that is no terminal shows no bars."""
        self._console = console
        live = Live(self, console=console, refresh_per_second=8, transient=True)  # type: ignore[arg-type]  # see `__rich__`
        self._live = live if console.is_terminal else nullcontext()

    def __enter__(self) -> Self:
        """Show the bars."""
        self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the bars."""
        self._live.__exit__(None, None, None)
