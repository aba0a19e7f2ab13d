"""`fedlens link`: the link by which phones join."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(link)


def link(
    server: Annotated[str, typer.Option(help="Address as phones call it, such as https://fl.example.org:8443.")],
    token_file: Annotated[Path, typer.Option(help="File with the enrolment token.")],
    ca: Annotated[
        Path | None, typer.Option(help="Certificate (PEM) that phones are to trust instead of their own.")
    ] = None,
) -> None:
    """Print the link, or content of a QR code, by which phones join. It holds the enrolment token."""
    from fedlens.enrolment_link import enrolment_link

    try:
        token = token_file.read_text(encoding="utf-8").strip()
        typer.echo(enrolment_link(server, token, None if ca is None else ca.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:
        typer.echo(f"fedlens: {error}", err=True)
        raise typer.Exit(1) from error
