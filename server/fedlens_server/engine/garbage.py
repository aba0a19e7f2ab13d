"""Which blobs are still in use; the others are deleted once they have been out of reach for one more round."""

from collections.abc import Collection, Mapping

from fedlens_server.engine import weighted_sums
from fedlens_server.engine.view import Federation, GlobalModel, Round, Task, fetchable
from fedlens_server.store import Transaction

Holding = tuple[Mapping[str, bytes], Round | None, GlobalModel | None]


def reachable(federation: Federation, instead: Mapping[int, Holding]) -> set[bytes]:
    """Digests of all blobs in use: stored ones, those computed from others, and those others.

    Args:
        federation: What is there.
        instead: By task the state's blobs, round and global model that it will have after this commit.
    """
    now = federation.clock.now()
    found = {digest for digest, until in federation.store.blobs.kept_until.items() if until > now}
    for task in federation.tasks.values():
        found |= _held(task, instead.get(task.id, _holding(task)))
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
    """Delete in a transaction what was out of reach at the last sweep and still is.

    Args:
        federation: What is there.
        transaction: It has `task` hold other blobs.
        task: The one that goes on or ends.
        holding: What it will hold.
        freed: Blobs of forgotten clients; of these, what is out of reach is deleted now.
        ended: Whether it ends; what it then lets go of is deleted now, as there may be no later sweep.
    """
    reached = reachable(federation, {task.id: holding})
    weighted_sums.drop(federation, transaction, federation.store.blobs.computed.keys() - reached)
    unused = federation.store.blobs.sizes.keys() - reached
    last = _held(task, _holding(task)) if ended else set()
    gone = unused & (federation.unreachable | last).union(freed)
    federation.store.delete_blobs(transaction, gone)
    transaction.after_commit(lambda: setattr(federation, "unreachable", unused - gone))


def sweep_all(federation: Federation, transaction: Transaction) -> None:
    """Delete in a transaction everything that is out of reach: when the server starts."""
    reached = reachable(federation, {})
    weighted_sums.drop(federation, transaction, federation.store.blobs.computed.keys() - reached)
    federation.store.delete_blobs(transaction, federation.store.blobs.sizes.keys() - reached)


def delete_now(
    federation: Federation, transaction: Transaction, digests: Collection[bytes], instead: Mapping[int, Holding]
) -> None:
    """Delete in a transaction those of these blobs that are out of reach: for a client that is forgotten.

    What others' weighted sums still need goes with the round that these are for.
    """
    stored = federation.store.blobs.sizes.keys() & set(digests)
    needed = stored & reachable(federation, instead)
    federation.store.delete_blobs(transaction, stored - needed)
    transaction.after_commit(lambda: federation.unreachable.update(needed))


def _holding(task: Task) -> Holding:
    return task.kept_blobs, task.round, task.evaluation


def _held(task: Task, holding: Holding) -> set[bytes]:
    kept, current, evaluation = holding
    found = {*kept.values()}.union(*(bundle.parts for bundle in task.bundles))
    if evaluation is not None:
        found |= fetchable(evaluation.sets)
    if current is not None:
        for member in current.members.values():
            found |= fetchable(member.sets)
            if member.blob is not None:
                found.add(member.blob)
    return found
