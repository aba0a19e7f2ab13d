"""Pages of tasks: all of them, and one with its round as it goes, its figures, and its settings."""

import asyncio
import json
from typing import Any

from aiohttp import web

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine.operators import control, history, tasks
from fedlens_server.engine.task import Task
from fedlens_server.errors import Malformed, ServerError
from fedlens_server.http.dashboard.actions import SUBJECTS
from fedlens_server.http.dashboard.pages import ROOT, form, number, render, sentence
from fedlens_server.http.dashboard.sessions import redirect, take_message
from fedlens_server.http.observing import readiness
from fedlens_server.http.observing.figures import PRESENT_S
from fedlens_server.http.responses import note_refusal
from fedlens_server.http.service import OPERATOR, SERVICE, Service

ROUNDS_SHOWN = 20
ROUNDS_DRAWN = 200
MAX_LEFT_OUT = 50
HISTORY = web.AppKey("history", history.History)


def routes() -> list[web.RouteDef]:
    """The addresses of pages of tasks and their parts."""
    return [
        web.get("/", show_tasks),
        web.get("/tasks/{task}", show_task),
        web.get("/tasks/{task}/live", show_live),
        web.get("/tasks/{task}/history.json", chart_values),
        web.post("/tasks/{task}/settings", change_settings),
    ]


async def show_tasks(request: web.Request) -> web.Response:
    """`GET /`: the state of the server, and all tasks; with `?part` the part that is asked for again."""
    service = request.app[SERVICE]
    federation = service.federation
    rows = [
        (tasks.summary(federation, task), history.under_way(federation, task))
        for _, task in sorted(federation.tasks.items())
    ]
    obstacle, disk = await asyncio.to_thread(_look, service)
    template = "tasks_live.html" if "part" in request.query else "tasks.html"
    return render(
        request,
        template,
        rows=rows,
        obstacle=obstacle,
        disk_free=disk,
        clients=federation.clients.count(lambda profile: not profile.revoked),
        present=federation.presence.count(federation.clock.elapsed(), PRESENT_S),
        polls=len(service.polls),
        message="" if "part" in request.query else take_message(request),
    )


def _look(service: Service) -> tuple[str, int]:
    return readiness.obstacle(service), service.store.free_bytes


async def show_task(request: web.Request) -> web.Response:
    """`GET /tasks/{task}`: a task; `?before=` a round's number shows earlier ones."""
    return await _task_page(request, message=take_message(request))


async def _task_page(request: web.Request, message: str, status: int = 200) -> web.Response:
    federation = request.app[SERVICE].federation
    task = tasks.find(federation, request.match_info["task"])
    text = request.query.get("before", "")
    before = number("before", text, "a round") if text else None

    def look() -> dict[str, Any]:
        return {
            "rounds": request.app[HISTORY].rounds(federation, task, ROUNDS_SHOWN, before),
            "left_out": history.left_out(federation, task, MAX_LEFT_OUT),
            "classes": history.by_class(federation, task),
        }

    found = await asyncio.to_thread(look)
    shown = task.settings.public_json()
    return render(
        request,
        "task.html",
        status=status,
        settings={key: json.dumps(value) for key, value in json.loads(shown).items()},
        shown=shown,
        changeable=control.CHANGEABLE,
        phases=[phase.name for phase in task.phases],
        actions=SUBJECTS["tasks"].applying(task),
        before=before,
        message=message,
        is_fault=status >= 400,
        **_live_values(request, task),
        **found,
    )


async def show_live(request: web.Request) -> web.Response:
    """`GET /tasks/{task}/live`: the part of its page that is asked for again every two seconds."""
    task = tasks.find(request.app[SERVICE].federation, request.match_info["task"])
    return render(request, "task_live.html", **_live_values(request, task))


def _live_values(request: web.Request, task: Task) -> dict[str, Any]:
    federation = request.app[SERVICE].federation
    told = federation.answers.counts(task.id, federation.clock.now() - task.settings.presence_s)
    return {
        "task": tasks.summary(federation, task),
        "under_way": history.under_way(federation, task),
        "method": task.settings.method,
        "told": {} if task.ended else told,
        "ended": task.ended,
        "by_arrival": task.settings.by_arrival,
        "min_reports": task.settings.min_reports,
    }


async def chart_values(request: web.Request) -> web.Response:
    """`GET /tasks/{task}/history.json`: figures of the last rounds that were committed, a list for each line drawn."""
    federation = request.app[SERVICE].federation
    task = tasks.find(federation, request.match_info["task"])
    found = await asyncio.to_thread(request.app[HISTORY].rounds, federation, task, ROUNDS_DRAWN)
    committed = [each for each in reversed(found) if each.state == admin_pb2.ROUND_STATE_COMMITTED]
    labels = ("start", "trained")
    return web.json_response(
        {
            "round": [each.number for each in committed],
            "accuracy": [each.accuracy for each in committed],
            **{label: [each.personal.get(label) for each in committed] for label in labels},
            "received": [each.bytes_received for each in committed],
            "sent": [each.bytes_sent for each in committed],
        }
    )


async def change_settings(request: web.Request) -> web.Response:
    """`POST /tasks/{task}/settings`: change those settings whose values differ from those that the form showed."""
    service = request.app[SERVICE]
    task = tasks.find(service.federation, request.match_info["task"])
    fields = await form(request)
    try:
        # Other operators may have changed settings since: what this one left as it was stays theirs.
        shown = _value("shown", fields.pop("shown", task.settings.public_json()))
        if not isinstance(shown, dict):
            raise Malformed("the form cannot be read; open the page again and send it from there")
        given = {key: _value(key, text) for key, text in fields.items()}
        changed = {key: value for key, value in given.items() if key not in shown or shown[key] != value}
        if not changed:
            raise Malformed("no value differs from what it was")
        await service.durable(control.change(service.federation, task, json.dumps(changed), request[OPERATOR]))
    except ServerError as fault:
        note_refusal(fault)
        return await _task_page(request, f"Nothing was changed. {sentence(fault)}", fault.status)
    return redirect(request, f"{ROOT}/tasks/{task.id}", f"Changed: {', '.join(sorted(changed))}.")


def _value(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as fault:
        raise Malformed(
            f"{key}: found {text[:80]!r}, must be a number, true, false, null, or text in quotes"
        ) from fault
