"""Valid requests for the pages of the dashboard, as a browser of an operator who is logged in sends them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from urllib.parse import urlencode

from fedlens_server.http.dashboard.pages import ROOT
from fedlens_server.http.dashboard.sessions import COOKIE
from fedlens_server.http.dashboard.static_files import address
from tests.integration.hostile.mutations import Request
from tests.integration.hostile.plain_server import Reply
from tests.integration.hostile.seed_requests import SCAPEGOATS, TASKS, Endpoint, Seed, World

_FORM = "application/x-www-form-urlencoded"
_ACTIONS = (
    ("tasks", ("pause", "resume", "resume", "deadline", "rollback", "release", "stop", "delete")),
    ("clients", ("ban", "unban")),
    ("tokens", ("revoke", "ban", "unban")),
)
_SETTINGS = ({"goal": "3"}, {"goal": "2", "clip": "false"}, {"deadline_s": "5"}, {"max_failures": "20"})
_TOKENS = (
    {"role": "trainer", "uses": "5", "per_minute": "5", "days": "1"},
    {"role": "read", "days": ""},
    {"role": "trainer", "server": "https://fl.example.org:8443"},
)


def page(path: str, world: World, random: Random, form: dict[str, str] | None = None) -> Request:
    """A page, or what a form on a page sends."""
    headers = [("Cookie", f"{COOKIE}={world.cookie}"), ("Sec-Fetch-Site", "same-origin")]
    headers += [] if form is None else [("Content-Type", _FORM)]
    tail = b"" if form is None else urlencode(form).encode()
    return Request(side="", method="", path=path, headers=tuple(headers), tail=tail)


def any_of(paths: Sequence[str], world: World, random: Random) -> Request:
    return page(ROOT + random.choice(paths), world, random)


def of_task(path: str, world: World, random: Random) -> Request:
    return page(f"{ROOT}/tasks/{random.choice(list(TASKS))}{path}", world, random)


def of_client(world: World, random: Random) -> Request:
    return page(f"{ROOT}/clients/{world.subject(random).id}", world, random)


def log_in(world: World, random: Random) -> Request:
    def learn(answer: Reply) -> None:
        world.cookie = answer.headers.get("set-cookie", "=").partition(";")[0].partition("=")[2] or world.cookie

    token = world.server.process.profile.token
    return replace(page(f"{ROOT}/login", world, random, {"token": token, "next": f"{ROOT}/"}), learn=learn)


def log_out(world: World, random: Random) -> Request:
    """Of another session, as the present one is needed."""
    made = page(f"{ROOT}/logout", world, random, {})
    return replace(made, headers=(("Cookie", f"{COOKIE}={random.random()}"), *made.headers[1:]))


def change_settings(world: World, random: Random) -> Request:
    return page(f"{ROOT}/tasks/{random.choice(list(TASKS))}/settings", world, random, random.choice(_SETTINGS))


def make_token(world: World, random: Random) -> Request:
    form = {"name": f"page {random.randrange(50)}"} | random.choice(_TOKENS)
    return page(f"{ROOT}/tokens/new", world, random, form)


def act(form: dict[str, str] | None, world: World, random: Random) -> Request:
    kind, actions = random.choice(_ACTIONS)
    subject = {"tasks": random.choice(list(TASKS)), "clients": world.subject(random).id, "tokens": SCAPEGOATS}[kind]
    value = None if form is None else {"value": random.choice(("", "noise", str(random.randrange(1, 20))))}
    return page(f"{ROOT}/{kind}/{subject}/{random.choice(actions)}", world, random, value)


def _post(path: str, weight: float, seed: Seed) -> tuple[Endpoint, tuple[float, Seed]]:
    return ("operators", "POST", ROOT + path), (weight, seed)


def _get(path: str, seed: Callable[[World, Random], Request]) -> tuple[Endpoint, tuple[float, Seed]]:
    return ("operators", "GET", ROOT + path), (0.3, seed)


_CLIENTS = ("/clients", "/clients?state=banned&token=subjects", "/clients?seen=1h", "/clients?after=" + "0" * 64)
_ACTION = "/{kind}/{subject}/{action}"
PAGE_SEEDS: dict[Endpoint, tuple[float, Seed]] = dict(
    [
        (("operators", "GET", "/"), (0.1, partial(page, "/"))),
        _get("/", partial(any_of, ("/",))),
        _get("/static/{digest}/{name}", partial(any_of, [f"/{address(n)}" for n in ("dashboard.css", "icon.svg")])),
        _get("/login", partial(any_of, ("/login", "/login?next=/dashboard/tasks/x"))),
        _get("/tasks/{task}", partial(of_task, "")),
        _get("/tasks/{task}/live", partial(of_task, "/live?before=20")),
        _get("/tasks/{task}/history.json", partial(of_task, "/history.json")),
        _get("/clients", partial(any_of, _CLIENTS)),
        _get("/clients/{client}", of_client),
        _get("/tokens", partial(any_of, ("/tokens",))),
        _get("/tokens/new", partial(any_of, ("/tokens/new",))),
        _get("/changes", partial(any_of, ("/changes", "/changes?before=30"))),
        _get(_ACTION, partial(act, None)),
        _post("/login", 0.5, log_in),
        _post("/logout", 0.3, log_out),
        _post("/tasks/{task}/settings", 0.5, change_settings),
        _post("/tokens/new", 0.3, make_token),
        _post(_ACTION, 1, partial(act, {})),
    ]
)
"""As `API_SEEDS` of `seed_requests`, for pages."""
