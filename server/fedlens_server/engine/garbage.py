"""Garbage collection: a blob is deleted one round after it became unreachable, a receipt when its time is over."""

import json
from collections.abc import Collection, Mapping
from math import inf
from typing import NamedTuple

from sqlalchemy import delete, func, select, update

from fedlens_server.engine.cohorts import downloads
from fedlens_server.engine.cohorts.members import Round
from fedlens_server.engine.task import GlobalModel, Task
from fedlens_server.engine.view import Federation, operation
from fedlens_server.store import Transaction, schema
from fedlens_server.store.method_state import Key

# Receipts that one transaction deletes: about 10 ms, for which updates wait.
MAX_RECEIPTS = 200
_rounds, _members = schema.rounds.c, schema.members.c
_RECEIPTS = "receipts"


class Holding(NamedTuple):
    """The owners of a task's blobs, apart from its bundles."""

    state_blobs: Mapping[Key, bytes]
    round: Round | None
    evaluation: GlobalModel | None
    copies: Mapping[int, Collection[bytes]]

    @classmethod
    def of(cls, task: Task) -> "Holding":
        """The present owners."""
        return cls(task.state_blobs, task.round, task.evaluation, task.copies)


def reachable(federation: Federation, instead: Mapping[int, Holding]) -> set[bytes]:
    """Digests of all blobs in use: stored ones, computed ones, and the sources of these.

    Args:
        federation: All tasks.
        instead: By task the owners of its blobs after this commit.
    """
    now = federation.clock.now()
    found = {digest for digest, until in federation.store.blobs.kept_until.items() if until > now}
    for task in federation.tasks.values():
        found |= _held(task, instead.get(task.id, Holding.of(task)))
        for model in task.awaited_evaluations(federation.clock.elapsed()):
            found |= downloads.fetchable(model.sets)
    computed = federation.store.blobs.computed
    return found.union(*(computed[digest].sources for digest in found & computed.keys()))


def sweep(
    federation: Federation,
    transaction: Transaction,
    task: Task,
    holding: Holding,
    freed: Collection[bytes],
    *,
    ended: bool,
) -> None:
    """Delete in a transaction the blobs that were unreachable at the last sweep and still are.

    Args:
        federation: All tasks.
        transaction: Gives the blobs of `task` other owners.
        task: The task that goes on or ends.
        holding: The owners of its blobs after this commit.
        freed: Blobs of forgotten clients; the unreachable ones are deleted now.
        ended: The task ends; its blobs are deleted now, as there may be no later sweep.
    """
    reached = reachable(federation, {task.id: holding})
    downloads.drop_computed(federation, transaction, federation.store.blobs.computed.keys() - reached)
    unused = federation.store.blobs.sizes.keys() - reached
    last = _held(task, Holding.of(task)) if ended else set()
    gone = unused & (federation.unreachable | last).union(freed)
    federation.store.delete_blobs(transaction, gone)
    transaction.after_commit(lambda: setattr(federation, "unreachable", unused - gone))


def sweep_all(federation: Federation, transaction: Transaction) -> None:
    """Delete in a transaction all unreachable blobs: when the server starts."""
    reached = reachable(federation, {})
    downloads.drop_computed(federation, transaction, federation.store.blobs.computed.keys() - reached)
    federation.store.delete_blobs(transaction, federation.store.blobs.sizes.keys() - reached)


def delete_now(
    federation: Federation, transaction: Transaction, digests: Collection[bytes], instead: Mapping[int, Holding]
) -> None:
    """Delete in a transaction the unreachable ones of a forgotten client's blobs.

    Sources of other clients' weighted sums go with the round that these sums are for.
    """
    stored = federation.store.blobs.sizes.keys() & set(digests)
    needed = stored & reachable(federation, instead)
    federation.store.delete_blobs(transaction, stored - needed)
    transaction.after_commit(lambda: federation.unreachable.update(needed))


@operation(lambda before: _RECEIPTS)
def delete_receipts(federation: Federation, transaction: Transaction, before: float) -> float:
    """Delete rows of members of the round that ended first, if it ended by a time; their counts stay with the round.

    Args:
        federation: Not read: a round that has ended is in the database alone.
        transaction: Deletes at most `MAX_RECEIPTS`.
        before: By `Clock.now`.

    Returns:
        The end of the first round that still has receipts; infinite: there is none. Call again if it is not later than
        `before`.
    """
    first = select(_rounds.task, _rounds.number, _rounds.unlisted).where(_rounds.kept_from <= before)
    for row in transaction.execute(first.order_by(_rounds.kept_from).limit(1)).all():
        of_round = (_members.task == row.task, _members.round == row.number)
        found = transaction.execute(
            select(_members.client, _members.state, _members.bytes_received)
            .where(*of_round)
            .order_by(_members.client)
            .limit(MAX_RECEIPTS)
        ).all()
        counts = {state: each for state, *each in json.loads(row.unlisted or "[]")}
        for member in found:
            members, bytes_received = counts.get(member.state, (0, 0))
            counts[member.state] = [members + 1, bytes_received + member.bytes_received]
        unlisted = json.dumps([[state, *each] for state, each in sorted(counts.items())])
        kept: dict[str, None] = {"kept_from": None}
        if found:
            transaction.execute(delete(schema.members).where(*of_round, _members.client <= found[-1].client))
            kept = {} if len(found) == MAX_RECEIPTS else kept
        transaction.execute(
            update(schema.rounds)
            .where(_rounds.task == row.task, _rounds.number == row.number)
            .values(unlisted=unlisted, **kept)
        )
    oldest: float | None = transaction.execute(select(func.min(_rounds.kept_from))).scalar()
    return inf if oldest is None else oldest


def _held(task: Task, holding: Holding) -> set[bytes]:
    found = {*holding.state_blobs.values()}.union(*holding.copies.values(), *(bundle.parts for bundle in task.bundles))
    if holding.evaluation is not None:
        found |= downloads.fetchable(holding.evaluation.sets)
    if holding.round is not None:
        found.update(entry.sha256 for entry in holding.round.encoded.copy().values())
        for member in holding.round.members.values():
            found |= downloads.fetchable(member.sets)
            found.update(member.blobs.values())
    return found
