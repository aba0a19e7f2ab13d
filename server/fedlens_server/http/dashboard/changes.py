"""The page that asks again before a change, and the change itself."""

from urllib.parse import quote

from aiohttp import web

from fedlens_server.errors import ServerError, Unknown
from fedlens_server.http.dashboard.actions import SUBJECTS, Action, Subjects
from fedlens_server.http.dashboard.pages import ROOT, form, render, sentence
from fedlens_server.http.dashboard.sessions import redirect
from fedlens_server.http.responses import note_refusal
from fedlens_server.http.service import OPERATOR, SERVICE


def routes() -> list[web.RouteDef]:
    """The addresses of every action on every subject."""
    # aiohttp's own pattern for a part of a path takes no braces, which names may have.
    paths = [f"/{{kind:{kind}}}/{{subject:[^/]+}}/{{action:{'|'.join(of.actions)}}}" for kind, of in SUBJECTS.items()]
    return [make(path, handler) for path in paths for make, handler in ((web.get, ask), (web.post, change))]


async def ask(request: web.Request) -> web.Response:
    """`GET /{kind}/{subject}/{action}`: what follows from an action, and a button that does it."""
    request[OPERATOR].check_may("POST")
    return _asked(request)


async def change(request: web.Request) -> web.Response:
    """`POST /{kind}/{subject}/{action}`: do it, and go back to where its subject is shown."""
    subjects, action = _found(request)
    service, text = request.app[SERVICE], request.match_info["subject"]
    value = (await form(request)).get("value", "")
    subject = subjects.find(service.federation, text)
    try:
        await service.durable(action.act(service.federation, subject, value, request[OPERATOR]))
    except Unknown:
        raise
    except ServerError as fault:
        note_refusal(fault)
        return _asked(request, sentence(fault), fault.status)
    is_gone = request.match_info["action"] == "delete"
    return redirect(request, _page(request, is_gone=is_gone), f"{action.title}: {subjects.name(subject)}. Done.")


def _asked(request: web.Request, message: str = "", status: int = 200) -> web.Response:
    subjects, action = _found(request)
    subject = subjects.find(request.app[SERVICE].federation, request.match_info["subject"])
    return render(
        request,
        "confirm.html",
        status=status,
        action=action,
        address=request.rel_url.raw_path,  # `path` is decoded, and may mean another one
        word=subjects.word,
        name=subjects.name(subject),
        choices=None if action.choices is None else action.choices(subject),
        back=_page(request),
        message=message,
        is_fault=status >= 400,
    )


def _found(request: web.Request) -> tuple[Subjects, Action]:
    subjects = SUBJECTS[request.match_info["kind"]]
    return subjects, subjects.actions[request.match_info["action"]]


def _page(request: web.Request, *, is_gone: bool = False) -> str:
    """The address of the page that shows a request's subject."""
    kind = request.match_info["kind"]
    of_kind = f"{ROOT}/" if kind == "tasks" else f"{ROOT}/{kind}"
    if is_gone or not SUBJECTS[kind].has_page:
        return of_kind
    return f"{ROOT}/{kind}/{quote(request.match_info['subject'], safe='')}"
