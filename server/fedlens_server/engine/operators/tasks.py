"""Tasks for operators: made after everything that can be wrong with them was looked for, shown, and stopped."""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256

from sqlalchemy import insert, select

from fedlens_proto import manifest as manifests
from fedlens_proto.blob import Blob
from fedlens_proto.errors import ProtoError
from fedlens_proto.manifest import specs
from fedlens_proto.v1 import admin_pb2, update_pb2
from fedlens_server.engine import evaluation, phases, rounds
from fedlens_server.engine.arrivals import canaries
from fedlens_server.engine.cohorts.members import Round
from fedlens_server.engine.operators import audit, statements
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.task import Task, TaskBundle
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import Malformed, TaskDiffers, Unknown
from fedlens_server.planning import task_settings
from fedlens_server.planning.method import GLOBAL
from fedlens_server.rules.epsilon import epsilon_of
from fedlens_server.store import PendingBlob, StoredTensors, Transaction, schema

MAX_NAME = 100
MAX_BUNDLES = 16
PART_GRACE_S = 24 * 3600.0  # a part waits so long for the task that names it


@operation(lambda blob: blob.digest)
def put_part(federation: Federation, transaction: Transaction, blob: PendingBlob) -> None:
    """Store a part of a bundle."""
    transaction.place(blob, federation.clock.now() + PART_GRACE_S)


@operation()
def create(
    federation: Federation, transaction: Transaction, request: admin_pb2.CreateTaskRequest, by: Operator
) -> admin_pb2.Task:
    """Make a task; the same name and content again: the same task.

    Raises:
        Malformed: A setting or manifest is not acceptable, or a part is missing; the text names it.
        TaskDiffers: There is a task of that name with other content.
    """
    content = _content(request)
    name = request.name
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip() or name.isdecimal():
        raise Malformed(f"name: found {name[:MAX_NAME]!r}, must be 1 to {MAX_NAME} printable characters, not a number")
    for task in federation.tasks.values():
        if task.name == name:
            if task.content == content:
                return summary(federation, task)
            raise TaskDiffers(f"there is a task {name!r} with other bundles or settings; choose another name")
    settings = task_settings.parse(request.settings_json)
    bundles = _bundles(federation, request)
    seed = bytes.fromhex(settings.seed) if settings.seed is not None else os.urandom(32)
    standing = {"state": admin_pb2.TASK_STATE_WAITING, "reason": "", "committed": 0, "abandoned": 0}
    row = transaction.execute(
        insert(schema.tasks).returning(schema.tasks),
        {"name": name, "content": content, "settings": settings.public_json(), "seed": seed, **standing},
    ).one()
    transaction.execute(
        insert(schema.task_bundles),
        [
            {"task": row.id, "position": i, "manifest": bundle.raw, "statement": bundle.statement}
            for i, bundle in enumerate(bundles)
        ],
    )
    task = phases.task_of(row, bundles, method_modules=federation.method_modules)
    audit.record(federation, transaction, by, "task create", name, f"{settings.method}, rounds: {task.rounds_total}")

    def follow() -> None:
        federation.tasks[task.id] = task
        federation.changed([task.id])
        rounds.start_ready(federation)

    transaction.after_commit(follow)
    return summary(federation, task)


def find(federation: Federation, name_or_id: str) -> Task:
    """A task by its name or its decimal id.

    Raises:
        Unknown: There is none.
    """
    for task in list(federation.tasks.values()):
        if task.name == name_or_id or str(task.id) == name_or_id:
            return task
    raise Unknown(f"there is no task {name_or_id[:100]!r}")


@operation()
def stop(federation: Federation, transaction: Transaction, task: Task, by: Operator) -> None:
    """End a task; an open round is abandoned. Again: no effect."""
    if not task.ended:
        audit.record(federation, transaction, by, "task stop", task.name)
        rounds.stop(federation, transaction, task)


def listed(federation: Federation) -> admin_pb2.ListTasksResponse:
    """All tasks."""
    found = [summary(federation, task) for _, task in sorted(federation.tasks.items())]
    return admin_pb2.ListTasksResponse(tasks=found)


