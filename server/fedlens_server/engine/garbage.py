"""Garbage collection: a blob is deleted one round after it became unreachable."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from fedlens_server.engine.cohorts import downloads
from fedlens_server.engine.cohorts.members import Round
from fedlens_server.engine.view import Federation, GlobalModel, Task
from fedlens_server.store import Transaction
from fedlens_server.store.method_state import Key


class Holding(NamedTuple):
    """The owners of a task's blobs, apart from its bundles."""

    state_blobs: Mapping[Key, bytes]
    round: Round | None
    evaluation: GlobalModel | None

    @classmethod
    def of(cls, task: Task) -> "Holding":
        """The present owners."""
        return cls(task.state_blobs, task.round, task.evaluation)


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


def _held(task: Task, holding: Holding) -> set[bytes]:
    found = {*holding.state_blobs.values()}.union(*(bundle.parts for bundle in task.bundles))
    if holding.evaluation is not None:
        found |= downloads.fetchable(holding.evaluation.sets)
    if holding.round is not None:
        found.update(entry.sha256 for entry in holding.round.encoded.copy().values())
        for member in holding.round.members.values():
            found |= downloads.fetchable(member.sets)
            found.update(member.blobs.values())
    return found
