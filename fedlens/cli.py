"""The `fedlens` command: one sub-command per job."""

from typing import Annotated

import typer

from fedlens.commands import blob, bundle, client, compare, demo, export, fleet, link, predict, serve, task

app = typer.Typer(
    name="fedlens",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for module in (export, serve, client, fleet, link, task, predict, compare, bundle, blob, demo):
    module.register(app)


def _tell_version(wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        typer.echo(f"fedlens {version('fedlens')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Show the version and end.")
    ] = False,
) -> None:
    """Federated learning for phone cameras: photos stay on the phone, small classifier layers travel."""
    del version  # its callback has ended the program


def main() -> None:
    """Run the command line."""
    app()
