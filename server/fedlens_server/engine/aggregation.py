"""From a round's updates to the next state: the heavy part, run outside of any transaction.

It starts from what `closing` froze, so that running it again after a crash gives the same bytes.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from math import inf
from typing import TypeVar

from fedlens_proto import plans, wire
from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import evaluation, method_calls, rounds, vetting
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.cohorts.cohort import everybody
from fedlens_server.engine.cohorts.endings import Outcome
from fedlens_server.engine.cohorts.members import Member, Round, RoundKey
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.rounds import NO_ROUND
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.errors import StorageFull, Unavailable
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import GLOBAL, BadState, NothingToAggregate, State, TensorSet, Update
from fedlens_server.planning.task_settings import TaskSettings
from fedlens_server.rules import robust
from fedlens_server.rules.krum import krum
from fedlens_server.rules.middle import middle_update
from fedlens_server.rules.privacy import private_update
from fedlens_server.rules.privacy_plan import shapes_of
from fedlens_server.rules.robust import Bounds
from fedlens_server.store import RestoredTensors, StoredTensors, method_state
from fedlens_server.store.method_state import PreparedState

log = logging.getLogger(__name__)
T = TypeVar("T")


def due(federation: Federation) -> list[RoundKey]:
    """Rounds that can be closed and aggregated now, ascending; also tasks whose start failed and is due for a retry.

    Such a task has the number `NO_ROUND`.
    """
    now = federation.clock.elapsed()
    return sorted(key for key, when in _times(federation).items() if when <= now)


def next_deadline(federation: Federation) -> float | None:
    """The next time at which `due` changes without a `Change`, in seconds since the epoch; None: there is none."""
    now = federation.clock.elapsed()
    return min((when for when in _times(federation).values() if now < when < inf), default=None)


def advance(federation: Federation, key: RoundKey) -> None:
    """Close a round, aggregate it, commit or abandon it, and open the next one.

    Heavy: call it off the event loop, one call a round at a time. Safe to repeat; does nothing for a round that is not
    due. When the store has no room or cannot be reached, the round stays closing and is due again some seconds later.
    """
    if key in federation.aggregating:
        return
    federation.retry_at.pop(key, None)
    if key.round == NO_ROUND:
        rounds.start_ready(federation)
        return
    federation.aggregating.add(key)
    try:
        if not rounds.close(federation, key).result():
            return
        began = time.perf_counter()
        task = federation.tasks.get(key.task)
        current = None if task is None else task.round
        if task is None or current is None or current.key != key:
            return
        federation.store.blobs.bring(_read_by(current))
        with ExitStack() as open_blobs:
            outcome = _aggregate(federation, task, current, open_blobs)
            with federation.counting:
                federation.aggregations.add(time.perf_counter() - began)
            cohort = rounds.next_cohort(federation, task, outcome)
            rounds.end(federation, key, outcome, cohort).result()
    except (StorageFull, Unavailable) as error:
        federation.retry_at[key] = federation.clock.elapsed() + rounds.RETRY_S
        log.error("task %d, round %d: %s; trying again in %g s", *key, error, rounds.RETRY_S)
    finally:
        federation.aggregating.discard(key)


def _times(federation: Federation) -> dict[RoundKey, float]:
    """The time from which each idle round is due, and each task that could not start."""
    # Each is looked at once: the writing thread may end a round, or take away a task, at any time.
    current = [(task, task.round) for task in list(federation.tasks.values()) if not task.suspended]
    idle = {
        each.key: max(task.over_at(each), federation.retry_at.get(each.key, 0.0))
        for task, each in current
        if each is not None and each.key not in federation.aggregating
    }
    starts = {key: when for key, when in list(federation.retry_at.items()) if key.round == NO_ROUND}
    return idle | starts


def _read_by(current: Round) -> set[bytes]:
    """Digests of the blobs that aggregating a round reads, but for the method's state."""
    found: set[bytes] = set()
    for member in current.members.values():
        if member.state == admin_pb2.MEMBER_STATE_REPORTED:
            found.update(member.blobs.values(), (item.sha256 for item in member.sets))
    return found


