"""The past rounds of each client in a task: rows of the table `participants`.

A task that draws its members counts only how often each has taken part, and only if that has a limit.

A client rests after a report, so that those who are always here do not take every place. One that left its last two
places unused counts as resting until it reports, and a place must be free for it the longer, the more it left.
"""

from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from math import floor
from typing import Any

from sqlalchemy import Row, bindparam, or_, select, update

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine.cohorts.members import UPDATE_MEMBER, Participation, Round
from fedlens_server.engine.enrolled import Profile
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.planning.task_settings import TaskSettings
from fedlens_server.store import Transaction, schema
from fedlens_server.store.dialects import insert

# A first quarantine lasts an hour, each further one twice as long.
QUARANTINE_S, MAX_QUARANTINE_S = 3600.0, 30 * 86400.0
LEAST_PATIENCE_S = 10.0
_MISSES = 2
# More than so many make no difference.
_MOST_MISSES = 16
_NONE = Participation()
_columns, _members = schema.participants.c, schema.members.c
_insert = insert(schema.participants)
_WRITE = _insert.on_conflict_do_update(
    index_elements=["task", "client"],
    set_={each.name: _insert.excluded[each.name] for each in fields(Participation)},
)
_MISS = UPDATE_MEMBER.values(state=bindparam("s"))


def load(federation: Federation, task: Task, clients: Iterable[bytes]) -> None:
    """Bring the participations of these clients into memory, as far as they are not there."""
    missing = [client for client in clients if client not in task.participations]
    if not missing:
        return
    of_task = select(schema.participants).where(_columns.task == task.id)
    found = dict.fromkeys(missing, _NONE)
    for row in federation.store.read_among(of_task, _columns.client, missing):
        found[row.client] = _of_row(row)
    for client, participation in found.items():
        task.participations.setdefault(client, participation)


def exhausted(federation: Federation, task: Task, limit: int | None) -> set[bytes]:
    """The clients that have taken part in a task `limit` times or more; reads the database, as of the last commit."""
    if limit is None:
        return set()
    rows = select(_columns.client).where(_columns.task == task.id, _columns.times >= limit)
    return {row.client for row in federation.store.read(rows)}


def counts(settings: TaskSettings) -> bool:
    """Tell whether the rounds are counted in which each client of a task takes part."""
    return settings.by_arrival or settings.max_participations is not None


def reported(transaction: Transaction, task: Task, client: bytes, number: int) -> None:
    """Write that a client has reported in a round."""
    _write(transaction, task, client, last_round=number, times=task.participations[client].times + 1, misses=0)

    def follow() -> None:
        note_exhausted(task, [client])
        if client in task.exhausted:
            task.present.forget(client)

    transaction.after_commit(follow)


def note_exhausted(task: Task, clients: Iterable[bytes]) -> None:
    """Note who of these has taken part as often as it may, by what is in memory."""
    if (limit := task.settings.max_participations) is not None:
        task.exhausted |= {client for client in clients if past(task, client).times >= limit}


def committed(transaction: Transaction, task: Task, current: Round) -> None:
    """Write how often any client has taken part, if the round that commits spends privacy."""
    if task.settings.dp is None:
        return
    before, limit = task.most_participations, task.settings.max_participations
    reported = (c for c, member in current.members.items() if member.state == admin_pb2.MEMBER_STATE_REPORTED)
    times = (past(task, client).times for client in reported)
    # A client that was forgotten while its update was being aggregated, and so has none, may have been one of those
    # with most. The limit may have been lowered since it got its place.
    unknown = before + 1 if limit is None or before > limit else min(before + 1, limit)
    most = max((found or unknown for found in times), default=0)
    if most > before:
        row = update(schema.tasks).where(schema.tasks.c.id == task.id)
        transaction.execute(row.values(most_participations=most))
        transaction.after_commit(lambda: setattr(task, "most_participations", most))


def quarantined(transaction: Transaction, task: Task, client: bytes, now: float) -> None:
    """Write that an update of a client was quarantined; it gets no place for a while from `now`, by `Clock.now`."""
    quarantines = task.participations[client].quarantines + 1
    lasts_s = min(QUARANTINE_S * 2 ** (quarantines - 1), MAX_QUARANTINE_S)
    _write(transaction, task, client, quarantines=quarantines, sits_out_until=now + lasts_s)


