"""Publishers' statements about bundles as JSON values and lines; nothing is verified here."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fedlens_proto.errors import StatementRefused
from fedlens_proto.programs import statements

_LAST_S = 253_402_300_799  # the end of the year 9999


def statement_values(signed: bytes, manifest: bytes) -> dict[str, Any] | None:
    """A signed statement about the bundle whose manifest has this SHA-256; None: there is none, `signed` is empty.

    The value of `error` says what is wrong with it, else None.
    """
    if not signed:
        return None
    try:
        found, _, _ = statements.read(signed)
    except StatementRefused as error:
        return {"error": str(error)}
    return {
        "publisher": found.publisher.hex(),
        "name": found.name,
        "serial": found.serial,
        "floor": found.floor,
        "audience": list(found.audience),
        "any_app": found.any_app,
        "not_after": found.not_after,
        "error": None if found.manifest == manifest else f"it is about bundle {found.manifest.hex()[:12]}",
    }


def statement_lines(values: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Headings and texts of `statement_values`."""
    if values is None:
        return [("publisher", "not signed; `fedlens sign` does")]
    if values["error"] is not None:
        return []
    withdrawn = f"; those below {values['floor']} are withdrawn" if values["floor"] else ""
    ends = datetime.fromtimestamp(min(values["not_after"], _LAST_S), UTC)
    return [
        ("publisher", values["publisher"]),
        ("published as", f"{values['name']}, serial {values['serial']}{withdrawn}"),
        ("for", "every application" if values["any_app"] else ", ".join(values["audience"])),
        ("trains until", f"{ends:%Y-%m-%d %H:%M} UTC"),
    ]
