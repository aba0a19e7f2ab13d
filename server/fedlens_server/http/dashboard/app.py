"""The application of the dashboard: who may see a page, the headers of all of them, and their addresses.

Pages work without scripts, but for the charts and what is shown anew every two seconds. No style, script or picture
comes from elsewhere, and none stands in a page.
"""

import re
from urllib.parse import quote

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from fedlens_server.engine.operators.history import History
from fedlens_server.engine.operators.tokens import hashed
from fedlens_server.errors import Forbidden, ServerError, Unauthorised
from fedlens_server.http.dashboard import changes, client_pages, static_files, task_pages, token_pages
from fedlens_server.http.dashboard.pages import ROOT, form, render, sentence
from fedlens_server.http.dashboard.sessions import SESSION, SESSIONS, Sessions, check_same_origin
from fedlens_server.http.responses import Connection, note_refusal, of_framework
from fedlens_server.http.service import OPERATOR, SERVICE, Service

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Forms say where they come from, which check_same_origin needs; other sites learn nothing.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_PAGE = re.compile(re.escape(ROOT) + r"/[!-\[\]-~]*")  # printable ASCII but the backslash
# A token and an address; nobody knows yet who sends it.
MAX_LOGIN_BYTES = 16 << 10
_LOGIN, _LOGOUT = f"{ROOT}/login", f"{ROOT}/logout"


def create_dashboard(service: Service) -> web.Application:
    """The application below `ROOT`, for the operators of a service that another application runs."""
    app = web.Application(middlewares=[guarded])
    app[SERVICE] = service
    app[SESSIONS] = Sessions(service.clock)
    app[task_pages.HISTORY] = History()
    app.add_routes(
        [
            web.get("/static/{digest}/{name}", static_files.send),
            web.get("/login", show_login),
            web.post("/login", log_in),
            web.post("/logout", log_out),
            *task_pages.routes(),
            *client_pages.routes(),
            *token_pages.routes(),
            *changes.routes(),  # the last ones, as their addresses match others
        ]
    )
    return app


async def to_dashboard(_: web.Request) -> web.Response:
    """`GET /` of the operators' address: the dashboard."""
    return web.Response(status=303, headers={hdrs.LOCATION: f"{ROOT}/"})


@web.middleware
async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer operators who are logged in, send others to the login, and turn errors into pages."""
    try:
        response = await _answer(request, handler)
    except ServerError as fault:
        note_refusal(fault)
        response = render(request, "error.html", status=fault.status, text=sentence(fault))
    except web.HTTPException as fault:
        note_refusal(of_framework(request, fault), fault.reason)  # its text quotes the path that was sent
        reason = f"there is no page {request.path[:80]}" if fault.status in (404, 405) else fault.reason
        response = render(request, "error.html", status=fault.status, text=sentence(reason))
    response.headers.update(_HEADERS)
    response.headers.setdefault(hdrs.CACHE_CONTROL, "no-store")
    return response


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    changes_something = request.method not in ("GET", "HEAD")
    if changes_something:
        check_same_origin(request)
    if request.path == _LOGIN or request.path.startswith(f"{ROOT}/static/"):
        return await handler(request)
    try:
        found = request.app[SESSIONS].find(request)
        if found is None:
            raise Unauthorised("log in first")
        request[OPERATOR] = operator = request.app[SERVICE].operator(found.token_sha256)
    except Unauthorised as fault:
        return _to_login(request, fault)
    request[SESSION] = found
    if changes_something and request.path != _LOGOUT:
        operator.check_may(request.method)
    return await handler(request)


def _to_login(request: web.Request, fault: Unauthorised) -> web.Response:
    if "HX-Request" in request.headers:  # a part of a page, which the login must not become
        note_refusal(fault)
        return web.Response(status=401, headers={"HX-Refresh": "true"})
    if request.method not in ("GET", "HEAD"):
        raise Forbidden("your session is over and nothing was changed; log in and try again")
    target = quote(request.path_qs, safe="/")
    return web.Response(status=303, headers={hdrs.LOCATION: f"{_LOGIN}?next={target}"})


async def show_login(request: web.Request) -> web.Response:
    """`GET /login`: the form for an operator's token."""
    return render(request, "login.html", target=request.query.get("next", ""))


async def log_in(request: web.Request) -> web.Response:
    """`POST /login`: begin a session with an operator's token."""
    connection = request.protocol
    assert isinstance(connection, Connection)
    connection.awaits_stranger = True  # so that many of them keep no operator out
    given = await form(request, MAX_LOGIN_BYTES)
    connection.awaits_stranger = False
    token, target = given.get("token", "").strip(), given.get("next", "")
    # A path below the root and nothing else, so that a link cannot send an operator elsewhere.
    if not _PAGE.fullmatch(target):
        target = f"{ROOT}/"
    try:
        request.app[SERVICE].operator(hashed(token))
    except Unauthorised as fault:
        note_refusal(fault)
        return render(request, "login.html", status=401, target=target, message=sentence(fault), is_fault=True)
    response = web.Response(status=303, headers={hdrs.LOCATION: target})
    request.app[SESSIONS].begin(response, hashed(token), ROOT, is_secure=request.secure)
    return response


async def log_out(request: web.Request) -> web.Response:
    """`POST /logout`: end the session."""
    request.app[SESSIONS].end(request)
    return web.Response(status=303, headers={hdrs.LOCATION: _LOGIN})
