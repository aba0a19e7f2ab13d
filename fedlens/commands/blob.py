"""`fedlens blob`: looking into files of tensors, comparing and converting them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

blob_app = typer.Typer(
    help="Look into files of tensors, compare and convert them: blobs, safetensors, PyTorch state dicts.",
    no_args_is_help=True,
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FORMATS = "The ending tells the format: .safetensors, .pt or .pth (state dict), .blob or none (blob)."


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.add_typer(blob_app, name="blob")


@blob_app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=_FORMATS)],
    as_json: AsJson = False,
) -> None:
    """Show the tensors of a file: shapes, how they are stored, and statistics of their values."""
    with _reported(status=1):
        from fedlens import blob_files
        from fedlens.reports import blob_report
        from fedlens.reports.tables import print_table

        values = blob_report.show_values(blob_files.read(file))
        if as_json:
            _print_json(values)
            return
        print_table(blob_report.SHOW_COLUMNS, map(blob_report.show_row, values["tensors"]))
        typer.echo(f"{values['format']}, {values['bytes']:,} bytes, {values['elements']:,} numbers")
        typer.echo(f"sha256 {values['sha256']}")
        if values["base"]:
            typer.echo(f"a difference, to be added to blob {values['base']}")


@blob_app.command()
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help=_FORMATS)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another file, in any of these formats.")],
    as_json: AsJson = False,
) -> None:
    """Compare the numbers of two files, tensor by tensor.

    The exit status is 0 if they are equal, 1 if they differ, and 2 if one cannot be read.
    """
    with _reported(status=2):
        from fedlens import blob_files
        from fedlens.reports import blob_report
        from fedlens.reports.tables import print_table

        values = blob_report.diff_values(blob_files.read(a), blob_files.read(b))
        if as_json:
            _print_json(values)
        else:
            print_table(blob_report.DIFF_COLUMNS, map(blob_report.diff_row, values["tensors"]))
            for name in values["missing"]:
                typer.echo(f"only in {a}: {name}")
            for name in values["extra"]:
                typer.echo(f"only in {b}: {name}")
            if values["a"]["base"] != values["b"]["base"]:
                sides = [f"{side['file']} {_what(side['base'])}" for side in (values["a"], values["b"])]
                typer.echo(f"not of one kind: {'; '.join(sides)}")
            typer.echo("equal" if values["equal"] else "different")
    if not values["equal"]:
        raise typer.Exit(1)


@blob_app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help=_FORMATS)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write, or to replace.")],
    codec: Annotated[
        str | None, typer.Option(help="How a blob stores float tensors: f32, f16 or int8. Default: f32.")
    ] = None,
    base: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The blob to which IN, a difference, is to be added.")
    ] = None,
) -> None:
    """Write the tensors of a file in another format; what a difference gives is whole tensors."""
    with _reported(status=1):
        from fedlens import blob_files

        blob_files.format_of(out)
        tensors = blob_files.whole(blob_files.read(source), base)
        blob_files.write(out, tensors, codec)
        typer.echo(f"wrote {out}: {len(tensors)} tensors, {out.stat().st_size:,} bytes")


@contextmanager
def _reported(status: int) -> Iterator[None]:
    from fedlens.blob_files import BlobFileError
    from fedlens_proto.errors import ProtoError

    try:
        yield
    except (BlobFileError, ProtoError) as error:
        typer.echo(f"fedlens: {error}", err=True)
        raise typer.Exit(status) from error


def _what(base: str | None) -> str:
    return "holds whole tensors" if base is None else f"holds the difference to {base}"


def _print_json(values: Any) -> None:
    typer.echo(json.dumps(values, indent=2))
