"""Repeated requests: later and later, never all clients at once, and never before the server says."""

import pytest

from fedlens_edge_client.client.retrying import Backoff, TryAgain, repeat
from fedlens_edge_client.errors import Unreachable

QUICK = Backoff(first_s=0.001, most_s=0.004)


async def waits_of(failures: int, backoff: Backoff, after_s: float = 0.0) -> list[float]:
    """The waits, in seconds, of a request that fails so many times before it succeeds."""
    left = failures
    told: list[float] = []

    async def attempt() -> str:
        nonlocal left
        left -= 1
        if left >= 0:
            raise TryAgain("busy", after_s)
        return "done"

    assert await repeat(attempt, backoff, lambda reason, wait_s, number: told.append(wait_s)) == "done"
    return told


async def test_waits_are_random_so_that_clients_do_not_come_back_together() -> None:
    first_waits = [(await waits_of(1, QUICK, after_s=0.002))[0] for _ in range(8)]

    assert len(set(first_waits)) == 8
    assert all(0.002 <= wait_s <= 0.002 + QUICK.first_s for wait_s in first_waits)


async def test_waits_grow_up_to_their_limit() -> None:
    waits = await waits_of(12, QUICK)

    # Each is drawn from 0 to 1, 2, 4, 4, ... ms.
    assert all(wait_s <= most_s for wait_s, most_s in zip(waits, [0.001, 0.002] + [0.004] * 10, strict=True))
    # Ten draws from 0 to 4 ms are all below 1 ms with a probability of one in a million.
    assert max(waits[2:]) > 0.001


async def test_a_thousand_failures_are_no_other_than_ten() -> None:
    assert max(await waits_of(1100, Backoff(first_s=1e-9, most_s=1e-9))) <= 1e-9


async def test_what_cannot_succeed_in_time_is_given_up_with_the_last_reason() -> None:
    async def attempt() -> str:
        raise TryAgain("storage-full: no room", 5.0)

    with pytest.raises(Unreachable, match=r"given up after 1 attempts in .* s: storage-full: no room"):
        await repeat(attempt, Backoff(first_s=0.001, most_s=0.001, give_up_after_s=1.0))
