"""Somebody who looks at the dashboard over HTTP, as a browser does, but without scripts."""

import re
from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import urlencode

from fedlens_server.http.dashboard.pages import ROOT
from fedlens_server.http.dashboard.sessions import COOKIE
from tests.server.http.running import ADMIN_TOKEN, Answer, Server

FORM = "application/x-www-form-urlencoded"


@dataclass
class Visitor:
    """A browser with its session cookie; empty: it has none."""

    server: Server
    cookie: str = ""

    async def get(self, path: str, **headers: str) -> Answer:
        cookie = {"Cookie": f"{COOKIE}={self.cookie}"} if self.cookie else {}
        return await self.server.request("GET", self.server.admin_url + ROOT + path, **cookie, **headers)

    async def page(self, path: str) -> str:
        """The HTML of a page that is there."""
        answer = await self.get(path)
        assert answer.status == 200, answer
        return answer.body.decode()

    async def post(self, path: str, headers: dict[str, str] | None = None, **form: str) -> Answer:
        """Send a form; a browser says that it comes from the same origin, unless `headers` say something else."""
        told = {"Sec-Fetch-Site": "same-origin", "Origin": self.server.admin_url} if headers is None else headers
        cookie = {"Cookie": f"{COOKIE}={self.cookie}"} if self.cookie else {}
        sent = {"Content-Type": FORM, **told, **cookie}
        url, body = self.server.admin_url + ROOT + path, urlencode(form).encode()
        return await self.server.request("POST", url, body, **{key.replace("-", "_"): v for key, v in sent.items()})

    async def log_in(self, token: str = ADMIN_TOKEN, target: str = "") -> Answer:
        answer = await self.post("/login", token=token, next=target)
        if "Set-Cookie" in answer.headers:
            self.cookie = SimpleCookie(answer.headers["Set-Cookie"])[COOKIE].value
        return answer


async def logged_in(server: Server, token: str = ADMIN_TOKEN) -> Visitor:
    visitor = Visitor(server)
    assert (await visitor.log_in(token)).status == 303
    return visitor


def text_of(page: str) -> str:
    """The words of a page."""
    return " ".join(re.sub("<[^>]*>", " ", page).split())
