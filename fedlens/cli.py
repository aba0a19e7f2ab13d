"""The `fedlens` command: one sub-command per job."""

import errno
import os
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fedlens.commands import blob, bundle, compare, demo, export, fleet, link, predict, publisher, results, serve, task
from fedlens.commands.admin import audit, backup, clients, store, token

_ALLOWED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
"""In words, by pydantic's name for what is wrong."""


class _Commands(TyperGroup):
    """Commands that tell of wrong values in FedLens' words; typer repeats those of pydantic, which checks them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            if isinstance(error.__cause__, ValidationError):
                fault = error.__cause__.errors()[0]
                details = fault.get("ctx", {})
                if fault["type"] in _ALLOWED:
                    error.message = f"found {fault['input']!r}, must be {_ALLOWED[fault['type']].format(**details)}"
                else:
                    error.message = str(details.get("error", error.message))
            raise


app = typer.Typer(name="fedlens", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False)
for command in (
    *(export.export, serve.serve, backup.backup, backup.restore, fleet.fleet, link.link),
    *(audit.audit, publisher.sign, predict.predict, compare.compare, results.results, demo.demo),
):
    app.command()(command)
for name, group in (
    ("task", task.task_app),
    ("client", clients.client_app),
    ("token", token.token_app),
    ("store", store.store_app),
    ("bundle", bundle.bundle_app),
    ("keys", publisher.keys_app),
    ("blob", blob.blob_app),
):
    app.add_typer(group, name=name)


def _print_version(wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        typer.echo(f"fedlens {version('fedlens')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Federated learning for phone cameras: photos stay on the phone, small classifier layers travel."""
    del version  # its callback has ended the program


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # names come from others, and not every terminal has their letters
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:  # else it is closed
                sys.stdout.flush()
    except OSError as error:
        if sys.stdout is None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is left to write at the end
        sys.exit(f"fedlens: the output cannot be written: {error.strerror}")
