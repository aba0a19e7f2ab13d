"""The setting `canary`: the first clients with a bundle report before others get it."""

import json
from collections.abc import Iterator
from contextlib import closing
from math import inf
from pathlib import Path

import pytest

from fedlens_proto.v1 import admission_pb2, enrolment_pb2, update_pb2
from fedlens_server.engine import garbage
from fedlens_server.engine.operators import control
from fedlens_server.engine.operators.access import Operator
from fedlens_server.planning.task_settings import SettingsError, parse
from tests.server.concatenated import concatenated
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, CAPABILITIES, CAROL, DAVE, EVE, Bench, client_ids, update_of
from tests.server.methods.tasks import changed
from tests.server.networks import network

EVERYBODY = [ALICE, BOB, CAROL, DAVE, EVE]
MANY = [client for client in client_ids(25) if client not in EVERYBODY]
KIM = Operator(name="kim", role=admission_pb2.TOKEN_ROLE_OPERATE)
SMALL = network()
LARGE = changed(network(width=5), model="large")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    """A server with five enrolled clients and no task."""
    with closing(Arrivals(tmp_path / "canary")) as found:
        found.enrol(EVERYBODY)
        yield found


@pytest.fixture
def two_models(tmp_path: Path) -> Iterator[Arrivals]:
    """A server without a task; Alice, Bob and Carol run the small model, Dave, Eve and 20 others the large one."""
    with closing(Arrivals(tmp_path / "canary")) as found:
        for clients, model in ((EVERYBODY[:3], SMALL.parsed.model), ([DAVE, EVE, *MANY], "large")):
            named = enrolment_pb2.Capabilities(models=[model])
            named.MergeFrom(CAPABILITIES)
            found.enrol(clients, capabilities=named)
        yield found


def places(server: Arrivals, *clients: bytes) -> list[bytes]:
    """Those of the clients that have a place, once all have asked at the same moment."""
    answers = server.come(*clients)
    return [client for client, answer in zip(clients, answers, strict=True) if answer.HasField("assignment")]


def change(server: Arrivals, **settings: object) -> None:
    control.change(server.federation, server.task, json.dumps(settings), KIM).result()


def test_so_many_places_are_given_before_the_rest(server: Arrivals) -> None:
    server.take(goal=50, canary=3)
    crowd = client_ids(100)
    server.enrol(crowd)

    canaries = places(server, *crowd)
    for client in canaries[:2]:
        server.report(client)

    assert len(canaries) == 3
    # One report is missing, and the third canary still holds its place.
    assert places(server, *crowd) == canaries[2:]
    server.report(canaries[2])
    # 47 updates are wanted yet.
    assert len(places(server, *crowd)) == 47


def test_who_is_held_back_is_told_to_wait_for_the_next_round_even_if_it_rests(server: Arrivals) -> None:
    server.take(goal=2, min_reports=1, canary=2, rest=9, deadline_s=60)
    server.report(ALICE)
    server.clock.wind(60)
    server.advance()
    server.assignment(BOB)

    assert [server.reason(client) for client in (ALICE, CAROL)] == ["next_round", "next_round"]


def test_places_that_only_canaries_can_get_count_as_taken(server: Arrivals) -> None:
    server.take(goal=3, canary=1, patience_s=10, member_deadline_s=600)
    server.assignment(ALICE)
    server.places.hold(BOB, server.request())
    server.settle_places()

    # No place becomes free for those who rest, and nobody looks for one before Alice's deadline.
    assert server.task.round is not None
    assert server.task.round.free_since is None
    assert server.places.ask(BOB, server.request()) is None
    assert server.places.next_look() == server.clock.elapsed() + 600


def test_held_polls_get_the_rest_when_the_last_canary_has_reported(server: Arrivals) -> None:
    server.take(goal=4, canary=1)
    server.assignment(ALICE)
    given: list[bytes] = []
    server.places.on_given = given.extend
    for client in (BOB, CAROL, DAVE, EVE):
        server.places.hold(client, server.request())
    server.report(ALICE)

    server.places.look()
    server.settle_places()

    # Three of the four updates are wanted yet.
    assert len(given) == 3


