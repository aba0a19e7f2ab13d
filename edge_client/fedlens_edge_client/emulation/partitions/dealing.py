"""Owners dealt to clients: each client has the photos of one or several people or devices.

*Unseen* owners have no client. They depend on the seed alone, so results for many and for few clients are measured on
the same people.
"""

from fedlens_edge_client.emulation.partitions.camera import generator
from fedlens_edge_client.emulation.partitions.splits import Unservable


def unseen(owners: tuple[str, ...], seed: int, fraction: float) -> tuple[str, ...]:
    """The unseen owners, ascending: `fraction` of all, rounded, and at least one unless it is 0.

    Raises:
        Unservable: No owner would be left.
    """
    if not fraction:
        return ()
    count = max(1, round(fraction * len(owners)))
    if count >= len(owners):
        raise Unservable(
            f"with unseen {fraction:g}, {count} of {len(owners)} people or devices are kept from training, which "
            "leaves none to train on: lower it, or add photos of others"
        )
    order = generator("unseen/v1", seed, 0, 0).permutation(len(owners))
    return tuple(sorted(owners[i] for i in order[:count]))


def deal(owners: tuple[str, ...], seed: int, clients: int) -> tuple[tuple[str, ...], ...]:
    """Each client's owners, ascending: one each in the order of names, or all dealt evenly in random order.

    Raises:
        Unservable: There are more clients than owners.
    """
    if clients > len(owners):
        raise Unservable(
            f"{clients} clients are too many for {len(owners)} people or devices with photos to train on: "
            f"take at most {len(owners)} clients, or add photos of others"
        )
    if clients == len(owners):
        return tuple((owner,) for owner in owners)
    order = generator("deal/v1", seed, 0, 0).permutation(len(owners))
    return tuple(tuple(sorted(owners[i] for i in order[client::clients])) for client in range(clients))
