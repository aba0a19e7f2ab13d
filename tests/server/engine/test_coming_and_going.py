"""Federations whose clients come and go, hour after hour, on a clock of their own: fairness, ghosts, and those that
take places and never report.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from heapq import heapify, heappop, heappush
from pathlib import Path
from statistics import fmean

import pytest

from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, client_ids


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "arrivals")) as found:
        yield found


def days(server: Arrivals, here: dict[bytes, float], rounds: int) -> list[float]:
    """Let clients ask at their own pace until so many rounds have ended; returns how long each round took, in seconds.

    Args:
        server: With a task.
        here: Probability by client that it is there in a minute, and asks.
        rounds: How many.
    """
    generator = random.Random(5)
    lengths, opened = [], server.clock.now()
    while len(lengths) < rounds:
        asking = [client for client, often in here.items() if generator.random() < often]
        generator.shuffle(asking)
        for client, answer in zip(asking, server.come(*asking), strict=True):
            if answer.HasField("assignment") and len(server.ends) == len(lengths) + 1:
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
    assert server.federation.member_events[1, "resting"] == 0


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


def at_the_told_pace(
    server: Arrivals, honest: Sequence[bytes], idle: Sequence[bytes], rounds: int, eager: Sequence[bytes] = ()
) -> list[float]:
    """Let clients ask when they are told to, until so many rounds have ended; the seconds that each round took.

    Args:
        server: With a task.
        honest: They report within a minute.
        idle: They let their time run out, and ask again within a minute after.
        rounds: How many.
        eager: They report as honest ones, and ask whenever anybody does.
    """
    generator = random.Random(5)
    to_come = [(generator.uniform(0, 60), client, False) for client in [*honest, *idle]]
    heapify(to_come)
    now, opened, lengths, eager_now = 0.0, 0.0, list[float](), set(eager)
    while len(lengths) < rounds:
        when, client, reports = heappop(to_come)
        server.clock.wind(when - now)
        now = when
        current = server.task.round
        if reports and current is not None and client in current.members:  # else the round ended without it
            server.report(client)
        server.settle_places()
        server.advance()
        if len(server.ends) > len(lengths) + 1:
            lengths.append(now - opened)
            opened = now
        for one, answer in zip(waiting := sorted(eager_now), server.come(*waiting), strict=True):
            if answer.HasField("assignment"):
                eager_now.remove(one)
                heappush(to_come, (now + generator.uniform(20, 40), one, True))
        if client in eager:
            eager_now.add(client)
            continue
        answer = server.check_in(client)
        if answer.HasField("wait"):
            heappush(to_come, (now + answer.wait.retry_after_ms / 1000, client, False))
        elif client in idle:
            heappush(to_come, (now + answer.assignment.time_left_ms / 1000 + generator.uniform(1, 60), client, False))
        else:
            heappush(to_come, (now + generator.uniform(20, 40), client, True))
    return lengths


@pytest.mark.slow
def test_clients_that_never_report_hold_rounds_up_only_until_each_has_missed_twice(tmp_path: Path) -> None:
    crowd = client_ids(24)
    honest, idle = crowd[:12], crowd[12:]
    took = {}
    for among in ((), idle):
        with closing(Arrivals(tmp_path / f"beside {len(among)}")) as server:
            server.take(goal=3, over_selection=1.3, rounds=160)
            server.enrol(crowd)
            took[len(among)] = at_the_told_pace(server, honest, among, rounds=140)
            missed = [server.task.participations[client].misses for client in among]

    assert min(missed) >= 2
    assert fmean(took[12][-40:]) <= 1.2 * fmean(took[0][-40:])


@pytest.mark.parametrize(("after_s", "misses"), [(59, 0), (60, 1)])
def test_a_place_is_left_unused_only_if_its_time_is_over(server: Arrivals, after_s: float, misses: int) -> None:
    server.take(goal=1, over_selection=2, member_deadline_s=60, deadline_s=600)
    server.enrol([ALICE, BOB])
    server.come(ALICE, BOB)
    server.clock.wind(after_s)
    server.report(ALICE)

    server.advance()

    assert server.state(BOB) == "missed"
    assert server.task.participations[BOB].misses == misses


def test_a_place_of_which_its_client_never_heard_is_not_left_unused(server: Arrivals) -> None:
    server.take(goal=1)
    server.enrol([ALICE, BOB])
    assert server.has_place(ALICE)
    server.places.give_back(ALICE)
    assert server.has_place(BOB)
    server.report(BOB)

    server.advance()

    assert server.state(ALICE) == "missed"
    assert server.task.participations[ALICE].misses == 0


@pytest.mark.slow
def test_a_few_that_ask_all_the_time_do_not_take_most_places(server: Arrivals) -> None:
    crowd = client_ids(104)
    server.take(goal=5, over_selection=1.3, rounds=60)
    server.enrol(crowd)
    eager = crowd[:4]
    server.come(*crowd)  # from now on all are present, and reports are followed by rest

    at_the_told_pace(server, crowd[4:], (), rounds=50, eager=eager)

    # Places go to those that rest only where nobody else comes; after 10 s of waiting, 37 did.
    rested = server.federation.member_events[1, "resting"]
    assert rested < 10
    assert max(times(server, 50)[client] for client in eager) <= 2 * 50 * 7 / 104 + 1 + rested
