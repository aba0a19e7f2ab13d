"""`fedlens link`: the link that lets phones join."""

from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import reported


def link(
    server: Annotated[str, typer.Option(help="Address of the server for phones, such as https://fl.example.org:8443.")],
    token_file: Annotated[Path, typer.Option(help="File with the enrolment token.")],
    ca: Annotated[
        Path | None, typer.Option(help="Certificate (PEM) for phones to trust instead of the system's.")
    ] = None,
) -> None:
    """Print the link, or content of a QR code, that lets phones join; it holds the enrolment token."""
    from fedlens.enrolment_link import enrolment_link

    with reported(ValueError, OSError):
        token = token_file.read_text(encoding="utf-8").strip()
        typer.echo(enrolment_link(server, token, None if ca is None else ca.read_text(encoding="utf-8")))