def summary(federation: Federation, task: Task) -> admin_pb2.Task:
    """A task without its rounds."""
    return admin_pb2.Task(
        id=task.id,
        name=task.name,
        state=task.shown_state,
        reason=_reason(task),
        kept_rounds=sorted(task.copies),
        released_round=0 if task.released is None else task.released.round,
        settings_json=task.settings.public_json(),
        bundles=[bundle.id for bundle in task.bundles],
        rounds_committed=task.committed,
        rounds_total=task.rounds_total,
        enrolled=federation.clients.count(task.may_train),
        population=task.settings.population or 0,
        privacy=_privacy(task),
        awaited_canaries=canaries.awaited(task),
        statements=[bundle.statement for bundle in task.bundles],
        notices=[
            *filter(None, [task.method.notice]),
            *canaries.notices(task),
            *statements.notices(task, federation.clock.calendar()),
        ],
    )


def _privacy(task: Task) -> admin_pb2.Privacy | None:
    dp = task.settings.dp
    if dp is None:
        return None
    now = task.most_participations
    most = max(task.settings.max_participations or 0, now)  # the limit may have been lowered since
    epsilon, spent = (epsilon_of(dp.noise, dp.delta, times) for times in (most, now))
    return admin_pb2.Privacy(delta=dp.delta, epsilon=epsilon, spent=spent, participations=now)


def _reason(task: Task) -> str:
    if task.suspended:
        return task.fault
    return task.paused if task.paused and not task.ended else task.reason


def show(federation: Federation, name_or_id: str) -> admin_pb2.ShowTaskResponse:
    """A task with all its rounds; reads the database.

    Raises:
        Unknown: No such task.
    """
    task = find(federation, name_or_id)
    members: dict[int, list[admin_pb2.MemberResult]] = defaultdict(list)
    personal: dict[int, list[update_pb2.EvaluationSums]] = defaultdict(list)
    columns, measured, rounds = schema.members.c, schema.evaluations.c, schema.rounds.c
    # At once: between two commits a member's row may become a count of its round.
    member_rows, evaluation_rows, round_rows = federation.store.read_together(
        select(schema.members).where(columns.task == task.id).order_by(columns.client),
        select(schema.evaluations).where(measured.task == task.id),
        select(schema.rounds).where(rounds.task == task.id).order_by(rounds.number),
    )
    for row in member_rows:
        sums = evaluation.from_json(row.evaluations)
        personal[row.round] = evaluation.add_up([*personal[row.round], *sums])
        members[row.round].append(
            admin_pb2.MemberResult(
                client_id=row.client,
                state=row.state,
                reason=row.reason,
                num_examples=row.num_examples,
                bytes_received=row.bytes_received,
                evaluations=[evaluation.without_confusion(each) for each in sums],
            )
        )
    found: dict[int, list[update_pb2.EvaluationSums]] = defaultdict(list)
    for row in evaluation_rows:
        found[row.round].extend(evaluation.from_json(row.evaluations))
    current = task.round
    told = federation.answers.counts(task.id, federation.clock.now() - task.settings.presence_s)
    return admin_pb2.ShowTaskResponse(
        task=summary(federation, task),
        answers=[admin_pb2.AnswerCount(answer=word, clients=count) for word, count in told.items()],
        rounds=[
            admin_pb2.RoundResult(
                round=row.number,
                phase=row.phase,
                state=row.state,
                reason=row.reason,
                members=members[row.number],
                personal=personal[row.number],
                bytes_sent=current.bytes_sent if current and current.number == row.number else row.bytes_sent,
                unlisted=[
                    admin_pb2.UnlistedMembers(state=state, members=count, bytes_received=bytes_received)
                    for state, count, bytes_received in json.loads(row.unlisted or "[]")
                ],
                opened_at=row.opened_at,
                ended_at=row.ended_at or 0.0,
                overdue=_is_overdue(federation, current, row.number),
                **{"global": evaluation.add_up(found[row.number])},
            )
            for row in round_rows
        ],
    )


def _is_overdue(federation: Federation, current: Round | None, number: int) -> bool:
    if current is None or current.number != number or current.closing:
        return False
    return current.deadline <= federation.clock.elapsed()


