"""From a round's updates to the next state: the heavy part, run outside of any transaction.

It starts from what `closing` froze, so that running it again after a crash gives the same bytes.
"""

import logging
from contextlib import ExitStack
from functools import cache

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import lifecycle, method_calls, opening, weighted_sums
from fedlens_server.engine.lifecycle import NO_ROUND
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.view import Federation, Member, Round, RoundKey, Task
from fedlens_server.errors import StorageFull
from fedlens_server.methods import NothingToAggregate, TensorSet, Update
from fedlens_server.store import RestoredTensors, StoredTensors, method_state
from fedlens_server.store.method_state import PreparedState

log = logging.getLogger(__name__)


def due(federation: Federation) -> list[RoundKey]:
    """Rounds that can be closed and aggregated now, ascending; with `NO_ROUND`, tasks to start that could not."""
    now = federation.clock.now()
    return sorted(key for key, when in _times(federation).items() if when <= now)


def next_deadline(federation: Federation) -> float | None:
    """The earliest time at which a round becomes due that is not due yet; None: there is none."""
    now = federation.clock.now()
    return min((when for when in _times(federation).values() if when > now), default=None)


def advance(federation: Federation, key: RoundKey) -> None:
    """Close, aggregate, and commit or abandon a round that is due; see `Rounds.advance`."""
    if key in federation.aggregating:
        return
    federation.retry_at.pop(key, None)
    if key.round == NO_ROUND:
        lifecycle.start_ready(federation)
        return
    federation.aggregating.add(key)
    try:
        closing = federation.store.submit(lambda transaction: lifecycle.begin_closing(federation, transaction, key))
        if not closing.result():
            return
        task = federation.tasks[key.task]
        current = task.round
        if current is None or current.key != key:
            return
        with ExitStack() as open_blobs:
            prepared, reason = _outcome(federation, task, current, open_blobs)
            try:
                _prepare_downloads(federation, task, prepared)
                federation.store.submit(
                    lambda transaction: lifecycle.end_round(federation, transaction, key, prepared, reason)
                ).result()
            finally:
                weighted_sums.forget_prepared(federation, task)
    except StorageFull:
        federation.retry_at[key] = federation.clock.now() + lifecycle.RETRY_S
        log.exception("task %d, round %d: the disk is full; trying again in %g s", *key, lifecycle.RETRY_S)
    finally:
        federation.aggregating.discard(key)


def _times(federation: Federation) -> dict[RoundKey, float]:
    """From when on each round that nobody works on is due, and each task that could not start."""
    # Each is looked at once: the writing thread may end a round at any time.
    rounds = [task.round for task in list(federation.tasks.values())]
    idle = [current for current in rounds if current is not None and current.key not in federation.aggregating]
    starts = {key: when for key, when in list(federation.retry_at.items()) if key.round == NO_ROUND}
    return {current.key: _when(federation, current) for current in idle} | starts


def _when(federation: Federation, current: Round) -> float:
    over = current.state == admin_pb2.ROUND_STATE_CLOSING or current.pending == 0
    earliest = federation.retry_at.get(current.key, 0.0)
    return earliest if over else max(current.deadline, earliest)


def _outcome(
    federation: Federation, task: Task, current: Round, open_blobs: ExitStack
) -> tuple[PreparedState | None, str]:
    """The new state, or the reason for which the round is abandoned."""
    updates = _updates(federation, task, current)
    needed = task.settings.min_reports
    if len(updates) < needed:
        return None, f"{len(updates)} valid updates came, {needed} are needed ({_tally(current)})"
    if current.phase >= task.method_phases:
        return PreparedState(task.values), ""
    phase = task.phases[current.phase]
    tools = method_calls.tools(federation, task, current.number, current.population)
    try:
        new = of_method(lambda: task.method.aggregate(phase, task.values, _opened(updates, open_blobs), tools))
        following = task.phase_of(task.committed + 1)
        if current.phase < following < task.method_phases:
            new = of_method(lambda: task.method.begin(task.phases[following], new, tools))
        return of_method(lambda: method_state.prepare(federation.store, task.values, new, open_blobs)), ""
    except (NothingToAggregate, MethodFailed) as error:
        return None, str(error)


def _prepare_downloads(federation: Federation, task: Task, prepared: PreparedState | None) -> None:
    """Compute the weighted sums of the round that will open, unless who takes part changes until then."""
    committed = task.committed + (prepared is not None)
    if committed == task.rounds_total or task.settings.download_codec != "f32":
        return
    kept = method_state.without(prepared or PreparedState(task.values), federation.forgotten)
    try:
        downloads = opening.cohort(task, kept.values, committed).downloads
    except (MethodFailed, NothingToAggregate, StorageFull):
        return  # the transaction meets it again and says what follows
    sets = (tensors for downloaded in downloads.values() for tensors in downloaded.values())
    weighted_sums.prepare(federation, task, sets, prepared)


def _updates(federation: Federation, task: Task, current: Round) -> list[Update]:
    base_set = task.phases[current.phase].local_plan.upload.base_set
    stored = cache(federation.store.tensors)  # each set is shared by the updates of all to whom it was sent

    def update(client: bytes, member: Member) -> Update:
        sent = {item.name: stored(item.sha256) for item in member.sets}
        tensors: TensorSet = {}
        if member.blob is not None:
            found = federation.store.tensors(member.blob)
            tensors = RestoredTensors(sent[base_set], found) if base_set else found
        return Update(
            client=client,
            num_examples=member.num_examples,
            tensors=tensors,
            sent=sent,
            class_counts=member.class_counts,
            label_distribution=member.label_distribution,
        )

    return [
        update(client, member)
        for client, member in sorted(current.members.items())
        if member.state == admin_pb2.MEMBER_STATE_REPORTED
    ]


def _opened(updates: list[Update], open_blobs: ExitStack) -> list[Update]:
    """The updates, with the files of these and of what was sent kept open until `open_blobs` is closed."""
    blobs: dict[int, StoredTensors] = {}
    for update in updates:
        tensors = update.tensors.differences if isinstance(update.tensors, RestoredTensors) else update.tensors
        found = [each for each in (tensors, *update.sent.values()) if isinstance(each, StoredTensors)]
        blobs |= {id(each): each for each in found}
    for blob in blobs.values():
        open_blobs.enter_context(blob.opened())
    return updates


def _tally(current: Round) -> str:
    states = [member.state for member in current.members.values()]
    named = {state: admin_pb2.MemberState.Name(state).removeprefix("MEMBER_STATE_").lower() for state in set(states)}
    return ", ".join(f"{states.count(state)} {named[state]}" for state in sorted(named)) or "it had no members"
