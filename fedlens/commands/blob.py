"""`fedlens blob`: show, compare and convert files of tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import AsJson, print_json, reported

blob_app = typer.Typer(
    help="Show, compare and convert files of tensors: blobs, safetensors, PyTorch state dicts.",
    no_args_is_help=True,
)

_FORMATS = "File; its ending is the format: .safetensors, .pt or .pth (state dict), .blob or none (blob)."


@blob_app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=_FORMATS)],
    as_json: AsJson = False,
) -> None:
    """Show the tensors of a file: shapes, storage, and statistics of their values."""
    with _reported(status=1):
        from fedlens import blob_files
        from fedlens.reports import blob_report
        from fedlens.reports.tables import counted, print_table

        values = blob_report.show_values(blob_files.read(file))
        if as_json:
            print_json(values)
            return
        print_table(blob_report.SHOW_COLUMNS, map(blob_report.show_row, values["tensors"]))
        typer.echo(f"{values['format']}, {counted(values['bytes'], 'byte')}, {counted(values['elements'], 'number')}")
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
            print_json(values)
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
        str | None, typer.Option(help="Codec of a blob's float tensors: f32, f16 or int8. Default: f32.")
    ] = None,
    base: Annotated[Path | None, typer.Option(metavar="FILE", help="Base blob, if IN holds differences.")] = None,
) -> None:
    """Write the tensors of a file in another format; differences become whole tensors."""
    with _reported(status=1):
        from fedlens import blob_files
        from fedlens.reports.tables import counted

        blob_files.format_of(out)
        tensors = blob_files.whole(blob_files.read(source), base)
        blob_files.write(out, tensors, codec)
        typer.echo(f"wrote {out}: {counted(len(tensors), 'tensor')}, {counted(out.stat().st_size, 'byte')}")


@contextmanager
def _reported(status: int) -> Iterator[None]:
    from fedlens.blob_files import BlobFileError
    from fedlens_proto.errors import ProtoError

    with reported(BlobFileError, ProtoError, status=status):
        yield


def _what(base: str | None) -> str:
    return "holds whole tensors" if base is None else f"holds the difference to {base}"
