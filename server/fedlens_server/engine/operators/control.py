"""Control over a task: paused and resumed, its round ended early, its settings changed while it runs."""

import json

from sqlalchemy import update

from fedlens_server.engine import phases, rounds
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.cohorts import pauses
from fedlens_server.engine.operators import audit
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import Malformed, TaskDiffers, Unavailable
from fedlens_server.planning import task_settings
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from fedlens_server.store import Transaction, schema

CHANGEABLE = frozenset(
    {
        *("rounds", "goal", "over_selection", "min_reports", "cohort", "deadline_s", "member_deadline_s"),
        *("canary", "max_failures", "rest", "patience_s", "presence_s", "eligible", "max_participations"),
        *("max_consecutive_abandoned", "evaluate_every", "pause_if_accuracy_falls"),
        *("exclude", "clip", "cap", "max_update_norm", "max_photos_per_client"),
    }
)
"""The settings that no client's work and no method's state depends on."""
_tasks = schema.tasks.c


@operation()
def pause(federation: Federation, transaction: Transaction, task: Task, by: Operator) -> None:
    """Give no more places and open no more rounds; what is under way is stored and may commit. Again: no effect.

    Raises:
        TaskDiffers: The task has ended.
    """
    need_going(task)
    if not task.paused:
        audit.record(federation, transaction, by, "task pause", task.name)
        pauses.write(federation, transaction, task, f"by {by.name}")


@operation()
def resume(federation: Federation, transaction: Transaction, task: Task, by: Operator) -> None:
    """Go on with a task that is paused, whoever paused it; no effect on another one.

    Raises:
        TaskDiffers: The task has ended.
    """
    need_going(task)
    if not task.paused:
        return
    audit.record(federation, transaction, by, "task resume", task.name, f"paused {task.paused}")
    transaction.execute(update(schema.tasks).where(_tasks.id == task.id).values(paused=""))

    def follow() -> None:
        task.paused = ""
        federation.changed([task.id], due=True)
        rounds.start_ready(federation)

    transaction.after_commit(follow)


@operation()
def end_round(federation: Federation, transaction: Transaction, task: Task, by: Operator) -> None:
    """End the open round with the updates that are stored; with fewer than `min_reports` it is abandoned.

    A round that is closing already ends by itself.

    Raises:
        TaskDiffers: The task has no open round.
    """
    need_going(task)
    if task.round is None:
        raise TaskDiffers(f"task {task.name!r} has no open round")
    if not task.round.closing:
        audit.record(federation, transaction, by, "task deadline", task.name, f"round {task.round.number}")
        rounds.freeze(transaction, federation, task, task.round, by.name)


@operation()
def change(
    federation: Federation, transaction: Transaction, task: Task, settings_json: str, by: Operator
) -> TaskSettings:
    """Change settings of a task that has not ended; they hold from the next decision on. Returns all settings.

    An open round keeps its members and the deadlines that it has given.

    Raises:
        TaskDiffers: The task has ended.
        Unavailable: The task is suspended, or its round is being aggregated and the change would give a phase
            other rounds.
        Malformed: A setting is none that can be changed, or the settings do not fit together.
    """
    changes = task_settings.parse_object(settings_json)
    need_going(task)
    need_method(task)
    for name in sorted(changes.keys() - CHANGEABLE):
        if name.partition(".")[0] not in TaskSettings.model_fields:
            raise task_settings.unknown(name, changes[name])
        raise SettingsError(name, "a change", f"left as it is: only {', '.join(sorted(CHANGEABLE))} can change")
    settings = task_settings.parse(json.dumps({**json.loads(task.settings.public_json()), **changes}))
    method, planned, method_phases = phases.plan(settings, task.bundles)
    if [phase.plan for phase in planned] != [phase.plan for phase in task.phases]:
        raise Malformed("task settings: with these changes clients would do other work; make a new task instead")
    lengths = [phase.rounds for phase in planned]
    _check_rounds(task, settings.rounds, lengths)
    if task.round is not None and task.round.closing and lengths != [phase.rounds for phase in task.phases]:
        # Which phase follows it has been decided, by the lengths that the phases have now.
        raise Unavailable(
            f"round {task.round.number} of task {task.name!r} is being aggregated, and this change moves rounds from "
            "one phase to another; try again when the round has ended"
        )
    exhausted = participation.exhausted(federation, task, settings.max_participations)
    if task.round is not None and participation.counts(settings):
        participation.load(federation, task, task.round.members)
    audit.record(federation, transaction, by, "task set", task.name, json.dumps(changes, sort_keys=True)[:500])
    transaction.execute(update(schema.tasks).where(_tasks.id == task.id).values(settings=settings.public_json()))

    def follow() -> None:
        task.settings, task.method, task.phases, task.method_phases = settings, method, planned, method_phases
        task.exhausted = exhausted
        federation.changed([task.id], due=True)

    transaction.after_commit(follow)
    return settings


def need_going(task: Task) -> None:
    """Raise `TaskDiffers` if a task has ended."""
    if task.ended:
        raise TaskDiffers(f"task {task.name!r} has ended; nothing of it can be changed")


def need_method(task: Task) -> None:
    """Raise `Unavailable` if a task is suspended."""
    if task.suspended:
        raise Unavailable(f"task {task.name!r} is suspended until its method is installed on the server again")


def _check_rounds(task: Task, wanted: int, planned: list[int]) -> None:
    """Require that the rounds that were committed stay in their phases, and that one is left."""
    index = task.phase_of(task.committed)
    over, name = task.phases[:index], task.phases[index].name
    done = task.committed - sum(phase.rounds for phase in over)
    if planned[:index] != [phase.rounds for phase in over]:
        kept = ", ".join(f"{phase.name} {phase.rounds}" for phase in over)
        raise SettingsError("rounds", wanted, f"such that phases that are over keep their rounds: {kept}")
    if planned[index] <= done:
        raise SettingsError("rounds", wanted, f"at least {done + 1} in phase {name!r}, which has committed {done}")
