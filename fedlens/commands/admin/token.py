"""`fedlens token`: the tokens with which clients enrol and operators operate."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedlens.commands.admin.profile import Admin, admin_client, message_values, readable_time, reported_admin, seconds
from fedlens.commands.link import LinkPublishers, drawn, link_of
from fedlens.commands.options import AsJson, print_json

token_app = typer.Typer(help="Make, list and revoke tokens of clients and operators.", no_args_is_help=True)
Role = Literal["trainer", "evaluator", "read", "operate"]
TokenName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")]


@token_app.command()
def new(
    name: TokenName,
    role: Annotated[Role, typer.Option(help="Of clients: trainer or evaluator. Of operators: read or operate.")],
    uses: Annotated[int | None, typer.Option(min=1, max=10**9, help="Clients it lets in.", show_default="100")] = None,
    per_minute: Annotated[
        int | None,
        typer.Option(min=1, max=10**6, help="Clients it lets in within a minute.", show_default="100"),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Such as 30d, 12h or 45m. Default: never.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(help="Address for phones, such as https://fl.example.org:8443: print a link, too.")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="With --server: certificate (PEM) for phones to trust instead of the system's.")
    ] = None,
    publisher: LinkPublishers = None,
    qr: Annotated[bool, typer.Option("--qr", help="With --server: draw the link as a QR code.")] = False,
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, which happens only this once; the server keeps a hash."""
    with reported_admin():
        from fedlens.errors import FedlensError
        from fedlens_proto.v1 import admission_pb2

        if server is None and (qr or publisher or ca is not None):
            raise FedlensError(
                "--qr, --ca and --publisher say how phones join; name the server's address for phones with --server"
            )
        if server is not None and role in ("read", "operate"):
            raise FedlensError(f"--server: a link lets phones join, and a token of role {role} lets none; leave it out")
        if server is not None:
            # What is wrong with the link is told before a token is made; it has as many characters as this one.
            probe = link_of(server, "x" * 43, ca, publisher or ())
            if qr:
                drawn(probe)
        made = admin_client(admin).create_token(
            name,
            getattr(admission_pb2, f"TOKEN_ROLE_{role.upper()}"),
            max_uses=uses or 0,
            per_minute=per_minute or 0,
            expires_in_s=seconds(expires, "--expires"),
        )
        link = None if server is None else link_of(server, made.secret, ca, publisher or ())
        if as_json:
            print_json(message_values(made.token) | {"secret": made.secret, "link": link})
            return
        typer.echo(made.secret)
        if link is not None:
            typer.echo(link)
            if qr:
                typer.echo(drawn(link))
        typer.echo(f"token {name!r} is made; it cannot be shown again", err=True)


@token_app.command("list")
def list_tokens(admin: Admin = None, as_json: AsJson = False) -> None:
    """List all tokens, without their secrets."""
    with reported_admin():
        from fedlens.reports.tables import print_table

        found = [message_values(token) for token in admin_client(admin).tokens()]
        if as_json:
            print_json(found)
            return
        print_table(("name", "role", "uses", "a minute", "made", "expires", "revoked"), map(_row, found))


@token_app.command()
def revoke(name: TokenName, admin: Admin = None, as_json: AsJson = False) -> None:
    """Let nobody else in by a token; clients that have enrolled stay (`fedlens client ban --token`)."""
    with reported_admin():
        admin_client(admin).revoke_token(name)
        if as_json:
            print_json({"revoked": name})
        else:
            typer.echo(f"revoked token {name!r}")


def _row(values: dict[str, Any]) -> list[str]:
    is_of_clients = values["max_uses"] > 0
    return [
        values["name"],
        values["role"],
        f"{values['uses']} of {values['max_uses']}" if is_of_clients else "-",
        str(values["per_minute"]) if is_of_clients else "-",
        *(readable_time(values[key]) for key in ("created_at", "expires_at", "revoked_at")),
    ]
