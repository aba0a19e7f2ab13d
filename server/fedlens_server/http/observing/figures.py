"""The figures of a running server, looked up when its metrics are read."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.metadata import version

from sqlalchemy import func, select

from fedlens_proto import wire
from fedlens_proto.v1 import admin_pb2, enrolment_pb2
from fedlens_server.engine.enrolled import Profile
from fedlens_server.engine.operators import backups
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Unavailable
from fedlens_server.http.observing import readiness
from fedlens_server.http.service import Service
from fedlens_server.store import schema
from fedlens_server.telemetry.metrics import Sample

PRESENT_S = 7200.0
MEMBER_EVENTS = ("given", "resting", "reported", "failed", "quarantined", "excluded", "left", "missed")
_rounds = schema.rounds.c
_ENDED = (
    select(_rounds.task, _rounds.state, func.count().label("ended"), func.max(_rounds.ended_at).label("last"))
    .where(_rounds.ended_at.is_not(None))
    .group_by(_rounds.task, _rounds.state)
)
# A counter must not fall, nor may the last commit move back: what a rollback undoes was committed.
_COUNTED = ((admin_pb2.ROUND_STATE_COMMITTED, admin_pb2.ROUND_STATE_UNDONE), (admin_pb2.ROUND_STATE_ABANDONED,))

_FIRST = select(_rounds.task, _rounds.opened_at).where(_rounds.number == 1)
_audit = schema.audit.c
_BACKUPS = select(_audit.at).where(_audit.action == backups.ACTION).order_by(_audit.id.desc()).limit(1)


def samples(service: Service) -> Iterator[Sample]:
    """Everything that is not counted as it happens; reads the database. Call it off the event loop."""
    yield Sample("fedlens_build_info", (version("fedlens"),), 1)
    yield Sample("fedlens_ready", (), float(not readiness.obstacle(service)))
    yield Sample("fedlens_standby", (), 0)
    yield Sample("fedlens_held_polls", (), len(service.polls))
    for side, server in service.servers.items():
        yield Sample("fedlens_connections", (side,), len(server.connections))
    yield Sample("fedlens_uploads", (), service.uploads)
    yield from _of_store(service)
    if (certificate := service.certificate) is not None:
        yield Sample("fedlens_certificate_expiry_timestamp_seconds", (), certificate.expires.timestamp())
    with suppress(Unavailable):
        yield from _of_federation(service.federation)


def _of_store(service: Service) -> Iterator[Sample]:
    store = service.store
    disk = shutil.disk_usage(store.folder)
    yield Sample("fedlens_disk_free_bytes", (), disk.free)
    yield Sample("fedlens_disk_size_bytes", (), disk.total)
    with suppress(Unavailable):
        yield Sample("fedlens_database_bytes", (), store.database_bytes())
    if service.config.server.backups is not None:
        with suppress(Unavailable):
            made_at = next((row.at for row in store.read(_BACKUPS)), 0.0)
            yield Sample("fedlens_last_backup_timestamp_seconds", (), made_at)
    yield Sample("fedlens_blob_bytes", (), sum(store.blobs.sizes.copy().values()))
    yield Sample("fedlens_write_queue", (), store.writing.waiting)
    yield Sample("fedlens_write_wait_seconds", (), store.writing.waits)
    yield Sample("fedlens_commit_seconds", (), store.writing.commits)


def _of_federation(federation: Federation) -> Iterator[Sample]:
    for role in (enrolment_pb2.CLIENT_ROLE_TRAINER, enrolment_pb2.CLIENT_ROLE_EVALUATOR):
        name = wire.word(enrolment_pb2.ClientRole, role)
        yield Sample("fedlens_clients", (name,), federation.clients.count(partial(_has, role)))
    present = federation.presence.count(federation.clock.elapsed(), PRESENT_S)
    yield Sample("fedlens_present_clients", (), present)
    yield Sample("fedlens_aggregation_seconds", (), federation.aggregations)
    tasks = dict(federation.tasks)
    ended = {(row.task, row.state): (row.ended, row.last) for row in federation.store.read(_ENDED)}
    opened = {row.task: row.opened_at for row in federation.store.read(_FIRST)}
    for task in tasks.values():
        # From zero on, so that Prometheus sees the first one as an increase.
        for states in _COUNTED:
            name = wire.word(admin_pb2.RoundState, states[0])
            count = sum(ended.get((task.id, state), (0, 0.0))[0] for state in states)
            yield Sample("fedlens_rounds", (task.name, name), count)
        for event in MEMBER_EVENTS:
            yield Sample("fedlens_members", (task.name, event), federation.member_events[task.id, event])
        last = max(ended.get((task.id, state), (0, 0.0))[1] for state in _COUNTED[0])
        yield Sample("fedlens_last_commit_timestamp_seconds", (task.name,), last)
        if task.id in opened:
            yield Sample("fedlens_first_round_timestamp_seconds", (task.name,), opened[task.id])
        yield from _of_task(federation, task)


def _has(role: enrolment_pb2.ClientRole, profile: Profile) -> bool:
    return profile.role == role and not profile.revoked


def _of_task(federation: Federation, task: Task) -> Iterator[Sample]:
    yield Sample("fedlens_tasks", (task.name, wire.word(admin_pb2.TaskState, task.shown_state)), 1)
    current = task.round
    if current is None:
        return
    since = 0.0 if current.started is None else federation.clock.elapsed() - current.started
    yield Sample("fedlens_round", (task.name,), current.number)
    yield Sample("fedlens_round_seconds", (task.name,), since)
    overdue = not current.closing and federation.clock.elapsed() >= current.deadline
    yield Sample("fedlens_round_overdue", (task.name,), float(overdue))
    for state_number, count in current.counts.copy().items():
        name = wire.word(admin_pb2.MemberState, state_number)
        yield Sample("fedlens_round_members", (task.name, name), count)
