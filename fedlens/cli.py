"""The `fedlens` command: one sub-command per job."""

import typer

from fedlens.commands import blob, bundle, client, compare, demo, export, fleet, link, predict, serve, task

app = typer.Typer(
    name="fedlens",
    help="Federated learning for phone cameras: photos stay on the phone, small classifier layers travel.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (export, serve, client, fleet, link, task, predict, compare, bundle, blob, demo):
    module.register(app)


def main() -> None:
    """Run the command line."""
    app()
