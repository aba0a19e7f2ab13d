"""Clients: enrolment, roles, and three ways to leave."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fedlens_proto.v1 import admin_pb2, enrolment_pb2, manifest_pb2
from fedlens_server.engine import aggregation, clients, tasks
from fedlens_server.engine.clients import TokenGrant
from fedlens_server.engine.view import RoundKey
from fedlens_server.errors import Forbidden, Malformed, Unauthorised, Unknown
from tests.server.fakes import CAPABILITIES, EVALUATORS, SEED, TRAINERS, Bench, client_ids

ALICE, BOB, CAROL = client_ids(3)


@pytest.fixture
def running(bench: Bench) -> Bench:
    bench.create(json.dumps({"method": "fedavg", "rounds": 3, "population": 2, "deadline_s": 60, "seed": SEED}))
    bench.enrol([ALICE, BOB])
    return bench


def enrol(bench: Bench, client: bytes, grant: TokenGrant) -> enrolment_pb2.ClientRole:
    return clients.enrol(bench.federation, client, grant, CAPABILITIES).result()


def test_the_role_comes_from_the_token(bench: Bench) -> None:
    assert enrol(bench, ALICE, EVALUATORS) == enrolment_pb2.CLIENT_ROLE_EVALUATOR
    assert bench.federation.authenticate(ALICE).role == enrolment_pb2.CLIENT_ROLE_EVALUATOR


def test_enrolling_again_gives_the_same_answer_and_uses_nothing_of_the_token(bench: Bench) -> None:
    once = replace(TRAINERS, max_uses=1)
    enrol(bench, ALICE, once)

    assert enrol(bench, ALICE, once) == enrolment_pb2.CLIENT_ROLE_TRAINER
    assert enrol(bench, ALICE, EVALUATORS) == enrolment_pb2.CLIENT_ROLE_TRAINER


def test_a_token_is_used_no_more_often_than_it_allows_even_at_the_same_moment(bench: Bench) -> None:
    thrice = replace(TRAINERS, max_uses=3)

    futures = [clients.enrol(bench.federation, each, thrice, CAPABILITIES) for each in client_ids(10)]
    errors = [future.exception() for future in futures]

    assert [type(error) for error in errors] == [type(None)] * 3 + [Forbidden] * 7


def test_a_forgotten_client_does_not_give_its_use_back(bench: Bench) -> None:
    once = replace(TRAINERS, max_uses=1)
    enrol(bench, ALICE, once)
    clients.forget(bench.federation, ALICE).result()
    bench.reopen()

    with pytest.raises(Forbidden, match="used 1 times"):
        enrol(bench, BOB, once)


def test_an_expired_token_is_refused(bench: Bench) -> None:
    grant = replace(TRAINERS, expires_at=bench.clock.now() + 10)
    enrol(bench, ALICE, grant)
    bench.clock.wind(10)

    with pytest.raises(Forbidden, match="expired"):
        enrol(bench, BOB, grant)
    assert enrol(bench, ALICE, grant) == enrolment_pb2.CLIENT_ROLE_TRAINER


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
        clients.enrol(bench.federation, ALICE, TRAINERS, capabilities).result()


def test_an_unknown_client_is_unauthorised(bench: Bench) -> None:
    with pytest.raises(Unauthorised):
        bench.federation.authenticate(ALICE)


def test_a_revoked_client_is_shut_out_for_good(running: Bench) -> None:
    clients.revoke(running.federation, ALICE).result()
    clients.revoke(running.federation, ALICE).result()

    for _ in range(2):
        with pytest.raises(Forbidden, match="revoked"):
            running.check_in(ALICE)
        with pytest.raises(Forbidden, match="revoked"):
            enrol(running, ALICE, TRAINERS)
        running.reopen()
    with pytest.raises(Unknown):
        clients.revoke(running.federation, CAROL).result()


@pytest.mark.parametrize("leave", ["revoke", "forget"])
def test_who_leaves_an_open_round_takes_the_update_along(running: Bench, leave: str) -> None:
    running.report(ALICE, 9.0)
    getattr(clients, leave)(running.federation, ALICE).result()
    assert aggregation.due(running.federation) == []
    running.report(BOB, 2.0)
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    (left,) = [member for member in running.show().rounds[0].members if member.client_id == ALICE]
    assert left == admin_pb2.MemberResult(client_id=ALICE, state=admin_pb2.MEMBER_STATE_LEFT)


@pytest.mark.parametrize("leave", ["revoke", "forget"])
def test_a_round_does_not_wait_for_who_has_left(running: Bench, leave: str) -> None:
    running.report(BOB)
    getattr(clients, leave)(running.federation, ALICE).result()

    assert aggregation.due(running.federation) == [RoundKey(1, 1)]


def test_nothing_is_left_of_a_forgotten_client_but_its_id(running: Bench) -> None:
    running.report(ALICE, 9.0, num_examples=123)
    blob = running.member(ALICE).blob
    running.report(BOB)
    running.advance()
    running.report(ALICE, 7.0)
    second = running.member(ALICE).blob

    assert clients.forget(running.federation, ALICE).result() is False

    assert second not in running.store.blobs.sizes
    assert blob is not None
    for found in running.show().rounds:
        members = [member for member in found.members if member.client_id == ALICE]
        assert members == [admin_pb2.MemberResult(client_id=ALICE, state=admin_pb2.MEMBER_STATE_LEFT)]
    running.reopen()
    with pytest.raises(Unauthorised):
        running.check_in(ALICE)
    with pytest.raises(Forbidden, match="cannot enrol again"):
        enrol(running, ALICE, TRAINERS)


def test_forgetting_in_a_closing_round_takes_effect_with_its_commit(running: Bench) -> None:
    running.report(ALICE, 3.0)
    running.report(BOB, 1.0)
    running.freeze()

    assert clients.forget(running.federation, ALICE).result() is True
    running.reopen()
    running.advance()

    # It was in the frozen set: (3 + 1) / 2.
    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    states = [member.state for member in running.show().rounds[0].members if member.client_id == ALICE]
    assert states == [admin_pb2.MEMBER_STATE_LEFT]
    assert [member.client_id for member in running.show().rounds[1].members] == [BOB]


def test_forgetting_twice_is_harmless(running: Bench) -> None:
    clients.forget(running.federation, ALICE).result()

    assert clients.forget(running.federation, ALICE).result() is False


def test_a_client_that_learns_a_format_becomes_eligible(bench: Bench) -> None:
    bench.create(json.dumps({"method": "fedavg", "rounds": 1, "population": 1}))
    only_phones = enrolment_pb2.Capabilities(
        formats=[manifest_pb2.PROGRAM_FORMAT_PTE], bundle_classes=[manifest_pb2.BUNDLE_CLASS_WHOLE_MODEL]
    )
    clients.enrol(bench.federation, ALICE, TRAINERS, only_phones).result()
    assert tasks.listed(bench.federation).tasks[0].enrolled == 0

    bench.enrol([ALICE])

    assert bench.assignment(ALICE).round == 1
