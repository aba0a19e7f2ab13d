"""`fedlens bundle`: show bundles."""

from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import print_json, reported

bundle_app = typer.Typer(help="Show bundles.", no_args_is_help=True)


@bundle_app.callback()
def _of_several() -> None:
    # Otherwise typer would take the only sub-command for the command itself.
    pass


@bundle_app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Folder of a bundle, or the manifest.pb in it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with everything that tables leave out.")] = False,
) -> None:
    """Show programs, tensors and hyper-parameters of a bundle without running it.

    "In XNNPACK" is the fraction of a .pte program's operators that XNNPACK runs, after fusion.
    "Memory" is the size of the file and of its planned tensors, in bytes; XNNPACK needs further buffers.
    """
    from fedlens.reports import bundle_report
    from fedlens.reports.tables import plain, print_table
    from fedlens_proto.errors import ProtoError

    with reported(ProtoError, OSError):
        values = bundle_report.bundle_values(bundle_report.open_bundle(file))
    if as_json:
        print_json(values)
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
