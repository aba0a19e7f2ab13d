"""Rounds that take the clients that come: places, deadlines, rest, and what each client is told."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from fedlens_proto.v1 import assignment_pb2, update_pb2
from fedlens_server.engine import assignments, clients, updates
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.operators import bans
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.errors import RoundClosed
from fedlens_server.planning.task_settings import SettingsError
from tests.server.concatenated import concatenated
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, EVALUATORS, EVE, PHONE, client_ids, update_of
from tests.server.methods.test_fedap import with_running_statistics
from tests.server.networks import network

EVERYBODY = [ALICE, BOB, CAROL, DAVE, EVE]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    """A server with five enrolled clients and no task."""
    with closing(Arrivals(tmp_path / "arrivals")) as found:
        found.enrol(EVERYBODY)
        yield found


def test_a_task_starts_without_anybody_and_an_empty_round_waits(server: Arrivals) -> None:
    server.take()

    server.clock.wind(100 * 86400)
    server.advance()

    assert server.ends == ["open"]
    assert server.members() == {}


def test_who_comes_gets_a_place_while_there_is_room(server: Arrivals) -> None:
    server.take(goal=2)

    assert [server.has_place(client) for client in (ALICE, BOB, CAROL)] == [True, True, False]
    assert server.reason(CAROL) == "next_round"


def test_a_thousand_that_come_at_once_get_thirteen_places(server: Arrivals) -> None:
    server.take(goal=10, over_selection=1.3)
    crowd = client_ids(1000)
    server.enrol(crowd)

    answers = server.come(*crowd)

    assert sum(answer.HasField("assignment") for answer in answers) == 13


def test_a_round_ends_with_its_goal_and_the_next_one_takes_others(server: Arrivals) -> None:
    server.take(goal=2)
    for client in (ALICE, BOB):
        server.report(client)

    server.advance()

    assert server.ends == ["committed", "open"]
    assert server.assignment(CAROL).round == 2


def test_a_round_that_wants_more_than_come_ends_at_its_deadline_with_enough(server: Arrivals) -> None:
    server.take(goal=4, deadline_s=1000)
    server.clock.wind(5000)  # the deadline counts from the first member
    server.report(ALICE)
    server.report(BOB)

    server.clock.wind(999)
    server.advance()
    assert server.ends == ["open"]
    server.clock.wind(1)
    server.advance()

    assert server.ends == ["committed", "open"]


def test_a_round_that_is_overdue_ends_with_the_update_that_makes_it_enough(server: Arrivals) -> None:
    server.take(goal=4, deadline_s=1000)
    server.report(ALICE)
    assert not server.show().rounds[0].overdue
    server.clock.wind(50_000)
    server.advance()
    assert server.ends == ["open"]
    assert server.show().rounds[0].overdue

    server.report(BOB)
    server.advance()

    assert server.ends == ["committed", "open"]
    assert not any(each.overdue for each in server.show().rounds)


def test_a_member_that_asks_again_gets_the_same_assignment_and_the_time_that_is_left(server: Arrivals) -> None:
    server.take(member_deadline_s=600)
    first = server.assignment(ALICE)

    server.clock.wind(100)
    second = server.assignment(ALICE)

    assert (first.time_left_ms, second.time_left_ms) == (600_000, 500_000)
    assert (first.seed, first.sets) == (second.seed, second.sets)


def test_the_place_of_a_member_whose_deadline_is_over_goes_to_another(server: Arrivals) -> None:
    server.take(goal=1, member_deadline_s=600, min_reports=1)
    slow = server.assignment(ALICE)
    assert server.reason(BOB) == "next_round"

    server.clock.wind(600)

    assert server.has_place(BOB)
    assert server.reason(ALICE) == "next_round"
    # It stays a member, and its update counts while the round is open.
    header, raw = _trained(server, slow)
    server.send(ALICE, slow, header, raw)
    server.advance()
    assert (server.state(ALICE), server.state(BOB)) == ("reported", "missed")


def test_a_member_whose_deadline_is_over_gets_a_new_one_where_there_is_room(server: Arrivals) -> None:
    server.take(goal=2, member_deadline_s=600)
    first = server.assignment(ALICE)

    server.clock.wind(700)
    second = server.assignment(ALICE)

    assert (second.round, second.seed, second.time_left_ms) == (first.round, first.seed, 600_000)


def test_a_failure_frees_a_place_and_its_member_is_not_asked_again_in_this_round(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1)
    server.assignment(ALICE)

    server.fail(ALICE)

    assert server.reason(ALICE) == "next_round"
    assert server.has_place(BOB)


def test_one_missing_report_calls_one_client_and_no_crowd(server: Arrivals) -> None:
    server.take(goal=10, over_selection=1.3)
    crowd = client_ids(200)
    server.enrol(crowd)
    given = [client for client, answer in zip(crowd, server.come(*crowd), strict=True) if answer.HasField("assignment")]
    for client in given[:9]:
        server.report(client)
    waiting = [client for client in crowd if client not in given]

    server.fail(given[9])

    # ceil((10 - 9) * 1.3) places are wanted, and three members still hold one.
    assert not any(answer.HasField("assignment") for answer in server.come(*waiting))


def test_so_many_failures_end_a_round(server: Arrivals) -> None:
    server.take(goal=2, max_failures=2, max_consecutive_abandoned=1)
    for client in (ALICE, BOB):
        server.assignment(client)
        server.fail(client)

    server.advance()

    assert server.ends == ["abandoned"]
    assert "2 failed" in server.show().rounds[0].reason


def test_a_client_rests_while_others_are_present_and_takes_a_place_that_stays_free(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, rest=1, patience_s=10)
    server.report(ALICE)
    server.advance()

    assert server.check_in(ALICE).wait.detail == "this client took part a short while ago"
    server.clock.wind(9)
    assert server.reason(ALICE) == "rest"
    server.clock.wind(1)

    assert server.has_place(ALICE)


def test_of_those_who_rest_the_one_that_reported_longest_ago_goes_first(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, rest=9, patience_s=0, rounds=9)
    for client in (CAROL, ALICE, BOB):
        server.report(client)
        server.advance()

    answers = server.come(ALICE, BOB, CAROL)

    assert [answer.HasField("assignment") for answer in answers] == [False, False, True]
    assert server.federation.member_events[1, "resting"] == 1


def test_in_a_small_federation_nobody_rests(server: Arrivals) -> None:
    server.take(goal=2)
    for client in (ALICE, BOB):
        server.report(client)
    server.advance()

    assert server.has_place(ALICE)


def test_rest_is_fair_by_those_present(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, rest="fair", rounds=9)
    crowd = client_ids(12)
    server.enrol(crowd)
    server.come(*crowd)  # twelve present and one place: six rounds of rest
    given = next(client for client in crowd if server.has_place(client))
    server.report(given)
    server.advance()

    assert server.reason(given) == "rest"
    server.clock.wind(2 * 7200)  # the others have not been seen since
    assert server.has_place(given)


def test_two_places_without_a_report_are_followed_by_rest(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, member_deadline_s=60, rounds=9)
    for client in (BOB, CAROL):
        server.assignment(ALICE)
        server.clock.wind(60)
        server.report(client)
        server.advance()

    assert (server.state(ALICE, 1), server.state(ALICE, 2)) == ("missed", "missed")
    assert server.reason(ALICE) == "rest"
    assert server.check_in(ALICE).wait.detail == "this client left its last places unused"
    assert server.has_place(BOB)


def test_who_has_too_few_photos_or_too_old_an_app_is_told_so(server: Arrivals) -> None:
    server.take(eligible={"num_examples": 20, "client_version": 7})

    (few,) = server.come(ALICE, num_examples=19, client_version=7)
    (old,) = server.come(ALICE, num_examples=20, client_version=6)
    (able,) = server.come(ALICE, num_examples=20, client_version=7)

    assert few.wait.detail == "19 train photos to offer; task 'task' takes clients with 20"
    assert old.wait.detail == "version 6 of the app; task 'task' needs 7"
    assert server.reason(BOB, num_examples=19) == "not_eligible"
    assert able.HasField("assignment")


def test_a_quarantined_client_sits_out_longer_each_time(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, rounds=9, max_failures=9)
    until = []
    for _ in range(2):
        server.assignment(ALICE)
        server.quarantine(server.expect(ALICE, number=server.task.next_round - 1))
        assert server.reason(ALICE) == "sits_out"
        started = server.clock.now()
        while server.reason(ALICE) == "sits_out":
            server.clock.wind(600)
        until.append(server.clock.now() - started)
        server.report(BOB)
        server.advance()

    assert until == [3600, 7200]


def test_a_quarantined_client_sits_out_for_a_month_at_most(server: Arrivals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participation, "MAX_QUARANTINE_S", 600.0)
    server.take(goal=1, min_reports=1, rounds=9, rest=0)
    server.assignment(ALICE)
    server.quarantine(server.expect(ALICE))
    server.report(BOB)
    server.advance()
    early = server.reason(ALICE)

    server.clock.wind(600)

    assert (early, server.has_place(ALICE)) == ("sits_out", True)


def test_a_client_has_one_place_over_all_tasks(server: Arrivals) -> None:
    server.take(name="one").take(name="two")

    (first,) = server.come(ALICE)
    (again,) = server.come(ALICE)
    (other,) = server.come(ALICE, task=3 - first.assignment.task)

    assert again.assignment.task == first.assignment.task
    assert other.assignment.task == first.assignment.task
    server.report(ALICE)
    (second,) = server.come(ALICE)
    assert {first.assignment.task, second.assignment.task} == {1, 2}


def test_of_two_tasks_the_one_with_the_greater_share_of_free_places_goes_first(server: Arrivals) -> None:
    server.take(name="half full", goal=2).take(name="empty", goal=9)
    server.come(BOB, task=1)

    (answer,) = server.come(ALICE)

    assert answer.assignment.task == 2


def test_a_held_poll_gets_a_place_that_becomes_free(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, member_deadline_s=600)
    server.assignment(ALICE)
    given: list[bytes] = []
    server.places.on_given = given.extend
    request = server.request()
    server.places.hold(BOB, request)
    server.places.hold(CAROL, request)
    server.places.release(CAROL)
    assert server.places.next_look() == server.clock.elapsed() + 600

    server.clock.wind(600)
    server.places.look()
    server.settle_places()

    assert given == [BOB]


def test_a_moment_is_not_named_again_while_places_are_being_given(server: Arrivals) -> None:
    server.take(goal=2, member_deadline_s=600, patience_s=0)
    server.assignment(ALICE)
    writing = Event()
    server.store.submit(lambda transaction: writing.wait())
    server.places.ask(BOB, server.request())
    server.clock.wind(600)
    assert server.places.next_look() == server.clock.elapsed()

    server.places.look()
    again = server.places.next_look()
    writing.set()

    # Otherwise the driver would look without a pause until the thread has time.
    assert again > server.clock.elapsed()


def test_an_update_after_the_end_is_late_and_has_no_receipt(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, over_selection=2)
    slow = server.assignment(ALICE)
    server.report(BOB)
    server.advance()
    assert server.state(ALICE) == "missed"

    with pytest.raises(RoundClosed):
        updates.expect(server.federation, ALICE, slow.task, slow.round)
    updates.note_late(server.federation, ALICE, slow.task, slow.round).result()

    assert server.state(ALICE) == "late"
    updates.note_late(server.federation, BOB, slow.task, slow.round).result()
    assert server.state(BOB) == "reported"


def test_an_update_that_comes_while_its_round_is_closing_is_late_at_its_end(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, over_selection=3)
    slow = server.assignment(ALICE)
    server.assignment(CAROL)
    server.report(BOB)
    server.freeze()

    with pytest.raises(RoundClosed):
        updates.expect(server.federation, ALICE, slow.task, slow.round)
    updates.note_late(server.federation, ALICE, slow.task, slow.round).result()
    server.advance()

    assert [server.state(client) for client in (ALICE, BOB, CAROL)] == ["late", "reported", "missed"]


def test_a_restart_keeps_members_their_downloads_and_the_time_that_is_left(server: Arrivals) -> None:
    server.take(goal=3, deadline_s=3600, member_deadline_s=600, download_codec="f16")
    first = server.assignment(ALICE)
    server.report(BOB)
    server.clock.wind(3500)

    server.reopen()

    assert server.assignment(ALICE).sets == first.sets
    assert server.assignment(ALICE).time_left_ms == 600_000
    assert server.task.round is not None
    assert server.task.round.deadline == server.clock.elapsed() + 600


def test_a_clock_that_is_set_back_before_a_restart_makes_no_round_longer(server: Arrivals) -> None:
    server.take(goal=3, deadline_s=3600, member_deadline_s=600)
    assert server.has_place(ALICE)
    server.clock.wind(3500)
    server.clock.jump(-86_400)

    server.reopen()

    assert server.task.round is not None
    assert server.task.round.deadline == server.clock.elapsed() + 3600
    assert server.task.round.started == server.clock.elapsed()


def test_who_took_part_before_a_restart_still_rests_after_it(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, rest=3)
    server.report(ALICE)
    server.advance()

    server.reopen()

    assert server.reason(ALICE) == "rest"


def test_all_members_share_one_encoded_download(server: Arrivals) -> None:
    server.take(goal=3, download_codec="f16")

    sets = [server.assignment(client).sets[0].sha256 for client in (ALICE, BOB, CAROL)]

    assert len(set(sets)) == 1
    assert server.task.round is not None
    assert len(server.task.round.encoded) == 1


def test_who_is_revoked_or_forgotten_frees_a_place(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1)
    server.assignment(ALICE)
    server.revoke(ALICE)
    server.assignment(BOB)

    server.forget(BOB)

    assert server.has_place(CAROL)


def test_who_is_forgotten_while_a_round_closes_has_left_it(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, over_selection=2)
    server.assignment(ALICE)
    server.report(BOB)
    server.freeze()

    server.forget(ALICE)
    server.advance()

    assert (server.state(ALICE), server.ends) == ("left", ["committed", "open"])


def test_a_phase_for_everyone_takes_all_that_come_until_its_deadline(server: Arrivals) -> None:
    server.take(goal=2, min_reports=1, rounds=1, personal_evaluation=True, deadline_s=100)
    for client in (ALICE, BOB):
        server.report(client)
    server.advance()

    for client in EVERYBODY:
        assignment = server.assignment(client)
        sums = [
            update_pb2.EvaluationSums(label=each.label, count=1, correct=1)
            for each in assignment.local_plan.evaluations
        ]
        server.upload(client, None, 0, evaluations=sums)
    server.advance()
    assert server.ends == ["committed", "open"]
    server.clock.wind(100)
    server.advance()

    assert server.ends == ["committed", "committed"]


def test_an_evaluator_takes_no_place(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1)
    judge = bytes(32)
    server.enrol([judge], EVALUATORS)

    assert server.reason(judge) == "next_round"
    assert server.has_place(ALICE)


def test_pauses_grow_with_those_present(server: Arrivals) -> None:
    server.take(goal=2)
    server.assignment(ALICE)
    server.assignment(BOB)
    few = server.come(CAROL)[0].wait.retry_after_ms
    crowd = client_ids(500)
    server.enrol(crowd)

    server.come(*crowd)

    assert server.come(CAROL)[0].wait.retry_after_ms > 20 * few


def restart(server: Arrivals) -> None:
    """Stop and start again, after what an hour's saving of who was seen stores."""
    clients.note_seen(server.federation, server.federation.presence.take_unsaved()).result()
    server.reopen()


