"""Federations whose clients come and go, hour after hour, on a clock of their own: fairness, ghosts, and those that
take places and never report.
"""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import client_ids


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "arrivals")) as found:
        yield found


def days(server: Arrivals, here: dict[bytes, float], rounds: int, idle: frozenset[bytes] = frozenset()) -> list[float]:
    """Let clients ask at their own pace until so many rounds have ended; returns how long each round took, in seconds.

    Args:
        server: With a task.
        here: Probability by client that it is there in a minute, and asks.
        rounds: How many.
        idle: Those of them that take places and never report.
    """
    generator = random.Random(5)
    lengths, opened = [], server.clock.now()
    while len(lengths) < rounds:
        asking = [client for client, often in here.items() if generator.random() < often]
        generator.shuffle(asking)
        for client, answer in zip(asking, server.come(*asking), strict=True):
            if answer.HasField("assignment") and client not in idle and len(server.ends) == len(lengths) + 1:
                server.report(client)
        server.clock.wind(60)
        server.advance()
        if len(server.ends) > len(lengths) + 1 or server.ends[-1] == "committed":
            lengths.append(server.clock.now() - opened)
            opened = server.clock.now()
    assert set(server.ends[:rounds]) == {"committed"}
    return lengths


def times(server: Arrivals, rounds: int) -> Counter[bytes]:
    """The rounds of which each client was a member."""
    return Counter(client for number in range(1, rounds + 1) for client in server.members(number))


@pytest.mark.slow
def test_those_who_are_always_here_do_not_take_every_place(server: Arrivals) -> None:
    crowd = client_ids(100)
    server.take(goal=4, rounds=40, presence_s=3600)
    server.enrol(crowd)
    here = dict.fromkeys(crowd, 0.15) | dict.fromkeys(crowd[:5], 1.0)

    days(server, here, rounds=40)

    # All were seen in the hour: 2 x rounds x places / clients, and one.
    assert max(times(server, 40).values()) <= 2 * 40 * 4 / 100 + 1


def test_rounds_do_not_wait_for_the_many_that_have_left(server: Arrivals) -> None:
    crowd = client_ids(1000)
    server.take(goal=10, rounds=5)
    server.enrol(crowd)

    lengths = days(server, dict.fromkeys(crowd[:20], 1.0), rounds=5)

    assert max(lengths) <= 120


def test_with_fewer_clients_than_the_goal_each_round_ends_at_its_deadline(server: Arrivals) -> None:
    crowd = client_ids(100)
    server.take(goal=10, min_reports=5, rounds=3, deadline_s=600)
    server.enrol(crowd)

    lengths = days(server, dict.fromkeys(crowd[:8], 1.0), rounds=3)

    assert lengths == [600, 600, 600]


@pytest.mark.slow
def test_clients_that_never_report_hold_rounds_up_only_until_each_has_missed_twice(server: Arrivals) -> None:
    crowd = client_ids(24)
    honest, idle = crowd[:12], frozenset(crowd[12:])
    server.take(goal=3, rounds=40, member_deadline_s=120, rest=0)
    server.enrol(crowd)

    lengths = days(server, dict.fromkeys(crowd, 0.5), rounds=40, idle=idle)

    participations = server.task.participations
    assert all(participations[client].misses >= 2 for client in idle)
    assert sum(lengths[-20:]) <= 1.2 * 20 * 60
    assert not idle & {client for number in range(30, 40) for client in server.members(number)}
    assert set(honest) <= set(times(server, 40))
