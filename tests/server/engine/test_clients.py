"""Who may take part, and how a client leaves."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedlens_proto.v1 import admin_pb2, enrolment_pb2, manifest_pb2
from fedlens_server.engine import lifecycle
from fedlens_server.engine.view import RoundKey
from fedlens_server.errors import Forbidden, Malformed, Unauthorised, Unknown
from tests.server.fakes import CAPABILITIES, EVALUATORS, SEED, TRAINERS, Bench, client_ids

ALICE, BOB, CAROL = client_ids(3)


@pytest.fixture
def running(bench: Bench) -> Bench:
    bench.create(json.dumps({"method": "fedavg", "rounds": 3, "population": 2, "deadline_s": 60, "seed": SEED}))
    bench.enrol([ALICE, BOB])
    return bench


def test_the_role_comes_from_the_token(bench: Bench) -> None:
    assert bench.rounds.enrol(ALICE, EVALUATORS, CAPABILITIES).result() == enrolment_pb2.CLIENT_ROLE_EVALUATOR
    assert bench.rounds.authenticate(ALICE) == enrolment_pb2.CLIENT_ROLE_EVALUATOR


def test_enrolling_again_gives_the_same_answer_and_uses_nothing_of_the_token(bench: Bench) -> None:
    once = replace(TRAINERS, max_uses=1)
    bench.rounds.enrol(ALICE, once, CAPABILITIES).result()

    assert bench.rounds.enrol(ALICE, once, CAPABILITIES).result() == enrolment_pb2.CLIENT_ROLE_TRAINER
    assert bench.rounds.enrol(ALICE, EVALUATORS, CAPABILITIES).result() == enrolment_pb2.CLIENT_ROLE_TRAINER


def test_a_token_is_used_no_more_often_than_it_allows_even_at_the_same_moment(bench: Bench) -> None:
    thrice = replace(TRAINERS, max_uses=3)

    futures = [bench.rounds.enrol(client, thrice, CAPABILITIES) for client in client_ids(10)]
    errors = [future.exception() for future in futures]

    assert [type(error) for error in errors] == [type(None)] * 3 + [Forbidden] * 7


def test_a_forgotten_client_does_not_give_its_use_back(bench: Bench) -> None:
    once = replace(TRAINERS, max_uses=1)
    bench.rounds.enrol(ALICE, once, CAPABILITIES).result()
    bench.rounds.forget(ALICE).result()
    bench.reopen()

    with pytest.raises(Forbidden, match="used 1 times"):
        bench.rounds.enrol(BOB, once, CAPABILITIES).result()


def test_an_expired_token_is_refused(bench: Bench) -> None:
    grant = replace(TRAINERS, expires_at=bench.clock.now() + 10)
    bench.rounds.enrol(ALICE, grant, CAPABILITIES).result()
    bench.clock.wind(10)

    with pytest.raises(Forbidden, match="expired"):
        bench.rounds.enrol(BOB, grant, CAPABILITIES).result()
    assert bench.rounds.enrol(ALICE, grant, CAPABILITIES).result() == enrolment_pb2.CLIENT_ROLE_TRAINER


@pytest.mark.parametrize(
    "capabilities",
    [
        enrolment_pb2.Capabilities(),
        enrolment_pb2.Capabilities(formats=[manifest_pb2.PROGRAM_FORMAT_PT2]),
        enrolment_pb2.Capabilities(bundle_classes=[manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL]),
        enrolment_pb2.Capabilities(formats=[99], bundle_classes=[1]),  # type: ignore[list-item]
    ],
)
def test_a_client_must_be_able_to_run_something(bench: Bench, capabilities: enrolment_pb2.Capabilities) -> None:
    with pytest.raises(Malformed):
        bench.rounds.enrol(ALICE, TRAINERS, capabilities)


def test_an_unknown_client_is_unauthorised(bench: Bench) -> None:
    with pytest.raises(Unauthorised):
        bench.rounds.authenticate(ALICE)


def test_a_revoked_client_is_shut_out_for_good(running: Bench) -> None:
    running.rounds.revoke(ALICE).result()
    running.rounds.revoke(ALICE).result()

    for _ in range(2):
        with pytest.raises(Forbidden, match="revoked"):
            running.check_in(ALICE)
        with pytest.raises(Forbidden, match="revoked"):
            running.rounds.enrol(ALICE, TRAINERS, CAPABILITIES).result()
        running.reopen()
    with pytest.raises(Unknown):
        running.rounds.revoke(CAROL).result()


@pytest.mark.parametrize("leave", ["revoke", "forget"])
def test_who_leaves_an_open_round_takes_the_update_along(running: Bench, leave: str) -> None:
    running.report(ALICE, 9.0)
    getattr(running.rounds, leave)(ALICE).result()
    assert running.rounds.due() == []
    running.report(BOB, 2.0)
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    (left,) = [member for member in running.show().rounds[0].members if member.client_id == ALICE]
    assert left == admin_pb2.MemberResult(client_id=ALICE, state=admin_pb2.MEMBER_STATE_LEFT)


@pytest.mark.parametrize("leave", ["revoke", "forget"])
def test_a_round_does_not_wait_for_who_has_left(running: Bench, leave: str) -> None:
    running.report(BOB)
    getattr(running.rounds, leave)(ALICE).result()

    assert running.rounds.due() == [RoundKey(1, 1)]


def test_nothing_is_left_of_a_forgotten_client_but_its_id(running: Bench) -> None:
    running.report(ALICE, 9.0, num_examples=123)
    blob = running.rounds._federation.tasks[1].round.members[ALICE].blob  # type: ignore[union-attr]
    running.report(BOB)
    running.advance()
    running.report(ALICE, 7.0)
    second = running.rounds._federation.tasks[1].round.members[ALICE].blob  # type: ignore[union-attr]

    assert running.rounds.forget(ALICE).result() is False

    assert second not in running.store.blobs.sizes
    assert blob is not None
    for found in running.show().rounds:
        members = [member for member in found.members if member.client_id == ALICE]
        assert members == [admin_pb2.MemberResult(client_id=ALICE, state=admin_pb2.MEMBER_STATE_LEFT)]
    running.reopen()
    with pytest.raises(Unauthorised):
        running.check_in(ALICE)
    with pytest.raises(Forbidden, match="cannot enrol again"):
        running.rounds.enrol(ALICE, TRAINERS, CAPABILITIES).result()


def test_forgetting_in_a_closing_round_takes_effect_with_its_commit(running: Bench) -> None:
    running.report(ALICE, 3.0)
    running.report(BOB, 1.0)
    federation = running.rounds._federation
    running.store.submit(lambda tx: lifecycle.begin_closing(federation, tx, RoundKey(1, 1))).result()

    assert running.rounds.forget(ALICE).result() is True
    running.reopen()
    running.advance()

    # It was in the frozen set: (3 + 1) / 2.
    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    states = [member.state for member in running.show().rounds[0].members if member.client_id == ALICE]
    assert states == [admin_pb2.MEMBER_STATE_LEFT]
    assert [member.client_id for member in running.show().rounds[1].members] == [BOB]


def test_forgetting_twice_is_harmless(running: Bench) -> None:
    running.rounds.forget(ALICE).result()

    assert running.rounds.forget(ALICE).result() is False


def test_a_client_that_learns_a_format_becomes_eligible(bench: Bench) -> None:
    bench.create(json.dumps({"method": "fedavg", "rounds": 1, "population": 1}))
    only_phones = enrolment_pb2.Capabilities(
        formats=[manifest_pb2.PROGRAM_FORMAT_PTE], bundle_classes=[manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL]
    )
    bench.rounds.enrol(ALICE, TRAINERS, only_phones).result()
    assert bench.rounds.tasks().tasks[0].enrolled == 0

    bench.enrol([ALICE])

    assert bench.assignment(ALICE).round == 1
