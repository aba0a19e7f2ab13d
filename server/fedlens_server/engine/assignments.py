"""Assignments: what a client is to do now and may fetch for it, answered from memory alone."""

from collections.abc import Callable
from functools import partial

from fedlens_proto import keyed_hash
from fedlens_proto.manifest import INITIAL, initial_set
from fedlens_proto.v1 import admin_pb2, assignment_pb2, check_in_pb2, enrolment_pb2
from fedlens_server.engine import evaluation
from fedlens_server.engine.arrivals import obstacles, pace, participation, places
from fedlens_server.engine.arrivals.answers import Answer
from fedlens_server.engine.cohorts.downloads import fetchable
from fedlens_server.engine.enrolled import Client
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Unavailable, Unknown
from fedlens_server.methods.arithmetic.weighted_sum import WeightedSum
from fedlens_server.planning.local_plans import rule, source
from fedlens_server.planning.method import GLOBAL, NothingToAggregate, State, TensorSet
from fedlens_server.store import Location, StoredTensors

_RETRY_AFTER_MS = {
    check_in_pb2.WAIT_REASON_POPULATION: 2000,
    check_in_pb2.WAIT_REASON_NEXT_ROUND: 1000,
    check_in_pb2.WAIT_REASON_PHASE: 5000,
    check_in_pb2.WAIT_REASON_NO_TASK: 10_000,
    check_in_pb2.WAIT_REASON_PAUSED: 10_000,
}
# Of the clients of a task that draws its members, as many ask without being held.
_MOST_A_SECOND, _LONGEST_MS = 100, int(1000 * pace.LONGEST_S)


def check_in(
    federation: Federation, client_id: bytes, request: check_in_pb2.CheckInRequest
) -> check_in_pb2.CheckInResponse:
    """The assignment of a client, or what it waits for. Never holds: to hold, wait for a `Change` and call again.

    Raises:
        Those of `Federation.authenticate`, for a task that is named those of `Federation.task`, and
        Unknown: The task named is none that this client can run.
    """
    client = federation.authenticate(client_id)
    federation.presence.saw(client_id, federation.clock.elapsed())
    tasks = _tasks(federation, client)
    if request.task:
        federation.task(request.task)
        tasks = [task for task in tasks if task.id == request.task]
        if not tasks:
            raise Unknown(f"there is no task {request.task} that this client can run")
    for task in tasks if client.profile.is_trainer else ():
        if task.settings.by_arrival:
            obstacles.note_present(federation, task, client_id, request)
    # A client has one place at a time, over all tasks.
    held = places.held_place(federation, client_id)
    for task in tasks if held is None else [held[0]]:
        assignment = _assignment(federation, task, client)
        if assignment is not None:
            return check_in_pb2.CheckInResponse(assignment=assignment)
    models = [model for task in tasks if (model := current_model(task, client)) is not None]
    if tasks and all(task.is_over_for(client_id) for task in [*tasks, *_suspended(federation)]):
        return check_in_pb2.CheckInResponse(finished=check_in_pb2.Finished(models=models))
    wait = _wait(federation, tasks, client, request)
    wait.models.extend(models)
    return check_in_pb2.CheckInResponse(wait=wait)


def note_answer(
    federation: Federation,
    client_id: bytes,
    request: check_in_pb2.CheckInRequest,
    response: check_in_pb2.CheckInResponse,
    word: str,
) -> None:
    """Note for operators what the client is told in the end, by a word for it."""
    task = response.assignment.task if response.HasField("assignment") else request.task
    client = federation.clients.get(client_id)
    if not task and client is not None:
        task = next((each.id for each in _tasks(federation, client) if not each.ended), 0)
    federation.answers.note(client_id, Answer(word, task, response.wait.detail), federation.clock.now())


def readable(federation: Federation, client_id: bytes, digest: bytes) -> Location:
    """The location of a blob that a client may fetch now; errors as in `finder` and `Blobs.locate`."""
    return finder(federation, client_id, digest)()


def finder(federation: Federation, client_id: bytes, digest: bytes) -> Callable[[], Location]:
    """What locates a blob that a client may fetch now; it may have to wait for a blob that is elsewhere.

    Raises:
        Those of `Federation.authenticate`, and
        Unknown: There is no such blob for this client.
        Unavailable: There may be one, in a task that is suspended.
    """
    client = federation.authenticate(client_id)
    for task in _tasks(federation, client):
        for bundle in task.bundles:
            if bundle.runs_on(client.profile) and digest == bundle.id:
                return partial(Location, len(bundle.raw), raw=bundle.raw)
            if bundle.runs_on(client.profile) and digest in bundle.parts:
                return partial(federation.store.blobs.locate, digest)
        current = task.round
        member = current.members.get(client.id) if current is not None else None
        current_one = current_model(task, client)
        sets = list(current_one.sets) if current_one is not None else []
        if member is not None and member.state == admin_pb2.MEMBER_STATE_PENDING:
            sets += member.sets
        if client.role == enrolment_pb2.CLIENT_ROLE_EVALUATOR:
            newest = () if task.evaluation is None else (task.evaluation,)
            for model in (*newest, *task.awaited_evaluations(federation.clock.elapsed())):
                sets += model.sets
        if digest in fetchable(tuple(sets)):
            return partial(federation.store.blobs.locate, digest)
    if _suspended(federation):
        raise Unavailable("a task is suspended, and its blobs with it; try again later")
    raise Unknown(f"there is no blob {digest.hex()[:128]} for this client")