def missed(transaction: Transaction, task: Task, current: Round, now: float) -> None:
    """Write that the members of a round that are still pending have missed it, but for forgotten ones.

    A place counts as unused if by `now`, by `Clock.elapsed`, its time was over or twice the usual one had passed. Of a
    member with less time, others may just have been faster; one that was not reached does not know of its place.
    """
    for client, member in current.members.items():
        if member.state == admin_pb2.MEMBER_STATE_PENDING and client in task.participations:
            state = admin_pb2.MEMBER_STATE_LATE if client in current.late else admin_pb2.MEMBER_STATE_MISSED
            transaction.later(_MISS, {"t": current.task, "r": current.number, "c": client, "s": state})
            since = None if current.held is None else current.held.since(client)
            had_time = since is not None and task.round_s is not None and now - since >= task.round_s
            if client not in current.returned and (had_time or not current.holds_place(client, now)):
                left_place(transaction, task, client)


def left_place(transaction: Transaction, task: Task, client: bytes) -> None:
    """Write that a client has left its place unused: the round is over, or it takes the place again."""
    _write(transaction, task, client, misses=task.participations[client].misses + 1)


def population(federation: Federation, task: Task) -> tuple[bytes, ...]:
    """The clients that have a receipt in the task and are not forgotten, ascending by id; reads the database."""
    rows = federation.store.read(select(_columns.client).where(_columns.task == task.id, _columns.times > 0))
    return tuple(sorted(row.client for row in rows))


def past(task: Task, client: bytes) -> Participation:
    """A client's participation, or that of none: the writing thread may drop it from memory at any moment."""
    return task.participations.get(client, _NONE)


def left_places(task: Task, client: bytes) -> bool:
    """Tell whether a client has left its last places unused, as far as `past` knows."""
    return past(task, client).misses >= _MISSES


def patience_s(task: Task, misses: int) -> float:
    """The seconds for which a place must be free before it goes to a client that rests and left so many unused.

    Those that come by the pace have a round's length to do so. Without this, a few that ask all the time would have
    most places, though they rest.
    """
    settings, first_s = task.settings, task.settings.patience_s
    if first_s is None:
        first_s = min(max(LEAST_PATIENCE_S, task.round_s or 0.0), settings.member_deadline_s)
    if misses < _MISSES:
        return first_s
    return min(first_s * 4.0 ** min(misses, _MOST_MISSES), max(first_s, settings.member_deadline_s))


def patiences(task: Task) -> list[float]:
    """All that `patience_s` may be, ascending."""
    return sorted({patience_s(task, misses) for misses in range(_MOST_MISSES + 1)})


def rests(federation: Federation, task: Task, current: Round, client: bytes) -> bool:
    """Tell whether others go before a client in a round, as far as `past` knows."""
    if task.takes_everyone(current.phase):
        return False
    if left_places(task, client):
        return True
    known = past(task, client)
    return known.last_round > 0 and current.number - known.last_round <= rest_rounds(federation, task)


def rest_rounds(federation: Federation, task: Task) -> int:
    """The number of rounds for which a client rests after a report."""
    settings = task.settings
    if settings.rest != "fair":
        return settings.rest
    return floor(present(federation, task) / (2 * task.places))


def present(federation: Federation, task: Task) -> int:
    """The number of clients that were seen in `presence_s`, as `obstacles.note_present` notes them."""
    return task.present.count(federation.clock.elapsed(), task.settings.presence_s)


def profile_changed(federation: Federation, client: bytes, profile: Profile) -> None:
    """Count a client no longer where it may not train any more."""
    for task in federation.tasks.values():
        if not task.may_train(profile):
            task.present.forget(client)


def restore(federation: Federation, task: Task) -> None:
    """Take from the database who is absent, and of those that the federation saw lately who is present, at a start."""
    of_task = select(schema.participants).where(_columns.task == task.id)
    absent = of_task.where(or_(_columns.misses >= _MISSES, _columns.sits_out_until > federation.clock.now()))
    for row in federation.store.read(absent):
        task.participations[row.client] = _of_row(row)
    now = federation.clock.elapsed()
    for client, when in federation.presence.since(now - task.settings.presence_s):
        known = client in task.participations or client in task.exhausted
        if not known and task.may_train(federation.clients[client].profile):
            task.present.restore(client, when)


def _of_row(row: Row[Any]) -> Participation:
    return Participation(**{each.name: getattr(row, each.name) for each in fields(Participation)})


def _write(transaction: Transaction, task: Task, client: bytes, **changes: Any) -> None:
    changed = replace(task.participations[client], **changes)
    transaction.later(_WRITE, {"task": task.id, "client": client, **asdict(changed)})
    transaction.after_commit(lambda: task.participations.__setitem__(client, changed))