def model(federation: Federation, name_or_id: str) -> admin_pb2.TaskModelResponse:
    """The current global model of a task; reads the database.

    Raises:
        Unknown: No such task; or its method has no global model, none yet, or one that is not stored as one blob.
    """
    task = find(federation, name_or_id)
    with task.moving:
        committed_rounds, values, has_begun = task.committed, task.values, task.has_begun
    index = min(task.phase_of(committed_rounds), task.method_phases - 1)
    bundle = task.bundles_of(index)[0]
    phase = task.phases[index]
    downloaded = task.method.download(phase, values, None) if has_begun else None
    stored = {name: found for name, found in (downloaded or {}).items() if isinstance(found, StoredTensors)}
    extractors = {name: stored.get(name) for name in phase.plan.extractors}
    if GLOBAL in stored:
        digest = stored[GLOBAL].digest
    elif not has_begun and task.state == admin_pb2.TASK_STATE_WAITING:
        digest = bundle.manifest.initial
    else:
        raise Unknown(f"task {task.name!r} has no global model")
    rounds = schema.rounds.c
    committed = federation.store.read(
        select(rounds.number)
        .where(
            rounds.task == task.id,
            rounds.state == admin_pb2.ROUND_STATE_COMMITTED,
            rounds.phase < task.method_phases,
        )
        .order_by(rounds.number.desc())
        .limit(1)
    )
    return admin_pb2.TaskModelResponse(
        blob_sha256=digest,
        bundle=bundle.id,
        class_names=bundle.manifest.class_names,
        round=committed[0].number if committed else 0,
        extractors=[
            admin_pb2.ModelExtractor(name=name, blob_sha256=b"" if found is None else found.digest)
            for name, found in extractors.items()
        ],
    )


def _content(request: admin_pb2.CreateTaskRequest) -> bytes:
    hashed = sha256(b"fedlens/task/v1")
    for piece in (request.name.encode(), request.settings_json.encode(), *request.manifests):
        hashed.update(len(piece).to_bytes(8, "little") + piece)
    return hashed.digest()


def _bundles(federation: Federation, request: admin_pb2.CreateTaskRequest) -> tuple[TaskBundle, ...]:
    if not 1 <= len(request.manifests) <= MAX_BUNDLES:
        raise Malformed(f"manifests: found {len(request.manifests)}, must be 1 to {MAX_BUNDLES}")
    signed = request.statements or [b""] * len(request.manifests)
    if len(signed) != len(request.manifests):
        raise Malformed(f"statements: found {len(signed)}, must be one for each of {len(request.manifests)} manifests")
    bundles: list[TaskBundle] = []
    for i, (raw, statement) in enumerate(zip(request.manifests, signed, strict=True)):
        try:
            bundle = TaskBundle(raw, manifests.parse(raw), statement)
            statements.check(federation, bundle.id, statement)
            _check_parts(federation, bundle)
        except (ProtoError, Malformed) as error:
            raise Malformed(f"manifests[{i}]: {error}") from error
        first, found = (each.manifest.class_names for each in (bundles[0] if bundles else bundle, bundle))
        if found != first:
            raise Malformed(
                f"manifests[{i}]: its class names differ from those of the first bundle: found {_few(found)}, must be "
                f"{_few(first)}; export all bundles of a task with the same classes"
            )
        bundles.append(bundle)
    return tuple(bundles)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} ... ({len(names)})"


def _check_parts(federation: Federation, bundle: TaskBundle) -> None:
    blobs = federation.store.blobs
    for part in bundle.manifest.parts:
        size = blobs.sizes.get(part.sha256)
        if size is None:
            raise Malformed(f"part {part.sha256.hex()} is not stored; put the bundle's parts first")
        if size != part.size:
            raise Malformed(f"part {part.sha256.hex()} has {size} bytes, the manifest says {part.size}")
    location = blobs.locate(bundle.manifest.initial)
    initial = Blob.from_bytes(location.raw) if location.raw is not None else None
    if initial is None:
        assert location.path is not None
        initial = Blob.open(location.path, bundle.manifest.initial)
    wanted = sorted(specs(bundle.manifest.tensors), key=lambda spec: spec.name.encode())
    if list(initial.layout.specs) != wanted:
        raise Malformed("the initial blob does not hold the bundle's exchangeable tensors")
