"""`fedlens link`: the link that lets phones join."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.options import enrolment_token, reported

LinkPublishers = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="The .pub file of somebody whose signed bundles phones run, if their app takes keys from links; "
        "may be given several times.",
    ),
]


def link(
    server: Annotated[str, typer.Option(help="Address of the server for phones, such as https://fl.example.org:8443.")],
    token_file: Annotated[Path, typer.Option(help="File with the enrolment token.")],
    ca: Annotated[
        Path | None, typer.Option(help="Certificate (PEM) for phones to trust instead of the system's.")
    ] = None,
    publisher: LinkPublishers = None,
    operator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Who runs the server, for people who are asked to join.")
    ] = None,
    purpose: Annotated[str | None, typer.Option(metavar="TEXT", help="What the models are for, for the same.")] = None,
    qr: Annotated[bool, typer.Option("--qr", help="Also draw it as a QR code.")] = False,
) -> None:
    """Print the link that lets phones join; it holds the enrolment token."""
    from fedlens.errors import FedlensError
    from fedlens_edge_client.errors import StateError

    with reported(FedlensError, StateError):
        token = enrolment_token(token_file) or ""
        found = link_of(server, token, ca, publisher or (), operator, purpose)
        typer.echo(found)
        if qr:
            typer.echo(drawn(found))


def link_of(
    server: str,
    token: str,
    ca: Path | None,
    publishers: Sequence[Path] = (),
    operator: str | None = None,
    purpose: str | None = None,
) -> str:
    """The link, with the certificates and keys of files.

    Raises:
        FedlensError: The address, the token, a text or a file cannot be used.
    """
    from fedlens.errors import FedlensError
    from fedlens_proto.errors import StatementRefused
    from fedlens_proto.programs.statements import Publisher
    from fedlens_server.enrolment_link import enrolment_link

    try:
        pem = None if ca is None else ca.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise FedlensError(f"--ca: {ca} cannot be read as a certificate (PEM): {why}") from error
    try:
        keys = [Publisher.of_file(file) for file in publishers]
        return enrolment_link(server, token, pem, keys, operator, purpose)
    except (ValueError, OSError, StatementRefused) as error:
        raise FedlensError(str(error)) from error


def drawn(text: str) -> str:
    """A link's QR code as lines of block characters.

    Raises:
        FedlensError: The link is too long for one.
    """
    import io

    import segno

    from fedlens.errors import FedlensError

    lines = io.StringIO()
    try:
        segno.make(text, error="l", micro=False).terminal(lines, compact=True, border=2)
    except segno.DataOverflowError as error:
        raise FedlensError(
            f"the link has {len(text):,} characters; a QR code holds 2,953: leave --qr out, or give fewer certificates"
        ) from error
    return lines.getvalue()