def present(server: Arrivals) -> int:
    return participation.present(server.federation, server.task)


def test_only_those_count_as_present_that_may_get_a_place_before_long(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, rest="fair", rounds=9, eligible={"num_examples": 5})
    server.take(name="other")
    crowd = [client for client in client_ids(500) if client not in EVERYBODY]
    judges, others, named, poor, banned = (crowd[i * 90 : i * 90 + 90] for i in range(5))
    server.enrol(judges, EVALUATORS)
    server.enrol(others, capabilities=PHONE)
    server.enrol([*named, *poor, *banned])
    for some, fields in ((judges, {}), (others, {}), (named, {"task": 2}), (poor, {"num_examples": 4})):
        server.come(*some, **fields)
    assert present(server) == 0
    server.come(*banned)
    assert present(server) == 90
    for client in banned:
        bans.ban(server.federation, client, "noise", ADMIN).result()
    assert present(server) == 0

    server.report(ALICE)
    server.advance()

    assert server.has_place(ALICE)  # with 400 others it would rest for 200 rounds
    assert server.come(BOB)[0].wait.retry_after_ms < 2 * 60_000


def test_who_has_taken_part_as_often_as_it_may_is_not_present_also_after_a_restart(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, rest=0, rounds=9, max_participations=1)
    for client in (ALICE, BOB):
        server.report(client)
        server.advance()
    server.come(CAROL)
    assert present(server) == 1

    restart(server)

    assert present(server) == 1


