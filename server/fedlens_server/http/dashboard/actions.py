"""All that a page can change about a task, a client or a token; each is asked about on a page of its own first."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine.operators import bans, control, deletion, rollback, tasks, tokens
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Unknown
from fedlens_server.http.dashboard.pages import number

Act = Callable[[Federation, Any, str, Operator], Future[Any]]


@dataclass(frozen=True, kw_only=True)
class Action:
    """A change that an operator can make.

    Attributes:
        title: An imperative, for buttons.
        effect: What follows, for the page that asks again.
        act: Begins the change of a subject with the value that was asked for.
        asks: The value that is asked for, in words; empty: none is.
        choices: Of a subject the values to choose from; None: any text, which may be empty.
        applies: Whether it can be done to a subject now.
        is_grave: Something of it cannot be undone, as `effect` says.
    """

    title: str
    effect: str
    act: Act
    asks: str = ""
    choices: Callable[[Any], Sequence[int]] | None = None
    applies: Callable[[Any], bool] = lambda subject: True
    is_grave: bool = False


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """Tasks, clients or tokens.

    Attributes:
        word: One of them, in words.
        find: One by its name in the address of a page; raises `Unknown`.
        name: Its name for people.
        actions: By their names in addresses.
        has_page: Each has a page of its own, not only a line in the list.
    """

    word: str
    find: Callable[[Federation, str], Any]
    name: Callable[[Any], str]
    actions: Mapping[str, Action]
    has_page: bool = True

    def applying(self, subject: object) -> dict[str, Action]:
        """The actions that can be done to a subject now."""
        return {name: action for name, action in self.actions.items() if action.applies(subject)}


def client_id(federation: Federation, text: str) -> bytes:
    """The id of an enrolled client in hexadecimal; raises `Unknown`."""
    try:
        client = bytes.fromhex(text)
    except ValueError:
        client = b""
    if federation.clients.get(client) is None:
        raise Unknown(f"there is no client {text[:80]!r}")
    return client


def _round(value: str) -> int:
    return number("round", value, "a round")


def _has_open_round(task: Task) -> bool:
    current = task.round
    return not task.ended and current is not None and current.state == admin_pb2.ROUND_STATE_OPEN


def _kept_rounds(task: Task) -> list[int]:
    return sorted(task.copies, reverse=True)


SUBJECTS: Mapping[str, Subjects] = {
    "tasks": Subjects(
        word="task",
        find=tasks.find,
        name=lambda task: task.name,
        actions={
            "pause": Action(
                title="Pause",
                effect="No more places are given and no round opens. What is under way is stored and may commit.",
                act=lambda federation, task, _, by: control.pause(federation, task, by),
                applies=lambda task: not task.ended and not task.paused,
            ),
            "resume": Action(
                title="Resume",
                effect="Places are given again, and rounds open.",
                act=lambda federation, task, _, by: control.resume(federation, task, by),
                applies=lambda task: not task.ended and bool(task.paused),
            ),
            "deadline": Action(
                title="End the round now",
                effect="The round is aggregated from the updates that are stored. With fewer than min_reports it is "
                "abandoned. Members that are still training have worked in vain. This cannot be undone.",
                act=lambda federation, task, _, by: control.end_round(federation, task, by),
                applies=_has_open_round,
                is_grave=True,
            ),
            "rollback": Action(
                title="Roll back",
                effect="The open round is abandoned, and the task goes on from the model after the round that you "
                "choose. The rounds since then become undone, and cannot be brought back. What phones keep for "
                "themselves stays.",
                act=lambda federation, task, value, by: rollback.roll_back(federation, task, _round(value), by),
                asks="The round to go back to",
                choices=_kept_rounds,
                applies=lambda task: not (task.ended or task.suspended or task.values.clients) and bool(task.copies),
                is_grave=True,
            ),
            "release": Action(
                title="Release a model",
                effect="Phones predict with the model after the round that you choose, until the next release.",
                act=lambda federation, task, value, by: rollback.release(federation, task, _round(value), by),
                asks="The round whose model is released",
                choices=_kept_rounds,
                applies=lambda task: task.settings.release == "manual" and bool(task.copies),
            ),
            "stop": Action(
                title="Stop for good",
                effect="The open round is abandoned, and no further one opens. The model stays. This cannot be undone.",
                act=lambda federation, task, _, by: tasks.stop(federation, task, by),
                applies=lambda task: not task.ended,
                is_grave=True,
            ),
            "delete": Action(
                title="Delete",
                effect="The task is deleted with its model and results. This cannot be undone.",
                act=lambda federation, task, _, by: deletion.begin(federation, task, by),
                applies=lambda task: task.ended,
                is_grave=True,
            ),
        },
    ),
    "clients": Subjects(
        word="client",
        find=client_id,
        name=lambda client: client.hex()[:12],
        actions={
            "ban": Action(
                title="Ban",
                effect="Every request of the client is refused from now on. It leaves the rounds that are open, and "
                "its updates with it.",
                act=bans.ban,
                asks="The reason, for operators",
            ),
            "unban": Action(
                title="Unban",
                effect="The client is let in again with what it was.",
                act=lambda federation, client, _, by: bans.unban(federation, client, by),
            ),
        },
    ),
    "tokens": Subjects(
        word="token",
        find=lambda federation, name: name,
        name=str,
        actions={
            "revoke": Action(
                title="Revoke",
                effect="Nobody else is let in by the token, which cannot be undone. Clients that have enrolled stay.",
                act=lambda federation, name, _, by: tokens.revoke(federation, name, by),
                is_grave=True,
            ),
            "ban": Action(
                title="Ban its clients",
                effect="Every client that enrolled with it is banned until it is unbanned. The token is revoked, which "
                "cannot be undone.",
                act=bans.ban_token,
                asks="The reason, for operators",
                is_grave=True,
            ),
            "unban": Action(
                title="Unban its clients",
                effect="Every client that enrolled with the token is let in again, also those that were banned one by "
                "one. The token stays revoked.",
                act=lambda federation, name, _, by: bans.unban_token(federation, name, by),
            ),
        },
        has_page=False,
    ),
}
"""All that can be changed, by the part of the address that names what kind of thing it is."""