def count_sent(federation: Federation, client: bytes, digest: bytes, byte_count: int) -> None:
    """Add bytes of a blob that were sent to a client to the round that needs it there, if there is one."""
    for task in list(federation.tasks.values()):
        current = task.round
        member = current.members.get(client) if current is not None else None
        if current is None or member is None:
            continue
        if digest == member.bundle or digest in task.bundle(member.bundle).parts or digest in fetchable(member.sets):
            with federation.counting:
                current.bytes_sent += byte_count
            return


def current_model(task: Task, client: Client) -> check_in_pb2.CurrentModel | None:
    """The model that a client would use now; None: the method has none for it, or none that is stored.

    A client that has yet to catch up with an earlier phase uses the model of that phase. Computing every weighted sum
    only to advertise it is too expensive; the client's own model is advertised instead.
    """
    cache = task.current_models  # before the values: a commit in between replaces it, and what is cached goes with it
    cached = cache.get(client.id)
    if cached is not None:
        return cached
    with task.moving:
        committed, values, has_begun = task.committed, task.values, task.has_begun
    if not has_begun:
        return None
    if task.settings.release == "manual":
        if task.released is None:
            return None
        committed, values = task.released.committed, task.released.values
    index = task.phase_of(committed)
    intake = task.intake_of(min(index, task.method_phases - 1)) if task.settings.by_arrival else None
    found = _model_in(task, client, values, index)
    if found is None and intake is not None:
        found = _model_in(task, client, values, intake)
    if found is not None:
        # Most clients use one model, so its messages share their memory.
        found = task.distinct_models.setdefault(found.SerializeToString(deterministic=True), found)
        cache[client.id] = found
    return found


def _model_in(task: Task, client: Client, values: State, index: int) -> check_in_pb2.CurrentModel | None:
    """The model of a phase, by its index, for a client."""
    phase, bundle = task.method_phase(index), task.bundle_for(client.profile, index)
    is_trainer = client.profile.is_trainer
    rules = phase.model_rules if is_trainer else (rule(source(download=GLOBAL)),)
    if bundle is None or not rules:
        return None
    try:
        downloaded = of_method(partial(task.method.download, phase, values, client.id if is_trainer else None))
    except (MethodFailed, NothingToAggregate):
        return None
    if downloaded is None:
        return None
    if not is_trainer and not evaluation.is_whole(downloaded, bundle.manifest):
        return None
    wanted = {each.source.download for each in rules} - {""}
    stored = {name: _stored(downloaded[name]) for name in sorted(downloaded.keys() & {*wanted, *phase.plan.extractors})}
    sets = [
        assignment_pb2.BlobSet(name=name, sha256=tensors.digest, size=tensors.size)
        for name, tensors in stored.items()
        if tensors is not None
    ]
    if INITIAL in wanted and INITIAL not in stored:
        sets.append(initial_set(bundle.manifest))
    if len(sets) < len(wanted | stored.keys()):
        return None
    return check_in_pb2.CurrentModel(
        task=task.id,
        bundle=bundle.id,
        sets=sets,
        rules=rules,
        extractors=phase.plan.extractors,
        statement=bundle.statement,
    )


def _stored(tensors: TensorSet | None) -> StoredTensors | None:
    if isinstance(tensors, WeightedSum):
        tensors = tensors.advertised
    return tensors if isinstance(tensors, StoredTensors) else None


def _tasks(federation: Federation, client: Client) -> list[Task]:
    return [task for _, task in sorted(federation.tasks.items()) if task.suits(client.profile)]


def _suspended(federation: Federation) -> list[Task]:
    """Tasks that may have work for any client later."""
    return [task for task in list(federation.tasks.values()) if task.suspended]


def _assignment(federation: Federation, task: Task, client: Client) -> assignment_pb2.Assignment | None:
    if client.role == enrolment_pb2.CLIENT_ROLE_EVALUATOR:
        return _evaluation(federation, task, client)
    current = task.round
    if current is None or current.state != admin_pb2.ROUND_STATE_OPEN:
        return None
    now = federation.clock.elapsed()
    # Once: its place may run out, or its report come, at any moment.
    member, left = current.members.get(client.id), current.until(client.id) - now
    if member is None or member.state != admin_pb2.MEMBER_STATE_PENDING or left <= 0:
        return None
    return assignment_pb2.Assignment(
        task=task.id,
        round=current.number,
        phase=member.phase,
        bundle=member.bundle,
        seed=keyed_hash.assignment_seed(task.seed, current.number, client.id),
        time_left_ms=int(left * 1000),
        sets=member.sets,
        local_plan=task.phases[member.phase].plan,
        answer=assignment_pb2.ANSWER_UPDATE,
        statement=task.bundle(member.bundle).statement,
    )