def _aggregate(federation: Federation, task: Task, current: Round, open_blobs: ExitStack) -> Outcome:
    """The new state, or the reason for which the round is abandoned; and what rules did."""
    if current.fault:
        return Outcome(None, current.fault, {})
    settings, excluded = task.settings, dict[bytes, str]()  # read once: an operator may change them meanwhile
    everything = _updates(federation, task, current, settings)
    updates = [update for update in everything if current.members[update.client].phase == current.phase]
    late = [update for update in everything if current.members[update.client].phase != current.phase]
    came = len(updates)
    if settings.exclude:
        updates, excluded = robust.exclude(updates)
    if len(updates) < settings.min_reports:
        rule = f", of which rule `exclude` left {len(excluded)} out" if excluded else ""
        reason = f"valid updates: {came}{rule}; needed: {settings.min_reports} ({_tally(current)})"
        return Outcome(None, reason, excluded)
    if current.phase >= task.method_phases:
        return Outcome(PreparedState(task.values), "", excluded)
    phase = task.phases[current.phase]
    if settings.by_arrival:
        population = participation.population(federation, task)
    else:
        population = everybody(federation, task, current.population)
    tools = method_calls.tools(federation, task, current.phase, current.number, population)

    def checked(call: Callable[[], T]) -> T:
        return of_method(call, lambda: _is_over(federation, task, current))

    try:
        before, admit = method_state.given(task.values), task.method.admit
        if admit is not None and late:
            before = checked(lambda: admit(phase, before, _opened(late, open_blobs), tools))
        ruled, bounds = checked(lambda: _ruled(task, current, settings, _opened(updates, open_blobs)))
        new = checked(lambda: task.method.aggregate(phase, before, ruled, tools))
        following = task.phase_of(task.committed + 1)
        begins = current.phase < following < task.method_phases
        if begins:
            later = method_calls.tools(federation, task, following, current.number, population)
            later = replace(later, generator=tools.generator)
            new = checked(lambda: task.method.begin(task.phases[following], method_state.checked(new), later))
        prepared = checked(lambda: method_state.prepare(federation.store, task.values, new, open_blobs))
        if not begins:
            checked(lambda: _need_same_model(task.values, prepared))
        return Outcome(prepared, "", excluded, bounds)
    except (NothingToAggregate, MethodFailed) as error:
        return Outcome(None, str(error), excluded)


def _is_over(federation: Federation, task: Task, current: Round) -> bool:
    """Tell whether a round has ended while it was being aggregated, and its blobs are deleted."""
    federation.store.submit(lambda _: None).result()  # the view has followed all that was committed before
    return task.round is not current


def _need_same_model(old: State, new: PreparedState) -> None:
    """Require that a global model has the tensors that it had, so that clients can go on from it.

    Raises:
        BadState: It has others.
    """
    was, now = old.shared.get(GLOBAL), new.values.shared.get(GLOBAL)
    if not isinstance(was, StoredTensors) or not isinstance(now, StoredTensors) or was.digest == now.digest:
        return
    now = next((StoredTensors.of_pending(blob) for blob in new.blobs if blob.digest == now.digest), now)
    before, after = ({spec.name: spec.shape for spec in found.layout.specs} for found in (was, now))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            had, has = (f"shape {list(found[name])}" if name in found else "none" for found in (before, after))
            raise BadState(f"shared[{GLOBAL!r}]: found {has} for tensor {name!r}, must be {had}, as before the round")


