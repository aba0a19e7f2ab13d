"""`fedlens bundle`: looking into bundles."""

from pathlib import Path
from typing import Annotated

import typer

bundle_app = typer.Typer(help="Look into bundles.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.add_typer(bundle_app, name="bundle")


@bundle_app.callback()
def _of_several() -> None:
    # Otherwise typer would take the only sub-command for the command itself.
    pass


@bundle_app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Folder of a bundle, or the manifest.pb in it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with everything that tables leave out.")] = False,
) -> None:
    """Show programs, tensors and hyper-parameters of a bundle; nothing in it is run.

    "In XNNPACK" is the share of a .pte program's operators that XNNPACK runs, after fusion.
    "Memory" is, in bytes, the file and what it plans for tensors; XNNPACK's own buffers come on top.
    """
    import json

    from fedlens.reports import bundle_report
    from fedlens.reports.tables import plain, print_table
    from fedlens_proto.errors import ProtoError

    try:
        values = bundle_report.bundle_values(bundle_report.open_bundle(file))
    except (ProtoError, OSError) as error:
        typer.echo(f"fedlens: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps(values, indent=2))
    else:
        for heading, text in bundle_report.summary(values):
            typer.echo(f"{heading:<16}{plain(text)}")
        print_table(bundle_report.PROGRAM_COLUMNS, bundle_report.program_rows(values))
        print_table(bundle_report.TENSOR_COLUMNS, bundle_report.tensor_rows(values))
        if values["hyper_parameters"]:
            print_table(bundle_report.HYPER_COLUMNS, bundle_report.hyper_rows(values))
    failed = bundle_report.unreadable(values)
    for line in failed:
        typer.echo(f"fedlens: {plain(line)}", err=True)
    if failed:
        raise typer.Exit(1)
