"""Evaluation of committed global models by evaluators, for which no round waits, and sums over clients."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cached_property, partial
from typing import Any

from sqlalchemy import insert, select

from fedlens_proto.manifest import specs
from fedlens_proto.v1 import admin_pb2, assignment_pb2, enrolment_pb2, manifest_pb2, update_pb2
from fedlens_server.engine import phases, vetting
from fedlens_server.engine.cohorts import pauses
from fedlens_server.engine.cohorts.downloads import Downloads, holds
from fedlens_server.engine.cohorts.members import Round, RoundKey
from fedlens_server.engine.enrolled import Client
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.task import GlobalModel, Task
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import Forbidden, RoundClosed, Unknown, UpdateDiffers, UpdateInvalid
from fedlens_server.planning.method import GLOBAL, NothingToAggregate, State, TensorSet
from fedlens_server.store import Store, Transaction, schema

log = logging.getLogger(__name__)
_INSERT = insert(schema.evaluations)
_columns = schema.evaluations.c
_members, _rounds = schema.members.c, schema.rounds.c
_EVALUATORS = b""  # as the client whose sets evaluators get


def model_after(
    federation: Federation, transaction: Transaction, task: Task, current: Round, values: State, committed: int
) -> GlobalModel | None:
    """The model that evaluators get once a round has committed `values`: a new one where that is due, if there is one.

    Raises:
        StorageFull: There is no room for it.
    """
    every = task.settings.evaluate_every
    last = task.phase_of(committed) >= task.method_phases or committed == task.rounds_total
    if current.phase < task.method_phases and (committed % every == 0 or last):
        try:
            return _global_model(federation, transaction, task, current, values) or task.evaluation
        except (MethodFailed, NothingToAggregate) as error:
            log.warning("task %s, round %d has no global model: %s", task.name, current.number, error)
    return task.evaluation


def local_plan(task: Task, model: GlobalModel) -> assignment_pb2.LocalPlan:
    """The plan by which evaluators measure a global model."""
    return phases.global_evaluation(task.settings, task.phases[model.phase])


def accept(
    federation: Federation,
    client: bytes,
    task_id: int,
    number: int,
    header: update_pb2.UpdateHeader,
    body_sha256: bytes,
) -> Future[update_pb2.Receipt]:
    """Store an evaluator's result for a committed round. The same body again: the same receipt.

    Raises:
        Forbidden: The client is no evaluator.
        Unavailable: The task is suspended.
        Unknown: No such task or round, or none that is to be evaluated.
        RoundClosed: Another round is evaluated by now, or the round was undone.
        UpdateDiffers: A result with other bytes has been received.
        UpdateInvalid: The sums are not acceptable.
    """
    _, task = _evaluated(federation, client, task_id)  # what is refused at once keeps no other operation waiting
    if not 1 <= number < task.next_round:
        raise Unknown(f"round {number} of task {task_id} is not to be evaluated")
    return _accept(federation, task_id, client, number, header, body_sha256)


def _evaluated(federation: Federation, client: bytes, task_id: int) -> tuple[Client, Task]:
    """An evaluator, and a task that it can run; errors as in `accept`."""
    known = federation.clients.get(client)
    if known is None or known.profile.revoked or known.role != enrolment_pb2.CLIENT_ROLE_EVALUATOR:
        raise Forbidden("only an enrolled evaluator sends evaluations")
    task = federation.task(task_id)
    if not task.suits(known.profile):
        raise Unknown(f"there is no task {task_id} that this client can run")
    return known, task


@operation(lambda task_id, *_: task_id)
def _accept(
    federation: Federation,
    transaction: Transaction,
    task_id: int,
    client: bytes,
    number: int,
    header: update_pb2.UpdateHeader,
    body_sha256: bytes,
) -> update_pb2.Receipt:
    known, task = _evaluated(federation, client, task_id)
    receipt = update_pb2.Receipt(body_sha256=body_sha256)
    query = select(_columns.body_sha256).where(
        _columns.task == task_id, _columns.round == number, _columns.client == client
    )
    for row in transaction.execute(query).all():
        if row.body_sha256 == body_sha256:
            return receipt
        raise UpdateDiffers(f"round {number}: an evaluation with other bytes has been received; that one counts")
    newest = task.evaluation
    now = federation.clock.elapsed()
    given = (each for each in task.awaited_evaluations(now) if each.round == number and each.awaits(client, now))
    model = next(given, newest)
    if model is None or number != model.round:
        if newest is not None and number < newest.round:
            raise RoundClosed(f"round {number} of task {task_id} is not evaluated any more, round {newest.round} is")
        state = select(_rounds.state).where(_rounds.task == task_id, _rounds.number == number)
        if transaction.execute(state).scalar() == admin_pb2.ROUND_STATE_UNDONE:
            raise RoundClosed(f"round {number} of task {task_id} was undone")
        raise Unknown(f"round {number} of task {task_id} is not to be evaluated")
    bundle = task.bundle_for(known.profile, model.phase)
    if bundle is None or header.bundle != bundle.id or header.phase != model.phase or header.uploads:
        raise UpdateInvalid("an evaluation names bundle and phase of its assignment and holds sums only")
    classes, most_photos = len(bundle.manifest.class_names), task.settings.max_photos_per_client
    if fault := vetting.statistics_fault(header, local_plan(task, model), classes, most_photos):
        raise UpdateInvalid(fault)
    row_of = {"task": task_id, "round": number, "client": client, "body_sha256": body_sha256}
    transaction.later(_INSERT, {**row_of, "evaluations": to_json(header.evaluations)})
    transaction.after_commit(lambda: model.evaluated_by.add(client))
    if model.awaits_others(client, now):
        transaction.after_commit(lambda: model.undecided.add(client))
    else:
        _decide(federation, transaction, task, model, (number, header.evaluations))
    return receipt


def decide(federation: Federation, transaction: Transaction, task: Task, following: GlobalModel | None) -> bool:
    """Pause a task whose model became worse and then was replaced, or whose last evaluators never answered in time.

    Returns:
        True: it pauses.
    """
    model, now = task.evaluation, federation.clock.elapsed()
    if model is not None and model.undecided and (model is not following or not model.awaits_any(now)):
        return _decide(federation, transaction, task, model)
    return False


def _decide(
    federation: Federation, transaction: Transaction, task: Task, model: GlobalModel, *latest: tuple[int, pauses.Sums]
) -> bool:
    """Pause a task if a model is worse than earlier ones, by what is stored and the latest evaluation; True: it is."""
    transaction.after_commit(model.undecided.clear)
    if task.settings.pause_if_accuracy_falls is None or task.paused:
        return False
    stored = [(found, from_json(text)) for found, text in pauses.evaluations_before(transaction, task, model.round)]
    if reason := pauses.fall(task, model.round, [*stored, *latest]):
        pauses.write(federation, transaction, task, reason, model.round)
    return bool(reason)


def to_json(all_sums: Iterable[update_pb2.EvaluationSums]) -> str:
    """Evaluation sums for the database."""
    rows: list[list[Any]] = [
        [sums.label, sums.count, sums.correct, sums.loss, *([list(sums.confusion)] if sums.confusion else [])]
        for sums in all_sums
    ]
    return json.dumps(rows)


def from_json(text: str) -> list[update_pb2.EvaluationSums]:
    """The evaluation sums that `to_json` wrote."""
    names = ("label", "count", "correct", "loss", "confusion")  # the last one is there only where it was sent
    return [update_pb2.EvaluationSums(**dict(zip(names, values, strict=False))) for values in json.loads(text)]


def add_up(all_sums: Iterable[update_pb2.EvaluationSums]) -> list[update_pb2.EvaluationSums]:
    """Sums over clients, by label in the order of the first client."""
    totals: dict[str, update_pb2.EvaluationSums] = {}
    for sums in all_sums:
        total = totals.setdefault(sums.label, update_pb2.EvaluationSums(label=sums.label))
        total.count += sums.count
        total.correct += sums.correct
        total.loss += sums.loss
        if sums.confusion:
            before = total.confusion or [0] * len(sums.confusion)
            total.confusion[:] = [a + b for a, b in zip(before, sums.confusion, strict=True)]
    return list(totals.values())


def is_whole(downloaded: Mapping[str, TensorSet], manifest: manifest_pb2.Manifest) -> bool:
    """Tell whether the sets for evaluators hold a global model for a bundle."""
    return GLOBAL in downloaded and holds(downloaded[GLOBAL], specs(manifest.tensors))


class OfMember(Mapping[str, update_pb2.EvaluationSums]):
    """The evaluations of a member by label, read from the database when they are needed."""

    def __init__(self, store: Store, key: RoundKey, client: bytes) -> None:
        """Of this client in this round."""
        self._store = store
        self._row = (_members.task == key.task, _members.round == key.round, _members.client == client)

    @cached_property
    def _by_label(self) -> dict[str, update_pb2.EvaluationSums]:
        (row,) = self._store.read(select(_members.evaluations).where(*self._row))
        return {sums.label: sums for sums in from_json(row.evaluations)}

    def __getitem__(self, label: str) -> update_pb2.EvaluationSums:
        """The sums with this label."""
        return self._by_label[label]

    def __iter__(self) -> Iterator[str]:
        """Labels, in the local plan's order."""
        return iter(self._by_label)

    def __len__(self) -> int:
        """The number of evaluations."""
        return len(self._by_label)


def without_confusion(sums: update_pb2.EvaluationSums) -> update_pb2.EvaluationSums:
    """The same sums without a confusion matrix: a thousand members' matrices are too much for one message."""
    return update_pb2.EvaluationSums(label=sums.label, count=sums.count, correct=sums.correct, loss=sums.loss)


def _global_model(
    federation: Federation, transaction: Transaction, task: Task, current: Round, values: State
) -> GlobalModel | None:
    """The global model after a round; None: the method has none."""
    phase = task.phases[current.phase]
    downloaded = of_method(partial(task.method.download, phase, values, None)) or {}
    if not all(is_whole(downloaded, bundle.manifest) for bundle in task.bundles_of(current.phase)):
        return None
    used = {name: downloaded[name] for name in (GLOBAL, *phase.plan.extractors) if name in downloaded}
    downloads = Downloads(federation, transaction, task, None, exact=True)
    of_method(partial(downloads.add, _EVALUATORS, used))
    return GlobalModel(round=current.number, phase=current.phase, sets=of_method(downloads.sets)[_EVALUATORS])