def _ruled(
    task: Task, current: Round, settings: TaskSettings, updates: list[Update]
) -> tuple[list[Update], Bounds | None]:
    """The updates as the method sees them, and the median norms for a later round."""
    bounds = task.bounds_of(current.phase)
    if settings.krum is not None:
        updates = krum(updates, settings.krum)
    if settings.clip:
        tensors = robust.Tensors.of([bundle.manifest for bundle in task.bundles_of(current.phase)])
        updates, bounds = robust.clip(updates, bounds, tensors)
    uploaded = task.phases[current.phase].plan.uploads
    if settings.cap and uploaded:  # counts that come alone, as for a clustering of clients, weigh nothing
        updates = robust.cap(updates)
    of_weights = any(upload.name == WEIGHTS for upload in uploaded)
    if (settings.median or settings.trimmed_mean) and of_weights:  # of tables a method takes the middle itself
        updates = [middle_update(updates, settings.left_out)]
    if settings.dp is not None:
        shapes = shapes_of(task.phases[current.phase], task.bundles_of(current.phase)[0].manifest)
        goal = settings.cohort_size or len(current.members)
        updates = [private_update(updates, shapes, clip=settings.dp.clip, noise=settings.dp.noise, goal=goal)]
    return updates, bounds


def _updates(federation: Federation, task: Task, current: Round, settings: TaskSettings) -> list[Update]:
    bases = [{upload.name: upload.base for upload in phase.plan.uploads} for phase in task.phases]
    starts = cache(partial(_starts, task))
    stored = cache(federation.store.tensors)  # each set is shared by the updates of all to whom it was sent

    def update(client: bytes, member: Member) -> Update:
        sent = {item.name: stored(item.sha256) for item in member.sets}
        values: dict[str, TensorSet] = {}
        norms, uploads = member.norms, list[StoredTensors]()
        for name, digest in member.blobs.items():
            uploads.append(found := federation.store.tensors(digest))
            base = bases[member.phase][name]
            values[name] = RestoredTensors(sent[base], found) if base else found
        if norms is None and settings.looks_at_norms:  # no rule was on when it came
            plan, bundle = task.phases[member.phase].plan, task.bundle(member.bundle)
            computed = vetting.upload_norms(federation.store, plan, bundle, member.sets, uploads)
            norms = vetting.norms_for_rules(list(values), computed)
        return Update(
            client=client,
            num_examples=member.num_examples,
            values=values,
            sent=sent,
            evaluations=evaluation.OfMember(federation.store, current.key, client),
            class_counts=member.class_counts,
            label_distribution=member.label_distribution,
            norms=norms,
            bases={} if norms is None else starts(member.phase, member.bundle, norms.nearest),
        )

    return [
        update(client, member)
        for client, member in sorted(current.members.items())
        if member.state == admin_pb2.MEMBER_STATE_REPORTED
    ]


def _starts(task: Task, phase: int, bundle: bytes, otherwise: str) -> dict[str, str]:
    """By tensor of the uploaded weights the download that it starts from; `otherwise` is that of the others."""
    plan, manifest = task.phases[phase].plan, task.bundle(bundle).manifest
    upload = next((each for each in plan.uploads if each.name == WEIGHTS), None)
    if upload is None:
        return {}
    uploaded = plans.upload_layout(plan, upload, manifest).specs
    return {spec.name: otherwise for spec in uploaded if otherwise} | plans.starts(plan, upload, manifest)


def _opened(updates: list[Update], open_blobs: ExitStack) -> list[Update]:
    """The updates, with their files and the files of the downloads held open until `open_blobs` is closed."""
    blobs: dict[int, StoredTensors] = {}
    for update in updates:
        uploaded = (each.differences if isinstance(each, RestoredTensors) else each for each in update.values.values())
        found = [each for each in (*uploaded, *update.sent.values()) if isinstance(each, StoredTensors)]
        blobs |= {id(each): each for each in found}
    for blob in blobs.values():
        open_blobs.enter_context(blob.opened())
    return updates


def _tally(current: Round) -> str:
    states = [member.state for member in current.members.values()]
    named = {state: wire.word(admin_pb2.MemberState, state) for state in set(states)}
    return ", ".join(f"{states.count(state)} {named[state]}" for state in sorted(named)) or "it had no members"
