"""Clients: enrolment, roles, and three ways to leave."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import select

from fedlens_proto.v1 import admin_pb2, enrolment_pb2
from fedlens_server.engine import aggregation, assignments, clients
from fedlens_server.engine.arrivals.answers import Answer
from fedlens_server.engine.cohorts.members import RoundKey
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.operators.access import TokenGrant
from fedlens_server.errors import Forbidden, Malformed, Unauthorised, Unknown
from fedlens_server.store import schema
from tests.server.fakes import ALICE, BOB, CAPABILITIES, CAROL, EVALUATORS, EVE, PHONE, TRAINERS, Bench, client_ids


def enrol(bench: Bench, client: bytes, grant: TokenGrant) -> enrolment_pb2.ClientRole:
    return clients.enrol(bench.federation, client, grant, CAPABILITIES).result()


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
    bench.forget(ALICE)
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
    ("field", "values"),
    [("formats", []), ("formats", [99]), ("bundle_classes", []), ("bundle_classes", [99]), ("plan_format", [0])],
)
def test_a_client_must_be_able_to_run_something(bench: Bench, field: str, values: list[int]) -> None:
    capabilities = enrolment_pb2.Capabilities()
    capabilities.CopyFrom(CAPABILITIES)
    capabilities.ClearField(field)  # type: ignore[arg-type]
    if field != "plan_format":
        getattr(capabilities, field).extend(values)

    with pytest.raises(Malformed, match=f"capabilities.{field}"):
        clients.enrol(bench.federation, ALICE, TRAINERS, capabilities).result()


def test_a_banned_client_is_shut_out_for_good(running: Bench) -> None:
    running.revoke(ALICE)
    running.revoke(ALICE)

    for _ in range(2):
        with pytest.raises(Forbidden, match="banned"):
            running.check_in(ALICE)
        with pytest.raises(Forbidden, match="banned"):
            enrol(running, ALICE, TRAINERS)
        running.reopen()
    with pytest.raises(Unknown):
        running.revoke(CAROL)


WAYS_TO_LEAVE = pytest.mark.parametrize("leave", [Bench.revoke, Bench.forget])


@WAYS_TO_LEAVE
def test_who_leaves_an_open_round_takes_the_update_along(
    running: Bench, leave: Callable[[Bench, bytes], object]
) -> None:
    running.report(ALICE, 9.0)
    leave(running, ALICE)
    assert aggregation.due(running.federation) == []
    running.report(BOB, 2.0)
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    assert running.members()[ALICE] == admin_pb2.MemberResult(client_id=ALICE, state=admin_pb2.MEMBER_STATE_LEFT)


@WAYS_TO_LEAVE
def test_a_round_does_not_wait_for_who_has_left(running: Bench, leave: Callable[[Bench, bytes], object]) -> None:
    running.report(BOB)
    leave(running, ALICE)

    assert aggregation.due(running.federation) == [RoundKey(1, 1)]


def test_nothing_is_left_of_a_forgotten_client_but_its_id(running: Bench) -> None:
    running.report(ALICE, 9.0, num_examples=123)
    running.report(BOB)
    running.advance()
    running.report(ALICE, 7.0)
    (second,) = running.member(ALICE).blobs.values()

    assert running.forget(ALICE) is False

    assert second not in running.store.blobs.sizes
    left = admin_pb2.MemberResult(client_id=ALICE, state=admin_pb2.MEMBER_STATE_LEFT)
    assert [running.members(number)[ALICE] for number in (1, 2)] == [left, left]
    running.reopen()
    with pytest.raises(Unauthorised):
        running.check_in(ALICE)
    with pytest.raises(Forbidden, match="cannot enrol again"):
        enrol(running, ALICE, TRAINERS)


def test_no_row_names_a_forgotten_evaluator_and_nobody_knows_its_last_answer(bench: Bench) -> None:
    bench.start(rounds=9)
    bench.enrol([EVE], EVALUATORS)
    bench.commit()
    bench.evaluate(EVE)
    bench.federation.answers.note(EVE, Answer("wait-rest", 1), 1.0)

    bench.forget(EVE)

    tables = [table for table in schema.metadata.sorted_tables if table.name != "forgotten"]
    rows = {table.name: bench.store.read(select(table)) for table in tables}
    assert rows["members"]
    assert not [name for name, found in rows.items() if any(EVE in tuple(row) for row in found)]
    assert bench.federation.answers.last(EVE) is None


def test_what_an_enrolment_changes_holds_for_the_model_that_a_client_predicts_with(bench: Bench) -> None:
    bench.start(rounds=9)
    bench.commit()
    assert assignments.current_model(bench.task, bench.federation.clients[ALICE]) is not None
    known = ALICE in bench.task.current_models
    capabilities = enrolment_pb2.Capabilities(tables=["profile"])
    capabilities.MergeFrom(CAPABILITIES)

    bench.enrol([ALICE], capabilities=capabilities)

    assert known
    assert ALICE not in bench.task.current_models


def test_forgetting_in_a_closing_round_takes_effect_with_its_commit(running: Bench) -> None:
    running.report(ALICE, 3.0)
    running.report(BOB, 1.0)
    running.freeze()

    assert running.forget(ALICE) is True
    running.reopen()
    running.advance()

    # It was in the frozen set: (3 + 1) / 2.
    np.testing.assert_array_equal(running.model()["fc.bias"], [2.0, 2.0])
    assert running.members()[ALICE].state == admin_pb2.MEMBER_STATE_LEFT
    assert list(running.members(2)) == [BOB]


def test_forgetting_twice_is_harmless(running: Bench) -> None:
    running.forget(ALICE)

    assert running.forget(ALICE) is False


def test_a_client_that_learns_a_format_becomes_eligible(bench: Bench) -> None:
    bench.make(population=1)
    bench.enrol([ALICE], capabilities=PHONE)
    assert tasks.listed(bench.federation).tasks[0].enrolled == 0

    bench.enrol([ALICE])

    assert bench.assignment(ALICE).round == 1
