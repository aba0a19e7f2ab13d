"""Tasks and rounds as the operator sees them."""

from collections import defaultdict

from sqlalchemy import select

from fedlens_proto.v1 import admin_pb2, update_pb2
from fedlens_server.engine import client_statistics
from fedlens_server.engine.view import Federation, Task
from fedlens_server.errors import Unknown
from fedlens_server.store import StoredTensors, schema


def find(federation: Federation, name_or_id: str) -> Task:
    """A task by its name or its decimal id.

    Raises:
        Unknown: There is none.
    """
    for task in list(federation.tasks.values()):
        if task.name == name_or_id or str(task.id) == name_or_id:
            return task
    raise Unknown(f"there is no task {name_or_id[:100]!r}")


def summary(task: Task) -> admin_pb2.Task:
    """A task without its rounds."""
    return admin_pb2.Task(
        id=task.id,
        name=task.name,
        state=task.state,
        reason=task.reason,
        settings_json=task.settings.public_json(),
        bundles=[bundle.id for bundle in task.bundles],
        rounds_committed=task.committed,
        rounds_total=task.rounds_total,
        enrolled=len(task.eligible),
        population=task.settings.population,
    )


def show(federation: Federation, task: Task) -> admin_pb2.ShowTaskResponse:
    """A task with all its rounds."""
    members: dict[int, list[admin_pb2.MemberResult]] = defaultdict(list)
    personal: dict[int, list[update_pb2.EvaluationSums]] = defaultdict(list)
    columns = schema.members.c
    for row in federation.store.read(select(schema.members).where(columns.task == task.id).order_by(columns.client)):
        sums = client_statistics.sums_of(row.evaluations)
        personal[row.round] = client_statistics.add_up([*personal[row.round], *sums])
        members[row.round].append(
            admin_pb2.MemberResult(
                client_id=row.client,
                state=row.state,
                reason=row.reason,
                num_examples=row.num_examples,
                bytes_received=row.bytes_received,
                evaluations=[client_statistics.without_confusion(each) for each in sums],
            )
        )
    found: dict[int, list[update_pb2.EvaluationSums]] = defaultdict(list)
    for row in federation.store.read(select(schema.evaluations).where(schema.evaluations.c.task == task.id)):
        found[row.round].extend(client_statistics.sums_of(row.evaluations))
    rounds = schema.rounds.c
    current = task.round
    return admin_pb2.ShowTaskResponse(
        task=summary(task),
        rounds=[
            admin_pb2.RoundResult(
                round=row.number,
                phase=row.phase,
                state=row.state,
                reason=row.reason,
                members=members[row.number],
                personal=personal[row.number],
                bytes_sent=current.bytes_sent if current and current.number == row.number else row.bytes_sent,
                opened_at=row.opened_at,
                ended_at=row.ended_at or 0.0,
                **{"global": client_statistics.add_up(found[row.number])},
            )
            for row in federation.store.read(
                select(schema.rounds).where(rounds.task == task.id).order_by(rounds.number)
            )
        ],
    )


def model(federation: Federation, task: Task) -> admin_pb2.TaskModelResponse:
    """The current global model.

    Raises:
        Unknown: The method has none, none yet, or one whose trained tensors are not a single blob.
    """
    index = min(task.phase_of(task.committed), task.method_phases - 1)
    bundle = task.bundles_of(index)[0]
    phase = task.phases[index]
    downloaded = task.method.download(phase, task.values, None) if task.values else None
    stored = {name: found for name, found in (downloaded or {}).items() if isinstance(found, StoredTensors)}
    extractors = {name: stored.pop(name, None) for name in phase.local_plan.extractors}
    sets = list(stored.values())
    if len(sets) == 1:
        digest = sets[0].digest
    elif not task.values and task.state == admin_pb2.TASK_STATE_WAITING:
        digest = bundle.manifest.initial
    elif sets:
        found = f"{len(sets)} blobs, {', '.join(sorted(stored))}"
        raise Unknown(f"the global model of task {task.name!r} is made of {found}; it cannot be fetched as one")
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
