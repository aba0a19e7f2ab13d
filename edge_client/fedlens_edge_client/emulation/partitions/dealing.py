"""Owners dealt to clients: a client has the photos of one person or device, or of several; some owners no client has.

Those that no client has (*unseen*) follow from the seed alone and are the same ones for any number of clients: what
many clients learn and what few learn is measured on the same people.
"""

from fedlens_edge_client.emulation.partitions.camera import generator
from fedlens_edge_client.emulation.partitions.splits import Unservable


def unseen(owners: tuple[str, ...], seed: int, share: float) -> tuple[str, ...]:
    """The owners that no client has, ascending: the share of them, rounded, and at least one unless it is 0.

    Raises:
        Unservable: Nobody would be left.
    """
    if not share:
        return ()
    count = max(1, round(share * len(owners)))
    if count >= len(owners):
        raise Unservable(
            f"with unseen {share:g}, {count} of {len(owners)} people or devices are kept from training, which leaves "
            "none to train on: lower it, or add photos of others"
        )
    order = generator("fedlens/regime/unseen/v1", seed, 0, 0).permutation(len(owners))
    return tuple(sorted(owners[i] for i in order[:count]))


def deal(owners: tuple[str, ...], seed: int, clients: int) -> tuple[tuple[str, ...], ...]:
    """For each client its owners, ascending: one each, in their order, or all dealt evenly in a random one.

    Raises:
        Unservable: There are more clients than owners.
    """
    if clients > len(owners):
        raise Unservable(
            f"{clients} clients are more than the {len(owners)} people or devices whose photos there are to train on: "
            f"take at most {len(owners)} clients, or add photos of others"
        )
    if clients == len(owners):
        return tuple((owner,) for owner in owners)
    order = generator("fedlens/regime/deal/v1", seed, 0, 0).permutation(len(owners))
    return tuple(tuple(sorted(owners[i] for i in order[client::clients])) for client in range(clients))
