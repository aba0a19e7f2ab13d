"""`fedlens audit`: the changes that operators made."""

from typing import Annotated

import typer
from google.protobuf.json_format import MessageToDict

from fedlens.commands.admin.profile import Admin, admin_client, readable_time, reported_admin, seconds
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
            shown = (
                MessageToDict(each, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
                for each in found
            )
            print_json([values | {"id": int(values["id"])} for values in shown])
            return
        rows = ([readable_time(each.at), each.operator, each.action, each.subject, each.detail] for each in found)
        print_table(("when", "operator", "action", "subject", "detail"), rows)