@pytest.mark.parametrize("ends", ["fails", "is quarantined", "is too slow", "is forgotten"])
def test_a_canary_that_does_not_report_gives_its_place_to_another(server: Arrivals, ends: str) -> None:
    server.take(goal=5, canary=2, member_deadline_s=60)
    server.assignment(ALICE)
    end = {
        "fails": lambda: server.fail(ALICE),
        "is quarantined": lambda: server.quarantine(server.expect(ALICE)),
        "is too slow": lambda: server.clock.wind(60),
        "is forgotten": lambda: server.forget(ALICE),
    }

    end[ends]()

    assert len(places(server, BOB, CAROL, DAVE, EVE)) == 2


def test_a_canary_that_is_too_slow_counts_when_it_reports_after_all(server: Arrivals) -> None:
    server.take(goal=5, canary=2, member_deadline_s=60)
    slow = server.assignment(ALICE)
    server.clock.wind(60)
    first, second = places(server, BOB, CAROL, DAVE, EVE)

    server.send(ALICE, slow, *update_of(slow, server.tensors(slow)))

    # One report is missing, for which two canaries hold a place.
    assert places(server, BOB, CAROL, DAVE, EVE) == [first, second]
    server.report(first)
    assert len(places(server, BOB, CAROL, DAVE, EVE)) == 3


def test_a_broken_bundle_ends_the_round_having_reached_so_many_at_a_time(server: Arrivals) -> None:
    server.take(goal=20, canary=2, max_failures=6, max_consecutive_abandoned=1)
    crowd = client_ids(100)
    server.enrol(crowd)
    reached = []

    for _ in range(3):
        reached.append(places(server, *crowd))
        for client in reached[-1]:
            server.fail(client)
    server.advance()

    assert [len(found) for found in reached] == [2, 2, 2]
    assert server.ends == ["abandoned"]


def test_bundles_do_not_wait_for_each_other(two_models: Arrivals) -> None:
    server = two_models
    server.take(SMALL, LARGE, method="local_only", goal=9, canary=1)
    canaries = places(server, *EVERYBODY, *MANY)
    bundles = {server.member(client).bundle: client for client in canaries}
    assert (len(canaries), bundles.keys()) == (2, {SMALL.id, LARGE.id})

    assert server.show().task.awaited_canaries == [1, 1]
    server.fail(bundles[LARGE.id])
    server.upload(bundles[SMALL.id])
    shown = server.show().task
    assert shown.awaited_canaries == [0, 1]
    (notice,) = shown.notices
    assert notice == f"canaries: other clients get places after 1 more report with bundle {LARGE.id.hex()[:12]}"

    # The others with the small bundle, and one more canary of the large one.
    given = places(server, *EVERYBODY, *MANY)
    assert [server.member(client).bundle for client in given] == [SMALL.id, SMALL.id, LARGE.id]


def test_a_bundle_whose_canaries_are_at_work_leaves_free_places_to_the_other(two_models: Arrivals) -> None:
    server = two_models
    settings = {"goal": 9, "min_reports": 3, "canary": 2, "rest": 9, "patience_s": 10, "deadline_s": 60}
    server.take(SMALL, LARGE, method="local_only", **settings)
    for client in (ALICE, BOB, EVE):
        server.upload(client)
    server.clock.wind(60)
    server.advance()
    server.assignment(DAVE)

    # Eve rests, and places are free, but none that she could get; nor could she if nobody took them.
    assert server.reason(EVE) == "next_round"
    assert server.has_place(CAROL)
    server.clock.wind(11)
    assert server.places.ask(EVE, server.request()) is None
    assert server.reason(EVE) == "next_round"


