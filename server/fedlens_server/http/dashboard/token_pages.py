"""Pages of tokens, one of which makes a token and shows it once, and of the changes that operators made."""

import asyncio
import io
import re
from collections.abc import Sequence

import segno
from aiohttp import web
from markupsafe import Markup

from fedlens_proto.programs.statements import Publisher
from fedlens_proto.v1 import admission_pb2
from fedlens_server.clock import DAY_S
from fedlens_server.engine.operators import audit, tokens
from fedlens_server.enrolment_link import enrolment_link
from fedlens_server.errors import Malformed, ServerError
from fedlens_server.http.dashboard.actions import SUBJECTS
from fedlens_server.http.dashboard.pages import form, number, render, sentence
from fedlens_server.http.dashboard.sessions import take_message
from fedlens_server.http.responses import note_refusal
from fedlens_server.http.service import OPERATOR, SERVICE

ROLES = {
    "trainer": admission_pb2.TOKEN_ROLE_TRAINER,
    "evaluator": admission_pb2.TOKEN_ROLE_EVALUATOR,
    "read": admission_pb2.TOKEN_ROLE_READ,
    "operate": admission_pb2.TOKEN_ROLE_OPERATE,
}
CHANGES_SHOWN = 100


def routes() -> list[web.RouteDef]:
    """The addresses of pages of tokens and changes."""
    return [
        web.get("/tokens", show_tokens),
        web.get("/tokens/new", show_form),
        web.post("/tokens/new", make_token),
        web.get("/changes", show_changes),
    ]


async def show_tokens(request: web.Request) -> web.Response:
    """`GET /tokens`: all tokens, without their secrets."""
    found = await asyncio.to_thread(tokens.listed, request.app[SERVICE].federation)
    return render(
        request,
        "tokens.html",
        tokens=list(found.tokens)[::-1],
        actions=SUBJECTS["tokens"].actions,
        message=take_message(request),
    )


async def show_form(request: web.Request) -> web.Response:
    """`GET /tokens/new`: the form for a new token."""
    request[OPERATOR].check_may("POST")
    return _form(request, {"role": "trainer", "uses": "100", "per_minute": "100"})


def _form(request: web.Request, given: dict[str, str], message: str = "", status: int = 200) -> web.Response:
    return render(request, "token_new.html", status=status, given=given, message=message)


async def make_token(request: web.Request) -> web.Response:
    """`POST /tokens/new`: make a token; its page shows the secret, and for phones a link and its QR code, once."""
    service = request.app[SERVICE]
    given = {key: value.strip() for key, value in (await form(request)).items()}
    server, ca, publishers = given.get("server", ""), given.get("ca", ""), service.federation.publishers
    try:
        wanted = _wanted(given)
        if server or ca:
            _link(server, "any", ca, publishers)  # what is wrong with it is told before a token is made
        made = await service.durable(tokens.create(service.federation, wanted, request[OPERATOR]))
    except ServerError as fault:
        note_refusal(fault)
        return _form(request, given, sentence(fault), fault.status)
    link = _link(server, made.secret, ca, publishers) if server else ""
    code = _qr_code(link) if link else ""
    return render(request, "token_made.html", token=made.token, secret=made.secret, link=link, code=code)


def _wanted(given: dict[str, str]) -> admission_pb2.CreateTokenRequest:
    role = given.get("role", "")
    if role not in ROLES:
        raise Malformed(f"role: found {role[:40]!r}, must be one of {', '.join(ROLES)}")
    enrols = role in ("trainer", "evaluator")
    return admission_pb2.CreateTokenRequest(
        protocol=1,
        name=given.get("name", ""),
        role=ROLES[role],
        max_uses=_count(given, "uses", tokens.MAX_USES) if enrols else 0,
        per_minute=_count(given, "per_minute", tokens.MAX_PER_MINUTE) if enrols else 0,
        expires_in_s=_count(given, "days", 36_500) * DAY_S,
    )


def _count(given: dict[str, str], key: str, most: int) -> int:
    """A whole number of a form; 0: the field is empty."""
    text = given.get(key, "")
    if text and not (re.fullmatch("[0-9]{1,12}", text) and 1 <= int(text) <= most):
        raise Malformed(f"{key}: found {text[:40]!r}, must be a whole number from 1 to {most}, or left empty")
    return int(text or 0)


def _link(server: str, token: str, ca: str, publishers: Sequence[Publisher]) -> str:
    try:
        return enrolment_link(server, token, ca or None, publishers)
    except ValueError as error:
        raise Malformed(str(error)) from error


def _qr_code(text: str) -> Markup:
    """A QR code as a picture in the page, dark on light in dark pages too, as scanners want it; empty: no room."""
    drawn = io.BytesIO()
    try:
        code = segno.make(text, error="l", micro=False)
    except segno.DataOverflowError:
        return Markup("")
    code.save(drawn, kind="svg", xmldecl=False, svgns=False, omitsize=True, border=3, light="#fff", svgclass="qr")
    return Markup(drawn.getvalue().decode())  # made of numbers alone


async def show_changes(request: web.Request) -> web.Response:
    """`GET /changes`: what operators changed, the latest first; `?before=` an entry's number shows earlier ones."""
    text = request.query.get("before", "")
    before = number("before", text, "an entry") if text else None
    found = await asyncio.to_thread(audit.listed, request.app[SERVICE].federation, 0.0, before)
    entries = list(found.entries[:CHANGES_SHOWN])
    has_more = len(found.entries) > CHANGES_SHOWN
    return render(request, "changes.html", entries=entries, earlier=entries[-1].id if has_more else None)
