"""Recovery: the database into memory when the server starts, and a sweep of blobs that nothing needs."""

import json
from collections.abc import Sequence
from math import inf
from typing import Any

from sqlalchemy import Row, func, select

from fedlens_proto import manifest as manifests
from fedlens_proto.errors import ManifestError
from fedlens_proto.programs.statements import Publisher
from fedlens_proto.v1 import admin_pb2
from fedlens_server.clock import Clock
from fedlens_server.engine import garbage, phases, rounds
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.cohorts import downloads
from fedlens_server.engine.cohorts.held_places import HeldPlaces
from fedlens_server.engine.cohorts.members import Member, Round
from fedlens_server.engine.enrolled import Profile
from fedlens_server.engine.task import GlobalModel, Release, Task, TaskBundle
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Malformed, StorageFull, StoreUnusable
from fedlens_server.planning.one_thread import use_one_thread
from fedlens_server.store import Store, columns, method_state, schema
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event


def load(
    store: Store, clock: Clock, *, method_modules: bool = False, publishers: Sequence[Publisher] = ()
) -> Federation:
    """The federation that a store holds; an open round has its full deadline from now.

    A task whose method is missing or refuses it is suspended. From now on numpy has one thread in this process.

    Args:
        store: Holds everything.
        clock: Gives the time.
        method_modules: Allow methods named `module:NAME`. Importing one runs code that the task's creator chose.
        publishers: Those whose signed bundles alone new tasks may have; none: any bundle.

    Raises:
        StoreUnusable: A task cannot be read, or there is no room on the disk.
    """
    use_one_thread()
    federation = Federation(store, clock, method_modules=method_modules, publishers=publishers)
    _load_clients(federation)
    downloads.load_computed(federation)
    for row in store.read(select(schema.tasks).order_by(schema.tasks.c.id)):
        if row.deleted:
            federation.deleting.add(row.id)
            continue
        try:
            task = _task(federation, row)
        except (Malformed, ManifestError) as error:
            raise StoreUnusable(f"{store.folder}: task {row.name!r} cannot be taken up: {error}") from error
        federation.tasks[task.id] = task
    federation.forgotten = _forgotten(federation)
    try:
        store.submit(lambda transaction: garbage.sweep_all(federation, transaction)).result()
    except StorageFull as error:
        raise StoreUnusable(f"{store.folder}: the disk is full; make room and start again") from error
    found = [task.round for task in federation.tasks.values() if task.round is not None]
    held = sum(current.reported for current in found)
    events.note(Event.STATE_READ, tasks=len(federation.tasks), open_rounds=len(found), updates=held)
    rounds.start_ready(federation)
    return federation


def _load_clients(federation: Federation) -> None:
    columns = schema.clients.c
    started = federation.clock.now() - federation.clock.elapsed()
    profiles: dict[tuple[int, bytes, bool], Profile] = {}
    found = federation.store.stream(
        select(columns.id, columns.role, columns.capabilities, columns.banned_at.is_not(None), columns.last_seen)
    )
    for client, role, raw, revoked, last_seen in map(tuple, found):
        profile = profiles.get((role, raw, revoked))
        if profile is None:
            profile = profiles[role, raw, revoked] = Profile(role=role, raw=raw, revoked=revoked)
        federation.clients.put(client, profile)
        if last_seen is not None:
            federation.presence.restore(client, min(last_seen - started, federation.clock.elapsed()))


def _forgotten(federation: Federation) -> set[bytes]:
    """The forgotten clients that a round or a task's state still names."""
    tasks = federation.tasks.values()
    named = {client for task in tasks for client in task.values.clients}
    named |= {client for task in tasks if task.round is not None for client in task.round.members}
    known = schema.forgotten.c.id
    return {row.id for row in federation.store.read_among(select(known), known, sorted(named))}


