"""`fedlens client list | show | ban | unban`: an operator's view of the clients of a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedlens.commands.admin.profile import Admin, admin_client, message_values, readable_time, reported_admin, seconds
from fedlens.commands.client import client
from fedlens.commands.options import AsJson, print_json

if TYPE_CHECKING:
    from fedlens.admin_client import AdminClient

client_app = typer.Typer()
client_app.callback(invoke_without_command=True)(client)
State = Literal["active", "banned", "sits-out"]
_ID_HELP = "Id of the client in hexadecimal, or its first 8 digits or more."
ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help=_ID_HELP)]
OneClient = Annotated[str | None, typer.Argument(metavar="[CLIENT]", help=_ID_HELP)]
_COLUMNS = ("id", "role", "token", "enrolled", "last seen", "state")


@client_app.command("list")
def list_clients(
    token: Annotated[str | None, typer.Option(help="Only those that enrolled with a token of this name.")] = None,
    bundle: Annotated[
        str | None, typer.Option(help="Only those that run a bundle: a model's name, or first digits of a bundle's id.")
    ] = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    seen: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only those that were seen in the last 2h, 30m or 7d.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="The most clients to list.")] = 100,
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """List clients of a server, ascending by id."""
    with reported_admin():
        from fedlens.reports.tables import print_table

        wanted = {"token": token, "bundle": bundle, "state": state, "seen_within_s": seconds(seen, "--seen") or None}
        given = {key: value for key, value in wanted.items() if value is not None}
        found = [_values(each) for each in admin_client(admin).clients(limit, **given)]
        if as_json:
            print_json(found)
            return
        caption = "there may be more: --limit" if len(found) == limit else None
        print_table(_COLUMNS, map(_row, found), caption, uncut=True)


@client_app.command()
def show(client: ClientId, admin: Admin = None, as_json: AsJson = False) -> None:
    """Show a client: its enrolment, and its part in each task."""
    with reported_admin():
        from fedlens.reports.tables import print_table

        found = admin_client(admin).show_client(client)
        values = _values(found.client)
        tasks = [message_values(task) for task in found.tasks]
        if as_json:
            told = {key: getattr(found, key) for key in ("answer", "answer_task", "answer_detail", "answered_at")}
            print_json(values | {"capabilities": message_values(found.capabilities), "tasks": tasks} | told)
            return
        print_table(_COLUMNS, [_row(values)], uncut=True)
        print_table(
            ("task", "suits", "last round", "took part", "misses", "quarantines", "sits out until"),
            (
                [task["name"], "yes" if task["suits"] else "no"]
                + [str(task[key]) for key in ("last_round", "times", "misses", "quarantines")]
                + [readable_time(task["sits_out_until"])]
                for task in tasks
            ),
        )
        if found.answer:
            about = f" about task {found.answer_task}" if found.answer_task else ""
            detail = f": {found.answer_detail}" if found.answer_detail else ""
            typer.echo(f"last told {found.answer}{about} at {readable_time(found.answered_at)}{detail}")


@client_app.command()
def ban(
    client: OneClient = None,
    token: Annotated[str | None, typer.Option(help="All that enrolled with this token, which is revoked.")] = None,
    reason: Annotated[str, typer.Option(help="For operators; the client is not told.")] = "",
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Shut a client out, from its next request on."""
    with reported_admin():
        kind, name, server = _one_of(client, token, admin)
        _tell("banned", kind, name, server.ban(kind, name, reason), as_json)


@client_app.command()
def unban(
    client: OneClient = None,
    token: Annotated[str | None, typer.Option(help="All that enrolled with this token.")] = None,
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Let a client in again."""
    with reported_admin():
        kind, name, server = _one_of(client, token, admin)
        _tell("unbanned", kind, name, server.unban(kind, name), as_json)


def _one_of(client: str | None, token: str | None, admin: Path | None) -> tuple[str, str, "AdminClient"]:
    """What is named, in full, and where."""
    from fedlens.errors import FedlensError

    if (client is None) == (token is None):
        raise FedlensError("name one client by its id, or a token by --token, and not both")
    server = admin_client(admin)
    if client is None:
        return "tokens", token or "", server
    return "clients", server.show_client(client).client.id.hex(), server


def _tell(what: str, kind: str, name: str, count: int, as_json: bool) -> None:
    from fedlens.reports.tables import counted

    if as_json:
        print_json({what: name, "clients": count})
    elif kind == "tokens":
        typer.echo(f"{what} {counted(count, 'client')} of token {name!r}")
    else:
        already = "is banned already" if what == "banned" else "is not banned"
        typer.echo(f"{what} {name}" if count else f"{name} {already}; nothing has changed")


def _values(client: Any) -> dict[str, Any]:
    return message_values(client) | {"id": client.id.hex()}


def _row(values: dict[str, Any]) -> list[str]:
    state = values["state"]
    if state == "banned":
        state += f" since {readable_time(values['banned_at'])}" + (values["ban_reason"] and f": {values['ban_reason']}")
    elif state == "sits-out":
        state += f" until {readable_time(values['sits_out_until'])}"
    times = (readable_time(values[key], "%Y-%m-%d %H:%MZ") for key in ("enrolled_at", "last_seen"))
    return [values["id"], values["role"], values["token"], *times, state]
