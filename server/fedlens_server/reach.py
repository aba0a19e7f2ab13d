"""Which blobs are still in use; the others are deleted once they have been out of reach for one more round."""

from collections.abc import Collection, Mapping

from fedlens_server.federation import Federation, GlobalModel, Round
from fedlens_server.store import Transaction

Holding = tuple[Mapping[str, bytes], Round | None, GlobalModel | None]


def reachable(federation: Federation, instead: Mapping[int, Holding]) -> set[bytes]:
    """Digests of all blobs in use.

    Args:
        federation: What is there.
        instead: By task the state's blobs, round and global model that it will have after this commit.
    """
    now = federation.clock.now()
    found = {digest for digest, until in federation.store.blobs.kept_until.items() if until > now}
    for task in federation.tasks.values():
        kept, current, evaluation = instead.get(task.id, (task.kept_blobs, task.round, task.evaluation))
        for bundle in task.bundles:
            found |= bundle.parts
        found.update(kept.values())
        if evaluation is not None:
            found.update(item.sha256 for item in evaluation.sets)
        if current is not None:
            for member in current.members.values():
                found.update(item.sha256 for item in member.sets)
                if member.blob is not None:
                    found.add(member.blob)
    return found


def sweep(federation: Federation, transaction: Transaction, instead: Mapping[int, Holding]) -> None:
    """Delete in a transaction what was out of reach at the last sweep and still is."""
    unused = federation.store.blobs.sizes.keys() - reachable(federation, instead)
    gone = unused & federation.unreachable
    federation.store.delete_blobs(transaction, gone)
    transaction.after_commit(lambda: setattr(federation, "unreachable", unused - gone))


def sweep_all(federation: Federation, transaction: Transaction) -> None:
    """Delete in a transaction everything that is out of reach: when the server starts."""
    federation.store.delete_blobs(transaction, federation.store.blobs.sizes.keys() - reachable(federation, {}))


def delete_now(
    federation: Federation, transaction: Transaction, digests: Collection[bytes], instead: Mapping[int, Holding]
) -> None:
    """Delete in a transaction those of these blobs that are out of reach: for a client that is forgotten."""
    stored = federation.store.blobs.sizes.keys() & set(digests)
    federation.store.delete_blobs(transaction, stored - reachable(federation, instead))
