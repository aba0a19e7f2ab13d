"""Taking up where the last process left off: the database into memory, and a sweep of what nobody needs."""

import json
from typing import Any

from sqlalchemy import Row, func, select

from fedlens_proto import manifest as manifests
from fedlens_proto.errors import ManifestError
from fedlens_proto.v1 import admin_pb2, enrolment_pb2
from fedlens_server.clock import Clock
from fedlens_server.engine import downloads, garbage, lifecycle, tasks, weighted_sums
from fedlens_server.engine.clients import capable
from fedlens_server.engine.view import Federation, GlobalModel, Member, Round, Task, TaskBundle
from fedlens_server.errors import Malformed, StorageFull, StoreUnusable
from fedlens_server.planning import task_settings
from fedlens_server.store import Store, method_state, schema


def load(store: Store, clock: Clock) -> Federation:
    """The federation that a store holds; an open round has its full deadline from now.

    Raises:
        StoreUnusable: A task is none that this version can go on with, or there is no room on the disk.
    """
    federation = Federation(store, clock)
    for row in store.read(select(schema.clients)):
        capabilities = enrolment_pb2.Capabilities.FromString(row.capabilities)
        federation.clients[row.id] = capable(row.id, row.role, capabilities, revoked=row.revoked)
    federation.forgotten = {row.id for row in store.read(select(schema.forgotten))}
    weighted_sums.load(federation)
    for row in store.read(select(schema.tasks).order_by(schema.tasks.c.id)):
        try:
            task = _task(federation, row)
        except (Malformed, ManifestError) as error:
            raise StoreUnusable(f"{store.folder}: task {row.name!r} cannot be taken up: {error}") from error
        for client in federation.clients.values():
            federation.note_eligible(task, client)
        federation.tasks[task.id] = task

    try:
        store.submit(lambda transaction: garbage.sweep_all(federation, transaction)).result()
    except StorageFull as error:
        raise StoreUnusable(f"{store.folder}: the disk is full; make room and start again") from error
    lifecycle.start_ready(federation)
    return federation


def _task(federation: Federation, row: Row[Any]) -> Task:
    store, task_id = federation.store, row.id
    columns = schema.task_bundles.c
    bundles = tuple(
        TaskBundle(bundle.manifest, manifests.parse(bundle.manifest))
        for bundle in store.read(select(schema.task_bundles).where(columns.task == task_id).order_by(columns.position))
    )
    settings = task_settings.parse(row.settings)
    method, phases, method_phases = tasks.plan(settings, bundles)
    values, kept_blobs = method_state.load(store, task_id)
    last = store.read(select(func.max(schema.rounds.c.number).label("number")).where(schema.rounds.c.task == task_id))
    task = Task(
        id=task_id,
        name=row.name,
        content=row.content,
        settings=settings,
        seed=row.seed,
        bundles=bundles,
        method=method,
        phases=phases,
        method_phases=method_phases,
        state=row.state,
        reason=row.reason,
        committed=row.committed,
        abandoned=row.abandoned,
        next_round=(last[0].number or 0) + 1,
        values=values,
        kept_blobs=kept_blobs,
    )
    if row.evaluation_round is not None:
        given = schema.evaluations.c
        answers = store.read(select(given.client).where(given.task == task_id, given.round == row.evaluation_round))
        task.evaluation = GlobalModel(
            round=row.evaluation_round,
            phase=row.evaluation_phase,
            sets=downloads.from_json(row.evaluation_sets, store.blobs.size),
            answered={answer.client for answer in answers},
        )
    task.round = _round(federation, task)
    return task


def _round(federation: Federation, task: Task) -> Round | None:
    store, rounds = federation.store, schema.rounds.c
    running = (admin_pb2.ROUND_STATE_OPEN, admin_pb2.ROUND_STATE_CLOSING)
    found = store.read(select(schema.rounds).where(rounds.task == task.id, rounds.state.in_(running)))
    if not found:
        return None
    (row,) = found
    bundles = {bundle.id: bundle for bundle in task.bundles}
    columns = schema.members.c
    members = {
        member.client: Member(
            bundle=bundles[member.bundle],
            sets=downloads.from_json(member.sets, store.blobs.size),
            state=member.state,
            reason=member.reason,
            body_sha256=member.body_sha256,
            num_examples=member.num_examples,
            class_counts=_numbers(member.class_counts),
            label_distribution=_numbers(member.label_distribution),
            blob=member.blob,
        )
        for member in store.read(
            select(schema.members).where(columns.task == task.id, columns.round == row.number).order_by(columns.client)
        )
    }
    pending = sum(member.state == admin_pb2.MEMBER_STATE_PENDING for member in members.values())
    return Round(
        task=task.id,
        number=row.number,
        phase=row.phase,
        state=row.state,
        deadline=federation.clock.now() + task.settings.deadline_s,
        members=members,
        sitting_out=frozenset(bytes.fromhex(text) for text in json.loads(row.sitting_out)),
        population=tuple(row.population[i : i + 32] for i in range(0, len(row.population), 32)),
        bytes_sent=row.bytes_sent,
        pending=pending,
    )


def _numbers(text: str | None) -> tuple[Any, ...] | None:
    return None if text is None else tuple(json.loads(text))
