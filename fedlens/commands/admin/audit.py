"""`fedlens audit`: the changes that operators made."""

from typing import Annotated

import typer

from fedlens.commands.admin.profile import Admin, admin_client, message_values, readable_time, reported_admin, seconds
from fedlens.commands.options import AsJson, print_json


def audit(
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only those of the last 30d, 12h or 45m."),
    ] = None,
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """List what operators changed, when and who, the latest first."""
    with reported_admin():
        from fedlens.reports.tables import print_table

        found = admin_client(admin).audit(seconds(since, "--since"))
        if as_json:
            print_json([message_values(each) for each in found])
            return
        rows = ([readable_time(each.at), each.operator, each.action, each.subject, each.detail] for each in found)
        print_table(("when", "operator", "action", "subject", "detail"), rows)