def _evaluation(federation: Federation, task: Task, client: Client) -> assignment_pb2.Assignment | None:
    """The model that an evaluator was given and has not answered, else the newest."""
    now = federation.clock.elapsed()
    model = next((each for each in task.awaited_evaluations(now) if each.awaits(client.id, now)), task.evaluation)
    if model is None or client.id in model.evaluated_by:
        return None
    until = model.given_until.get(client.id, now)
    if until <= now:
        until = model.given_until[client.id] = now + task.settings.deadline_s
    bundle = task.bundle_for(client.profile, model.phase)
    assert bundle is not None  # the task suits the client
    return assignment_pb2.Assignment(
        task=task.id,
        round=model.round,
        phase=model.phase,
        bundle=bundle.id,
        seed=keyed_hash.assignment_seed(task.seed, model.round, client.id),
        time_left_ms=int((until - now) * 1000),
        sets=model.sets,
        local_plan=evaluation.local_plan(task, model),
        answer=assignment_pb2.ANSWER_EVALUATION,
        statement=bundle.statement,
    )


def _wait(
    federation: Federation, tasks: list[Task], client: Client, request: check_in_pb2.CheckInRequest
) -> check_in_pb2.Wait:
    """What a client waits for in the task that asks for it soonest, of those that have not ended for it."""
    waits = [_wait_in(federation, task, client, request) for task in tasks if not task.is_over_for(client.id)]
    if waits:
        return min(waits, key=lambda wait: wait.retry_after_ms)
    reason = check_in_pb2.WAIT_REASON_NO_TASK
    detail = _withheld(federation, client)
    return check_in_pb2.Wait(retry_after_ms=_RETRY_AFTER_MS[reason], reason=reason, detail=detail)


def _wait_in(
    federation: Federation, task: Task, client: Client, request: check_in_pb2.CheckInRequest
) -> check_in_pb2.Wait:
    if task.settings.by_arrival and client.profile.is_trainer:
        return _wait_for_place(federation, task, client, request)
    if task.paused:
        reason = check_in_pb2.WAIT_REASON_PAUSED
    elif task.state == admin_pb2.TASK_STATE_WAITING:
        reason = check_in_pb2.WAIT_REASON_POPULATION
    else:
        current = task.round  # read once: the writing thread may change it
        sits_out = current is not None and client.id in current.sitting_out
        reason = check_in_pb2.WAIT_REASON_PHASE if sits_out else check_in_pb2.WAIT_REASON_NEXT_ROUND
    crowd_ms = 1000 * federation.clients.count(task.may_train) // _MOST_A_SECOND
    return check_in_pb2.Wait(retry_after_ms=min(max(_RETRY_AFTER_MS[reason], crowd_ms), _LONGEST_MS), reason=reason)


def _withheld(federation: Federation, client: Client) -> str:
    """What a trainer does not send and a task that goes on asks for, in words; empty: there is none."""
    for task in list(federation.tasks.values()) if client.profile.is_trainer else ():
        if not task.ended and not task.suspended:
            names = [name for name in sorted(task.consents) if not client.profile.sends([name])]
            if names:
                return f"task {task.name!r} asks for {', '.join(names)}, which this client's owner does not allow"
    return ""


def _wait_for_place(
    federation: Federation, task: Task, client: Client, request: check_in_pb2.CheckInRequest
) -> check_in_pb2.Wait:
    current = task.round
    reason = obstacles.obstacle(federation, task, current, client.id, request)
    if reason is None:
        rests = False
        if current is not None and client.id in task.participations:
            bundle = task.bundle_for(client.profile, current.phase)
            is_free = places.free_places(task, current, federation.clock.elapsed(), bundle) > 0
            rests = is_free and participation.rests(federation, task, current, client.id)
        reason = check_in_pb2.WAIT_REASON_REST if rests else check_in_pb2.WAIT_REASON_NEXT_ROUND
    if reason == check_in_pb2.WAIT_REASON_SITS_OUT:
        after_s = participation.past(task, client.id).sits_out_until - federation.clock.now()
    elif reason == check_in_pb2.WAIT_REASON_NOT_ELIGIBLE:
        after_s = pace.LONGEST_S
    else:
        after_s = pace.pause_s(federation, task)
    detail = obstacles.not_eligible(task, request)
    if reason == check_in_pb2.WAIT_REASON_REST:
        has_left = participation.left_places(task, client.id)
        detail = f"this client {'left its last places unused' if has_left else 'took part a short while ago'}"
    return check_in_pb2.Wait(
        retry_after_ms=int(1000 * min(max(after_s, pace.SHORTEST_S), pace.LONGEST_S)), reason=reason, detail=detail
    )
