"""`fedlens store`: where the state of a server is."""

from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import reported

store_app = typer.Typer(no_args_is_help=True, help="The state of a server that does not run.")


@store_app.callback()
def _root() -> None:
    """The state of a server that does not run."""


@store_app.command("migrate")
def migrate(
    source: Annotated[Path, typer.Option("--from", help="Configuration with which the server has run.")],
    target: Annotated[
        Path, typer.Option("--to", help="Configuration with which it will: server.data, database and blobs count.")
    ],
) -> None:
    """Move a server's state to another database or other place of blobs; again after a stop.

    Everything that is written is compared. The source stays as it is.
    """
    from fedlens.reports.tables import counted
    from fedlens_server.config import ConfigError, load
    from fedlens_server.errors import StoreUnusable
    from fedlens_server.store.copies.moving import move

    with reported(ConfigError, StoreUnusable):
        moved = move(load(source).server.state, load(target).server.state)
        typer.echo(
            f"moved {counted(moved.rows, 'row')} and {counted(moved.blobs, 'blob')}, {moved.copied} of them now; "
            f"next: fedlens serve --config {target}"
        )
