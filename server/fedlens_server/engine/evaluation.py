"""What evaluators find for committed rounds; rounds do not wait for it."""

from sqlalchemy import insert, select

from fedlens_proto.v1 import enrolment_pb2, update_pb2
from fedlens_server.engine import client_statistics
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Forbidden, RoundClosed, Unknown, UpdateDiffers, UpdateInvalid
from fedlens_server.store import Transaction, schema

_INSERT = insert(schema.evaluations)
_columns = schema.evaluations.c


def accept(
    federation: Federation,
    transaction: Transaction,
    client: bytes,
    task_id: int,
    number: int,
    header: update_pb2.UpdateHeader,
    body_sha256: bytes,
) -> update_pb2.Receipt:
    """See `Rounds.accept_evaluation`."""
    known = federation.clients.get(client)
    if known is None or known.revoked or known.role != enrolment_pb2.CLIENT_ROLE_EVALUATOR:
        raise Forbidden("only an enrolled evaluator sends evaluations")
    task = federation.tasks.get(task_id)
    if task is None or not task.suits(known):
        raise Unknown(f"there is no task {task_id} that this client can run")
    receipt = update_pb2.Receipt(body_sha256=body_sha256)
    query = select(_columns.body_sha256).where(
        _columns.task == task_id, _columns.round == number, _columns.client == client
    )
    for row in transaction.execute(query).all() if number < 1 << 63 else ():
        if row.body_sha256 == body_sha256:
            return receipt
        raise UpdateDiffers(f"round {number}: an evaluation with other bytes has been received; that one counts")
    model = task.evaluation
    if model is None or number != model.round:
        if model is not None and 1 <= number < model.round:
            raise RoundClosed(f"round {number} of task {task_id} is not evaluated any more, round {model.round} is")
        raise Unknown(f"round {number} of task {task_id} is not to be evaluated")
    bundle = task.bundle_for(known, model.phase)
    if bundle is None or header.bundle != bundle.id or header.phase != model.phase or header.blob_sha256:
        raise UpdateInvalid("an evaluation names bundle and phase of its assignment and holds sums only")
    if not header.evaluations:
        raise UpdateInvalid("evaluations: none found, sums of moment start were asked for")
    asked = client_statistics.Asked(
        classes=len(bundle.manifest.class_names),
        moments=(update_pb2.EVALUATION_MOMENT_START,),
        class_counts=False,
        label_distribution=False,
        confusion=task.settings.confusion,
    )
    if fault := client_statistics.fault(header, asked):
        raise UpdateInvalid(fault)
    given = {"task": task_id, "round": number, "client": client, "body_sha256": body_sha256}
    transaction.later(_INSERT, {**given, "evaluations": client_statistics.sums_json(header)})
    transaction.after_commit(lambda: model.answered.add(client))
    return receipt