def test_those_that_left_their_places_are_not_present_also_after_a_restart(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, member_deadline_s=60, rest=0, rounds=9)
    for _ in range(2):
        assert server.has_place(ALICE)
        server.clock.wind(61)
    server.report(BOB)
    server.advance()
    server.come(ALICE)
    assert present(server) == 1

    restart(server)
    server.come(ALICE)

    assert present(server) == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"population": 2}, 'population: found 2, must be left out with selection "arrivals"'),
        ({"cohort": 2}, 'cohort: found 2, must be left out with selection "arrivals"'),
        ({"goal": None}, "(updates that a round wants); give --goal N or --population N"),
        ({"goal": "abc"}, 'goal: found "abc", must be a whole number, 1 to 1000000 (updates that a round wants)'),
        ({"download_difference": True}, 'download_difference: found true, must be left out with selection "arrivals"'),
        ({"goal": 2, "min_reports": 3}, "min_reports: found 3, must be at most the clients of a round, 2"),
        ({"goal": 0}, "goal: found 0, must be a whole number, 1 to 1000000 (updates that a round wants)"),
        ({"eligible": {"photos": 2}}, "eligible.photos: found 2, must be an object with"),
        ({"selection": "drawn"}, 'goal: found 2, must be left out with selection "drawn"'),
    ],
)
def test_a_setting_of_the_other_selection_is_refused_by_name(
    server: Arrivals, settings: dict[str, object], text: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        server.take(**{"over_selection": 1, **settings})

    assert text in str(refused.value)


def test_half_the_goal_is_enough_by_default(server: Arrivals) -> None:
    server.take(goal=5)

    assert server.task.settings.min_reports == 3


def test_those_present_are_known_after_a_restart(server: Arrivals) -> None:
    server.take(goal=1, min_reports=1, presence_s=3600)
    crowd = client_ids(50)
    server.enrol(crowd)
    server.come(*crowd)
    clients.note_seen(server.federation, server.federation.presence.take_unsaved()).result()
    assert server.federation.presence.take_unsaved() == {}
    server.clock.wind(1800)

    server.reopen()

    presence, now = server.federation.presence, server.clock.elapsed()
    assert (presence.count(now, 3600), presence.count(now, 600)) == (50, 0)


def test_who_stays_is_stored_again_after_an_hour(server: Arrivals) -> None:
    presence = server.federation.presence
    stored = []
    for minute in range(0, 130, 10):
        presence.saw(ALICE, 60.0 * minute)
        stored += presence.take_unsaved().values()

    assert stored == [0.0, 3600.0, 7200.0]


def _trained(server: Arrivals, assignment: assignment_pb2.Assignment) -> tuple[update_pb2.UpdateHeader, bytes]:
    """What a client sends that has added 1 to every weight."""
    start = server.tensors(assignment)
    return update_of(assignment, {name: value + 1 for name, value in start.items()})


def test_a_client_that_comes_late_has_a_cluster_after_one_round(server: Arrivals) -> None:
    options = {"clusters": 2, "extractor_rounds": 3, "classifier_rounds": 1}
    bundles = network(), concatenated(2)
    settings = {"goal": 2, "min_reports": 2, "rounds": 5, "deadline_s": 60, "rest": 0}
    server.take(*bundles, method="fedconcat", options=options, **settings)
    for client, counts in ((ALICE, (9, 1)), (BOB, (1, 9))):  # the clustering is for everyone that comes in time
        _counts(server, client, counts)
    server.clock.wind(60)
    server.advance()
    for client in (ALICE, BOB):
        server.report(client)

    late = server.assignment(CAROL)
    assert (late.phase, server.task.round and server.task.round.phase) == (0, 1)
    _counts(server, CAROL, (8, 2))
    server.advance()

    cluster = server.task.values.clients
    assert cluster[CAROL] == cluster[ALICE] != cluster[BOB]
    assert (server.assignment(CAROL).round, server.assignment(CAROL).phase) == (3, 1)


def test_no_rule_changes_the_shares_by_which_clients_are_clustered(server: Arrivals) -> None:
    options = {"clusters": 2, "extractor_rounds": 3, "classifier_rounds": 1}
    settings = {"goal": 3, "min_reports": 3, "rounds": 5, "deadline_s": 60, "rest": 0, "cap": True}
    server.take(network(), concatenated(2), method="fedconcat", options=options, **settings)
    for client, counts in ((ALICE, (98, 2)), (BOB, (1, 9)), (CAROL, (1, 9))):  # capped, Alice's were 3 and 1
        _counts(server, client, counts)
    server.clock.wind(60)
    server.advance()

    np.testing.assert_allclose(sorted(server.task.values.shared["centres"].tolist()), [[0.1, 0.9], [0.98, 0.02]])


def test_who_catches_up_takes_no_place(server: Arrivals) -> None:
    options = {"clusters": 2, "extractor_rounds": 3, "classifier_rounds": 1}
    settings = {"goal": 2, "min_reports": 2, "rounds": 5, "deadline_s": 60, "rest": 0}
    server.take(network(), concatenated(2), method="fedconcat", options=options, **settings)
    for client, counts in ((ALICE, (9, 1)), (BOB, (1, 9))):
        _counts(server, client, counts)
    server.clock.wind(60)
    server.advance()

    phases = [server.assignment(client).phase for client in (CAROL, DAVE, ALICE, EVE, BOB)]

    assert phases == [0, 0, 1, 0, 1]


def test_a_client_that_comes_late_to_the_statistics_has_a_row_after_one_round(server: Arrivals) -> None:
    settings = {"goal": 2, "min_reports": 2, "rounds": 5, "deadline_s": 60, "rest": 0, "personal_evaluation": True}
    server.take(with_running_statistics(), method="fedap", options={"warm_up": 0}, **settings)
    for client, mean in ((ALICE, 0.0), (BOB, 1.0)):
        _statistics(server, client, mean)
    server.clock.wind(60)
    server.advance()
    server.reopen()
    for client in (ALICE, BOB):
        assignment = server.assignment(client)
        server.upload(client, {name: value + 1 for name, value in server.tensors(assignment, "personal").items()})

    late = server.assignment(CAROL)
    (model,) = assignments.check_in(server.federation, DAVE, server.request()).wait.models
    assert (late.phase, server.task.round and server.task.round.phase) == (0, 1)
    assert [item.name for item in model.sets] == ["global", "initial"]
    _statistics(server, CAROL, 3.0)
    server.advance()

    assert [item.name for item in server.assignment(CAROL).sets] == ["initial", "personal"]
    # Distances to Alice and Bob: 3 and 2.
    np.testing.assert_allclose(server.task.values.shared["mixing"][2], [0.2, 0.3, 0.5], rtol=1e-6)
    assert server.task.phases[-1].intake == ""


def test_ten_failures_end_a_round_of_few_places(server: Arrivals) -> None:
    crowd = client_ids(12)
    server.enrol(crowd)
    server.take(goal=2, max_consecutive_abandoned=1)

    ends = []
    for client in crowd[:10]:
        assert server.has_place(client)
        server.fail(client)
        server.advance()
        ends.append(server.ends)

    assert ends == [["open"]] * 9 + [["abandoned"]]


def _statistics(server: Arrivals, client: bytes, mean: float) -> None:
    """Answer an assignment that asks for BatchNorm's statistics and trains nothing."""
    server.assignment(client)
    kept = {"bn.batches": np.array(4, np.int64), "bn.mean": np.zeros(2, np.float32)}
    running = {"bn.running_mean": np.array([mean, 0], np.float32), "bn.running_var": np.ones(2, np.float32)}
    server.upload(client, kept | running, 0)


def _counts(server: Arrivals, client: bytes, counts: tuple[int, ...]) -> None:
    """Answer an assignment that asks for class counts and no weights."""
    server.assignment(client)
    server.upload(client, None, sum(counts), class_counts=counts)
