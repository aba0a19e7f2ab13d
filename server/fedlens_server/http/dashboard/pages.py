"""Pages from templates: HTML in which everything is escaped, and the words and numbers that people read."""

import re
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context, select_autoescape
from jinja2.runtime import Context
from markupsafe import Markup

from fedlens_proto import wire
from fedlens_proto.v1 import admin_pb2, admission_pb2, enrolment_pb2
from fedlens_server.engine.operators.history import RoundUnderWay
from fedlens_server.errors import Malformed
from fedlens_server.http.bodies import read_at_most
from fedlens_server.http.dashboard import static_files
from fedlens_server.http.service import OPERATOR, SERVICE

ROOT = "/dashboard"
MAX_FORM_BYTES = 512 << 10  # settings of a task, escaped
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def render(request: web.Request, template: str, *, status: int = 200, **values: Any) -> web.Response:
    """A page, or a part of one, from a template; who asks and the time are known to it, too."""
    now, operator = request.app[SERVICE].clock.now(), request.get(OPERATOR)
    may_change = operator is not None and operator.role == admission_pb2.TOKEN_ROLE_OPERATE
    known = {"path": request.path, "now": now, "operator": operator}
    known |= {"may_change": may_change, "message": "", "is_fault": False}
    text = _ENVIRONMENT.get_template(template).render(known | values)
    return web.Response(text=text, content_type="text/html", status=status)


def duration(seconds: float) -> str:
    """A time in the largest unit of which it has two: `3 min`, `90 min`."""
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    each, unit = next(found for found in _UNITS if abs(seconds) >= 2 * found[0])
    return f"{seconds / each:.0f} {unit}"


async def form(request: web.Request, most_bytes: int = MAX_FORM_BYTES) -> dict[str, str]:
    """The fields of a form that a page sent.

    Raises:
        Malformed: It is no form, or no text.
        TooLarge: It has more than `most_bytes` bytes.
        ConnectionError: The client went away, or is too slow.
    """
    try:
        if request.content_type != "application/x-www-form-urlencoded":
            raise ValueError(request.content_type)
        body = await read_at_most(request, most_bytes, request.app[SERVICE].config.limits)
        return dict(parse_qsl(body.decode(), keep_blank_values=True, errors="strict"))
    except ValueError as error:
        raise Malformed("the form cannot be read; open the page again and send it from there") from error


def number(key: str, text: str, what: str) -> int:
    """A number that a form or an address names, such as that of a round.

    Raises:
        Malformed: It is none; the text begins with `key`, and says that it must be the number of `what`.
    """
    if not re.fullmatch("[0-9]{1,15}", text):
        raise Malformed(f"{key}: found {text[:40]!r}, must be the number of {what}")
    return int(text)


def sentence(text: object) -> str:
    """The text of an error as a sentence, which may begin with the name of a field or setting."""
    words = str(text)
    names_a_field = words.partition(" ")[0].endswith((":", ","))
    return f"{words if names_a_field else words[:1].upper() + words[1:]}."


@pass_context
def moment(context: Context, seconds: float | None, ahead: str = "in") -> Markup | str:
    """A time, in seconds since the epoch, as an element with how long ago it is or how soon it comes: `in 3 min`."""
    if not seconds:
        return "-"
    shown = exact(seconds)
    ago = context["now"] - seconds
    words = f"{duration(ago)} ago" if ago >= 0 else f"{ahead} {duration(-ago)}"
    return Markup('<time title="{0}" datetime="{1}">{2}</time>').format(shown, shown.replace(" UTC", "Z"), words)


def exact(seconds: float) -> str:
    """A time, in seconds since the epoch, as a date: `2026-11-24 02:00:00 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")


def size(count: float) -> str:
    """A number of bytes: `26.2 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def percent(share: float | None) -> str:
    """A share in percent, or a dash for None."""
    return "-" if share is None else f"{share:.1%}"


def _is_overdue(current: RoundUnderWay) -> bool:
    return current.state == admin_pb2.ROUND_STATE_OPEN and current.ends_in_s is not None and current.ends_in_s <= 0


def _short(client: bytes) -> str:
    return client.hex()[:12]


_ENVIRONMENT = Environment(
    loader=PackageLoader("fedlens_server.http.dashboard"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters.update(duration=duration, moment=moment, exact=exact, size=size, percent=percent, short=_short)
_ENVIRONMENT.globals.update(
    root=ROOT,
    asset=lambda name: f"{ROOT}/{static_files.address(name)}",
    is_overdue=_is_overdue,
    task_state=partial(wire.word, admin_pb2.TaskState),
    round_state=partial(wire.word, admin_pb2.RoundState),
    member_state=partial(wire.word, admin_pb2.MemberState),
    client_state=partial(wire.word, admission_pb2.ClientState),
    client_role=partial(wire.word, enrolment_pb2.ClientRole),
    token_role=partial(wire.word, admission_pb2.TokenRole),
)