def test_the_same_client_counts_in_each_round(server: Arrivals) -> None:
    server.take(goal=2, min_reports=1, canary=2, rest=0, deadline_s=60)
    for _ in range(2):
        server.report(ALICE)
        server.clock.wind(60)
        server.advance()

    shown = server.show().task
    assert (shown.awaited_canaries, shown.notices) == ([], [])
    assert len(places(server, ALICE, BOB)) == 2


def test_a_phase_for_everyone_has_canaries_too(server: Arrivals) -> None:
    server.take(goal=1, rounds=1, canary=2, personal_evaluation=True)
    server.report(ALICE)
    server.advance()

    (canary,) = places(server, *EVERYBODY)
    asked = server.assignment(canary).local_plan.evaluations
    sums = [update_pb2.EvaluationSums(label=each.label, count=1, correct=1) for each in asked]
    server.upload(canary, None, 0, evaluations=sums)

    assert len(places(server, *EVERYBODY)) == 4


def test_who_catches_up_with_an_earlier_phase_is_no_canary(server: Arrivals) -> None:
    options = {"clusters": 2, "extractor_rounds": 3, "classifier_rounds": 1}
    settings = {"goal": 2, "min_reports": 2, "rounds": 5, "deadline_s": 60, "rest": 0, "canary": 3}
    server.take(network(), concatenated(2), method="fedconcat", options=options, **settings)
    for client, counts in ((ALICE, (9, 1)), (BOB, (1, 9))):
        server.assignment(client)
        server.upload(client, None, 10, class_counts=counts)
    server.clock.wind(60)
    server.advance()
    assert places(server, ALICE, BOB) in ([ALICE], [BOB])  # the third canary of the extractor's bundle

    late = [server.assignment(client) for client in (CAROL, DAVE)]
    server.upload(CAROL, None, 10, class_counts=(8, 2))

    assert [each.phase for each in late] == [0, 0]
    assert len(places(server, ALICE, BOB)) == 1


def test_a_restart_keeps_the_count(server: Arrivals) -> None:
    server.take(goal=5, canary=2)
    server.report(ALICE)
    server.assignment(BOB)

    server.reopen()

    assert places(server, CAROL, DAVE, EVE) == []
    server.report(BOB)
    server.reopen()
    assert places(server, CAROL, DAVE, EVE) == [CAROL, DAVE, EVE]


def test_reports_count_after_their_receipts_are_deleted(server: Arrivals) -> None:
    server.take(goal=3, min_reports=1, canary=2, deadline_s=60)
    server.report(ALICE)
    server.clock.wind(60)
    server.advance()

    assert garbage.delete_receipts(server.federation, server.clock.now()).result() == inf
    server.reopen()

    (canary,) = places(server, BOB, CAROL)
    server.report(canary)
    # Two of the three updates are wanted yet.
    assert len(places(server, *EVERYBODY)) == 2


def test_0_gives_all_places_at_once(server: Arrivals) -> None:
    server.take(goal=5, canary=0)

    assert places(server, *EVERYBODY) == EVERYBODY


def test_an_operator_can_let_the_others_in_and_ask_for_canaries_again(server: Arrivals) -> None:
    server.take(goal=5, canary=1)
    crowd = client_ids(20)
    server.enrol(crowd)
    assert len(places(server, *crowd)) == 1

    change(server, canary=0)
    given = places(server, *crowd)
    assert len(given) == 5

    for client in given[:3]:
        server.fail(client)
    change(server, canary=2)
    # Two hold places already.
    assert places(server, *crowd) == given[3:]


def test_three_is_the_default() -> None:
    assert parse('{"method": "fedavg", "rounds": 1, "selection": "arrivals", "goal": 9}').canary == 3


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"canary": 3}, 'canary: found 3, must be left out with selection "drawn"'),
        (
            {"selection": "arrivals", "population": None, "goal": 9, "canary": -1},
            "canary: found -1, must be a whole number, 0 to 1000000 (clients)",
        ),
    ],
)
def test_it_is_refused_where_members_are_drawn_and_below_0(
    bench: Bench, settings: dict[str, object], text: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        bench.make(**settings)

    assert text in str(refused.value)
