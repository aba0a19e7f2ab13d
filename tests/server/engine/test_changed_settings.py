"""What a task's changed settings mean for rounds that are open and for clients that have taken part already."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import update

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import updates
from fedlens_server.engine.arrivals import participation
from fedlens_server.errors import Unavailable, UpdateInvalid
from fedlens_server.rules.epsilon import epsilon_of
from fedlens_server.store import schema
from tests.server.bundles import tiny_bundle
from tests.server.engine.arrivals import Arrivals
from tests.server.engine.test_between_threads import before
from tests.server.engine.test_control import change
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, EVE, SEED, Bench

DRAWN = {"method": "fedavg", "rounds": 3, "population": 2, "cohort": "all", "seed": SEED}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "changed")) as found:
        found.enrol([ALICE, BOB, CAROL, DAVE])
        yield found


def take_part(server: Arrivals, client: bytes, times: int) -> None:
    for _ in range(times):
        assert server.has_place(client)
        server.report(client)
        server.advance()


def is_finished(server: Arrivals, client: bytes) -> bool:
    return server.check_in(client).HasField("finished")


def test_a_limit_that_comes_while_a_round_of_drawn_members_is_open_counts_their_updates(tmp_path: Path) -> None:
    with closing(Bench(tmp_path / "drawn").start()) as bench:
        change(bench, max_participations=2)
        bench.report(ALICE)
        assert bench.member(ALICE).state == admin_pb2.MEMBER_STATE_REPORTED
        assert bench.task.participations[ALICE].times == 1


def test_a_limit_holds_at_once_for_those_who_have_reached_it_and_no_longer_once_it_is_raised(server: Arrivals) -> None:
    server.take(goal=1, rest=0, rounds=20)
    take_part(server, ALICE, 3)

    change(server, max_participations=3)
    assert is_finished(server, ALICE) and server.has_place(BOB)
    change(server, max_participations=10)
    assert not is_finished(server, ALICE)
    server.reopen()
    assert not is_finished(server, ALICE)


def test_privacy_that_was_spent_under_a_higher_limit_is_told(server: Arrivals) -> None:
    server.take(goal=1, rest=0, rounds=20, max_participations=5, dp={"clip": 0.5, "noise": 4})
    take_part(server, ALICE, 3)
    assert server.has_place(ALICE)

    change(server, max_participations=2)
    server.report(ALICE)
    server.advance()

    privacy = server.show().task.privacy
    assert server.task.most_participations == privacy.participations == 4
    assert privacy.epsilon == privacy.spent == epsilon_of(4, 1e-6, 4)
    assert is_finished(server, ALICE)


@pytest.mark.parametrize(("before_s", "after_s"), [(3600, 60), (60, 3600)])
def test_a_changed_deadline_does_not_change_how_long_a_report_took(
    server: Arrivals, before_s: float, after_s: float
) -> None:
    server.take(goal=1, rest=0, rounds=20, deadline_s=before_s)
    assert server.has_place(ALICE)
    change(server, deadline_s=after_s)
    server.clock.wind(50)
    server.report(ALICE)
    server.advance()

    assert list(server.task.report_s) == [50]


def test_a_round_that_outlives_a_restart_took_all_the_time(server: Arrivals, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    server.take(goal=1, rest=0, rounds=20, deadline_s=3600, member_deadline_s=600)
    assert server.has_place(ALICE)
    server.clock.wind(5000)
    server.reopen()
    server.clock.wind(10)
    server.report(ALICE)
    server.advance()

    assert "'seconds': 5010" in caplog.text
    server.reopen()
    assert list(server.task.report_s) == [pytest.approx(5010 / 2, abs=1)]


def test_among_those_who_rest_who_left_places_unused_comes_last(server: Arrivals) -> None:
    server.take(goal=1, rest=1, rounds=20, member_deadline_s=10, patience_s=10, min_reports=1)
    for other in (BOB, CAROL):
        assert server.has_place(ALICE)
        server.clock.wind(11)
        assert server.has_place(other)
        server.report(other)
        server.advance()
    take_part(server, DAVE, 1)
    assert not server.has_place(ALICE) and not server.has_place(DAVE)

    server.clock.wind(11)
    alice, dave = server.come(ALICE, DAVE)

    assert dave.HasField("assignment") and alice.HasField("wait")


def test_a_member_that_asks_again_and_never_reports_leaves_its_place_to_others(server: Arrivals) -> None:
    server.take(goal=1, rounds=20, member_deadline_s=10, patience_s=10)
    for _ in range(3):
        assert server.has_place(ALICE)
        server.clock.wind(11)

    alice, bob = server.come(ALICE, BOB)

    assert bob.HasField("assignment") and alice.HasField("wait")


@pytest.mark.parametrize("day", [86_400, -86_400])
def test_a_jump_of_the_clock_changes_no_time_of_an_open_round(server: Arrivals, day: float) -> None:
    server.take(goal=1, rest=0, rounds=20, member_deadline_s=600, deadline_s=3600)
    before = server.check_in(ALICE).assignment

    server.clock.jump(day)
    server.advance()

    after = server.check_in(ALICE).assignment
    assert (after.round, after.time_left_ms) == (before.round, before.time_left_ms)
    assert server.reason(BOB) == "next_round"
    server.clock.wind(601)
    assert server.has_place(BOB)
    server.clock.wind(50)
    server.report(BOB)
    server.advance()
    assert server.ends == ["committed", "open"] and list(server.task.report_s) == [50]


def test_the_longest_wait_for_a_free_place_is_a_members_deadline(server: Arrivals) -> None:
    task = server.take(goal=1, member_deadline_s=600, patience_s=10).task

    waits = [participation.patience_s(task, misses) for misses in (0, 1, 2, 3, 4, 1_000_000)]

    assert waits == [10, 10, 160, 600, 600, 600]
    assert participation.patiences(task) == [10, 160, 600]


def test_by_default_those_that_come_by_the_pace_have_a_round_to_do_so(server: Arrivals) -> None:
    task = server.take(goal=1, member_deadline_s=600).task
    found = []
    for report_s in ([], [2.0], [100.0], [1000.0]):
        task.report_s.clear()
        task.report_s.extend(report_s)
        found.append(participation.patience_s(task, 0))

    assert found == [10, 10, 200, 600]


def test_a_clock_that_was_set_back_during_a_round_makes_no_pace(server: Arrivals) -> None:
    server.take(goal=1, rest=0, rounds=20)
    assert server.has_place(ALICE)
    server.clock.wind(50)
    server.report(ALICE)
    server.advance()
    earlier = update(schema.rounds).values(ended_at=schema.rounds.c.started_at - 86_400)
    server.federation.store.submit(lambda transaction: transaction.execute(earlier)).result()

    server.reopen()

    assert list(server.task.report_s) == []


def test_a_drawn_member_gets_no_place_in_another_task(server: Arrivals) -> None:
    server.create(json.dumps(DRAWN), [tiny_bundle()], "drawn")
    server.settle()
    server.take(goal=2, rest=0, name="arrivals")
    drawn = server.federation.tasks[1]
    assert drawn.round is not None
    member = next(iter(drawn.round.members))

    assert server.check_in(member, task=2).HasField("wait")
    assert server.check_in(member).assignment.task == drawn.id


@pytest.mark.parametrize("rule", ["exclude", "clip"])
def test_a_rule_that_comes_while_a_round_is_open_looks_at_the_updates_that_are_stored(
    server: Arrivals, rule: str
) -> None:
    server.enrol([EVE])
    server.take(goal=5, exclude=False, clip=False, cap=False)
    start = np.array(server.model()["fc.bias"])
    for client in (ALICE, BOB, CAROL, DAVE, EVE):
        assert server.has_place(client)
    for client in (ALICE, BOB, CAROL, DAVE):
        server.report(client, 1.0)
    server.report(EVE, 1000.0)

    change(server, **{rule: True})
    server.reopen()
    server.advance()

    # Eve's change is left out, or made as large as the others'.
    np.testing.assert_allclose(server.model()["fc.bias"], start + 1.0, rtol=1e-5)
    assert server.state(EVE) == ("excluded" if rule == "exclude" else "reported")


def test_an_update_on_its_way_when_a_limit_of_norms_is_set_is_sent_again_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Bench(tmp_path / "limited").start()) as bench:
        before(monkeypatch, updates, "_store", lambda: change(bench, max_update_norm=0.5))

        with pytest.raises(Unavailable, match="settings were changed while this update was on its way"):
            bench.report(ALICE, 1.0)
        with pytest.raises(UpdateInvalid, match=r"at most 0\.5 is allowed"):
            bench.report(ALICE, 1.0)