def _task(federation: Federation, row: Row[Any]) -> Task:
    store, task_id = federation.store, row.id
    of_bundle = schema.task_bundles.c
    rows = store.read(select(schema.task_bundles).where(of_bundle.task == task_id).order_by(of_bundle.position))
    bundles = tuple(TaskBundle(each.manifest, manifests.parse(each.manifest), each.statement) for each in rows)
    try:
        task = phases.task_of(row, bundles, method_modules=federation.method_modules)
    except Malformed as error:
        task = phases.suspended(row, bundles, str(error))
        if not task.ended:
            events.note(Event.TASK_SUSPENDED, task=row.name, reason=str(error))
    for bundle, each in zip(bundles, rows, strict=True):
        task.reports[bundle.id] += each.reports
    last = store.read(select(func.max(schema.rounds.c.number).label("number")).where(schema.rounds.c.task == task_id))
    task.next_round = (last[0].number or 0) + 1
    task.values, task.state_blobs = method_state.load(store, task_id)
    task.copies = method_state.copies(store, task_id)
    if row.released is not None:
        number, committed = json.loads(row.released)
        values, _ = method_state.load(store, task_id, number)
        task.released = Release(round=number, committed=committed, values=values)
    if row.evaluation_round is not None:
        found = schema.evaluations.c
        rows = store.read(select(found.client).where(found.task == task_id, found.round == row.evaluation_round))
        evaluators = {each.client for each in rows}
        task.evaluation = GlobalModel(
            round=row.evaluation_round,
            phase=row.evaluation_phase,
            sets=columns.sets_from_json(row.evaluation_sets, store.blobs.size),
            evaluated_by=evaluators,
            # Who else was to answer is not known any more. What was decided without a pause comes out the same again.
            undecided=set() if row.paused_for == row.evaluation_round else evaluators.copy(),
        )
    task.report_s.extend(_report_s(store, task_id))
    task.exhausted = participation.exhausted(federation, task, task.settings.max_participations)
    if task.settings.by_arrival and not task.ended:
        participation.restore(federation, task)
    task.round = _round(federation, task)
    return task


def _round(federation: Federation, task: Task) -> Round | None:
    store, columns, members = federation.store, schema.rounds.c, schema.members.c
    running = (admin_pb2.ROUND_STATE_OPEN, admin_pb2.ROUND_STATE_CLOSING)
    found = store.read(select(schema.rounds).where(columns.task == task.id, columns.state.in_(running)))
    if not found:
        return None
    (row,) = found
    of_round = select(schema.members).where(members.task == task.id, members.round == row.number)
    current = Round(
        task=task.id,
        number=row.number,
        phase=row.phase,
        state=row.state,
        deadline=federation.clock.elapsed() + _left_s(federation, task, row.started_at),
        started=_started(federation, row.started_at if task.settings.by_arrival else row.opened_at),
        members={
            member.client: Member.of_row(member, store.blobs.size)
            for member in store.read(of_round.order_by(members.client))
        },
        sitting_out=frozenset(bytes.fromhex(text) for text in json.loads(row.sitting_out)),
        population=tuple(row.population[i : i + 32] for i in range(0, len(row.population), 32)),
        bytes_sent=row.bytes_sent,
        ended_by=row.ended_by,
    )
    if task.settings.by_arrival:
        until = federation.clock.elapsed() + task.settings.member_deadline_s
        current.held = HeldPlaces()
        for client, member in current.members.items():
            if member.state == admin_pb2.MEMBER_STATE_PENDING:
                current.held.hold(client, None, until, member.bundle if member.phase == current.phase else None)
    if participation.counts(task.settings):
        participation.load(federation, task, current.members)
    return current


def _started(federation: Federation, at: float | None) -> float | None:
    """A time by `Clock.now` as one by `Clock.elapsed`, in the past."""
    return None if at is None else federation.clock.elapsed() - max(0.0, federation.clock.now() - at)


def _left_s(federation: Federation, task: Task, started_at: float | None) -> float:
    """The time that is left to an open round after a start of the server."""
    settings = task.settings
    if not settings.by_arrival:
        return settings.deadline_s
    if started_at is None:
        return inf
    left = settings.deadline_s - (federation.clock.now() - started_at)
    return min(max(left, settings.member_deadline_s), settings.deadline_s)


def _report_s(store: Store, task_id: int) -> list[float]:
    """The seconds that a client may take from place to report: half the shortest of the last rounds; empty: unknown."""
    found = schema.rounds.c
    ended = select(found.started_at, found.ended_at).where(
        found.task == task_id, found.started_at.is_not(None), found.state == admin_pb2.ROUND_STATE_COMMITTED
    )
    rows = store.read(ended.order_by(found.number.desc()).limit(10))
    # A clock that was set meanwhile makes a length that is none.
    lengths = [row.ended_at - row.started_at for row in rows if row.ended_at > row.started_at]
    return [min(lengths) / 2] if lengths else []
