"""Sessions of operators in browsers: a cookie that stands for a token, until it is over or the server ends.

At each request the token is looked up anew by its hash, so that one that was revoked or has expired ends its sessions.
"""

import secrets
from collections import OrderedDict
from dataclasses import dataclass

from aiohttp import hdrs, web

from fedlens_server.clock import Clock
from fedlens_server.errors import Forbidden

COOKIE = "fedlens_session"
LIFE_S = 12 * 3600.0
MAX_SESSIONS = 1_000


@dataclass
class Session:
    """One operator in one browser."""

    token_sha256: str  # in hexadecimal
    until: float  # by `Clock.elapsed`
    message: str = ""  # for the next page


class Sessions:
    """All sessions, by the cookie's value; at most `MAX_SESSIONS`, of which the oldest end first."""

    def __init__(self, clock: Clock) -> None:
        """Nobody is logged in."""
        self._clock = clock
        self._by_cookie: OrderedDict[str, Session] = OrderedDict()

    def begin(self, response: web.StreamResponse, token_sha256: str, path: str, *, is_secure: bool) -> None:
        """Log in an operator whose token is known to be right; the cookie is sent back to `path` and below alone."""
        cookie = secrets.token_urlsafe(32)
        self._by_cookie[cookie] = Session(token_sha256, self._clock.elapsed() + LIFE_S)
        while len(self._by_cookie) > MAX_SESSIONS:
            self._by_cookie.popitem(last=False)
        response.set_cookie(
            COOKIE, cookie, max_age=int(LIFE_S), path=path, secure=is_secure, httponly=True, samesite="Strict"
        )

    def find(self, request: web.Request) -> Session | None:
        """The session of a request; None: it has none, or it is over."""
        cookie = request.cookies.get(COOKIE, "")
        found = self._by_cookie.get(cookie)
        if found is not None and self._clock.elapsed() >= found.until:
            del self._by_cookie[cookie]
            return None
        return found

    def end(self, request: web.Request) -> None:
        """Log out the operator of a request."""
        self._by_cookie.pop(request.cookies.get(COOKIE, ""), None)


def check_same_origin(request: web.Request) -> None:
    """Require that a page of this address sent a request, so that no other site acts in an operator's name.

    Browsers say where a request comes from in `Sec-Fetch-Site`, `Origin` or both.

    Raises:
        Forbidden: Another site sent it, or it does not say who did.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get(hdrs.ORIGIN)
    from_here = origin is None or origin.partition("://")[2] == request.host
    if (site is None and origin is None) or site not in (None, "same-origin") or not from_here:
        raise Forbidden("this request does not come from a page of the dashboard; open the dashboard and try again")


SESSIONS = web.AppKey("sessions", Sessions)
SESSION = web.RequestKey("session", Session)
"""The session of an operator who is logged in."""


def take_message(request: web.Request) -> str:
    """The message for the next page, once."""
    session = request[SESSION]
    message, session.message = session.message, ""
    return message


def redirect(request: web.Request, address: str, message: str) -> web.Response:
    """A redirection to a page that shows a message."""
    request[SESSION].message = message
    return web.Response(status=303, headers={hdrs.LOCATION: address})
