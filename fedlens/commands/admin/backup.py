"""`fedlens backup` and `fedlens restore`: the state of a server, kept and taken up again."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fedlens.commands.admin.profile import Admin, admin_client, readable_time, reported_admin
from fedlens.commands.options import reported


def backup(
    keep: Annotated[int, typer.Option(min=0, help="Remove all but so many latest backups; 0 removes none.")] = 0,
    admin: Admin = None,
) -> None:
    """Have a running server back itself up into the folder or bucket that its server.backups names."""
    with reported_admin():
        from fedlens.reports.tables import counted

        made = admin_client(admin).backup(keep)
        blobs, copied = counted(made.blobs, "blob"), counted(made.copied_bytes, "byte")
        removed = counted(made.removed, "older backup")
        typer.echo(f"{made.place}: {blobs}, {made.copied} of them new, {copied} copied; {removed} removed")


def restore(
    backup: Annotated[
        str, typer.Argument(help="A backup's folder, with `blobs` beside it; or its place in a bucket, s3://...")
    ],
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the state into DIR, a new or empty folder.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Read all of the backup and compare digests.")] = False,
) -> None:
    """Write the state of a backup into a new folder, or check the backup. The server may be another machine."""
    from fedlens_server.errors import StoreUnusable
    from fedlens_server.store.copies import backups

    with reported(StoreUnusable, ValueError):
        place = backups.place_of(backup)
        if check == (data is not None):
            raise StoreUnusable("give either --data DIR or --check")
        about = backups.check(place) if data is None else backups.restore(place, data)
        typer.echo(f"{backup} is whole" if data is None else f"restored {backup} into {data}")
        typer.echo(
            f"what the server acknowledged after {readable_time(about.taken_at)}, "
            f"{max(time.time() - about.taken_at, 0):.0f} s ago, is not in it"
        )
