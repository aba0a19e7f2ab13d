"""Updates of several uploads: what becomes of tables beside weights, and who is asked for them."""

from hashlib import sha256

import numpy as np
import pytest

from fedlens_proto import blob
from fedlens_proto.v1 import admin_pb2, check_in_pb2, enrolment_pb2, update_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.operators import tasks
from fedlens_server.errors import UpdateInvalid
from fedlens_server.methods import METHODS
from tests.server import profiles
from tests.server.fakes import ALICE, BOB, CAPABILITIES, CAROL, EVALUATORS, EVE, TRAINERS, Bench, update_of
from tests.server.profiles import profile

FEATURES = 100


def enrol(bench: Bench, clients: list[bytes], *tables: str) -> None:
    """Clients that send these tables."""
    named = enrolment_pb2.Capabilities(tables=tables)
    named.MergeFrom(CAPABILITIES)
    bench.enrol(clients, TRAINERS, named)


@pytest.fixture
def bench(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setitem(METHODS, "profiles", profiles.METHOD)
    return bench


def start(bench: Bench, **settings: object) -> Bench:
    """A task in its first round, with Alice and Bob."""
    bench.make(profiles.bundle(FEATURES), method="profiles", **settings)
    enrol(bench, [ALICE], "profile")
    enrol(bench, [BOB], "*")
    return bench


def report(bench: Bench, client: bytes, table: float, shift: float = 1.0) -> dict[str, bytes]:
    """Upload weights and a profile; the digests of what is stored."""
    bench.report(client, shift, tables={"profile": profile(table, FEATURES)})
    return dict(bench.member(client).blobs)


def is_stored(bench: Bench, table: float) -> bool:
    return sha256(blob.encode(profile(table, FEATURES))).digest() in bench.store.blobs.sizes


def test_all_uploads_of_an_update_reach_the_method_by_name_also_after_a_restart(bench: Bench) -> None:
    start(bench)
    report(bench, ALICE, 1.0)
    bench.reopen()
    stored = report(bench, BOB, 4.0, shift=3.0)
    bench.advance()
    bench.reopen()

    assert list(stored) == ["weights", "profile"]
    # (10 * 1 + 10 * 3) / 20, and 1 + 4.
    np.testing.assert_array_equal(bench.model()["fc.bias"], [2.0, 2.0])
    own = bench.task.values.clients
    assert [own[client]["profile"]["sums"][0, 0] for client in (ALICE, BOB)] == [1.0, 4.0]
    total = bench.tensors(bench.assignment(ALICE), "profiles")
    np.testing.assert_array_equal(total["sums"], np.full((2, FEATURES), 5.0))
    np.testing.assert_array_equal(total["counts"], [4, 6])


def test_an_update_of_several_uploads_sent_again_gets_the_same_receipt_even_after_the_round(bench: Bench) -> None:
    start(bench)
    assignment = bench.assignment(ALICE)
    update = update_of(assignment, dict(bench.tensors(assignment)), tables={"profile": profile(1.0, FEATURES)})
    first = bench.send(ALICE, assignment, *update)
    report(bench, BOB, 2.0)
    bench.advance()
    bench.reopen()

    assert bench.send(ALICE, assignment, *update) == first


@pytest.mark.parametrize("tables", [{}, {"other": profile(1.0)}], ids=["missing", "another"])
def test_an_update_without_every_upload_that_is_asked_for_is_quarantined(
    bench: Bench, tables: dict[str, dict[str, blob.Array]]
) -> None:
    start(bench)

    with pytest.raises(UpdateInvalid, match=r"uploads: found 'weights'.*, asked for were 'weights', 'profile'"):
        bench.report(ALICE, tables=tables)

    assert bench.members()[ALICE].state == admin_pb2.MEMBER_STATE_QUARANTINED


def test_tables_are_sent_to_clients_whole_and_exactly_whatever_the_codec_of_weights(bench: Bench) -> None:
    start(bench, download_codec="int8", download_difference=True)
    for table in (0.1, 0.3):
        for client in (ALICE, BOB):
            report(bench, client, table)
        bench.advance()

    model, table = bench.assignment(ALICE).sets

    assert (model.name, model.HasField("difference")) == ("global", True)
    assert (table.name, table.HasField("difference")) == ("profiles", False)
    np.testing.assert_array_equal(bench.store.tensors(table.sha256)["sums"], np.full((2, FEATURES), np.float32(0.6)))


def test_differences_are_for_weights_alone(bench: Bench) -> None:
    start(bench, difference=True)
    base = bench.assignment(ALICE).sets[0].sha256
    one = {"fc.bias": np.ones(2, np.float32), "fc.weight": np.ones((2, FEATURES), np.float32)}
    for client in (ALICE, BOB):
        bench.upload(client, one, tables={"profile": profile(7.0, FEATURES)}, base=base)
    bench.advance()

    np.testing.assert_array_equal(bench.model()["fc.bias"], [1.0, 1.0])
    assert bench.task.values.clients[ALICE]["profile"]["sums"][0, 0] == 7.0


def test_only_the_norm_of_the_first_upload_is_bounded(bench: Bench) -> None:
    # 202 floats moved by 1 have norm sqrt(202) = 14.2; by 2 it is 28.4.
    start(bench, max_update_norm=15)

    report(bench, ALICE, table=1e6)
    with pytest.raises(UpdateInvalid, match=r"upload 'weights' has norm 28\.4.*, at most 15 is allowed"):
        report(bench, BOB, table=1e6, shift=2.0)


def test_each_upload_is_deleted_one_round_after_nothing_needs_it_any_more(bench: Bench) -> None:
    start(bench)
    alices = report(bench, ALICE, 1.0)
    stored: list[list[str]] = []
    report(bench, BOB, 2.0, shift=3.0)
    bench.advance()
    for table in (3.0, 4.0):
        stored.append([name for name, digest in alices.items() if digest in bench.store.blobs.sizes])
        for client in (ALICE, BOB):
            report(bench, client, table)
        bench.advance()

    # The weights are needed until their round ends, the profile until the next one is in the state.
    assert stored == [["weights", "profile"], ["profile"]]
    assert not set(alices.values()) & bench.store.blobs.sizes.keys()


@pytest.mark.parametrize("closing", [False, True])
def test_all_uploads_of_a_forgotten_client_are_gone(bench: Bench, closing: bool) -> None:
    start(bench)
    report(bench, ALICE, 1.0)
    report(bench, BOB, 2.0)
    bench.advance()
    report(bench, ALICE, 5.0)
    if closing:
        bench.clock.wind(60)
        bench.freeze(2)

    bench.forget(ALICE)
    bench.advance()

    assert not is_stored(bench, 1.0)
    assert not is_stored(bench, 5.0)
    assert is_stored(bench, 2.0)
    assert ALICE not in bench.task.values.clients
    bench.reopen()
    assert ALICE not in bench.task.values.clients


def test_who_does_not_send_a_table_is_not_drawn_and_not_counted_for_a_task_that_asks_for_it(bench: Bench) -> None:
    bench.make(profiles.bundle(), method="profiles")
    enrol(bench, [ALICE], "profile")
    enrol(bench, [BOB])
    enrol(bench, [CAROL], "losses")

    (task,) = tasks.listed(bench.federation).tasks

    assert (task.enrolled, task.state) == (1, admin_pb2.TASK_STATE_WAITING)
    wait = bench.check_in(BOB).wait
    assert wait.reason == check_in_pb2.WAIT_REASON_NO_TASK
    assert wait.detail == "task 'task' asks for profile, which this client's owner does not allow"
    assert bench.check_in(ALICE).wait.reason == check_in_pb2.WAIT_REASON_POPULATION
    enrol(bench, [BOB], "losses", "profile")
    assert list(bench.members()) == [ALICE, BOB]


def test_evaluators_send_no_tables(bench: Bench) -> None:
    start(bench)
    bench.enrol([EVE], EVALUATORS)
    for client in (ALICE, BOB):
        report(bench, client, 1.0)
    bench.advance()

    assignment = bench.assignment(EVE)

    assert [item.name for item in assignment.sets] == ["global"]
    assert [each.label for each in assignment.local_plan.evaluations] == ["global"]
    assert not assignment.local_plan.uploads


def test_who_runs_an_older_language_of_plans_takes_no_part(bench: Bench) -> None:
    start(bench)
    older = bench.federation.clients[ALICE].profile
    bench.task.phases[0].plan.format = 2
    older.suits.clear()

    assert older.capabilities.plan_format == 1
    assert not bench.task.suits(older)


def test_a_model_that_is_told_of_names_the_sets_and_rules_that_make_it(bench: Bench) -> None:
    start(bench)
    for client in (ALICE, BOB):
        report(bench, client, 1.0)
    bench.advance()
    report(bench, ALICE, 1.0)

    (model,) = bench.check_in(ALICE).wait.models

    # The profiles are for training alone.
    assert [item.name for item in model.sets] == ["global"]
    assert [rule.source.download for rule in model.rules] == ["global"]
    assert assignments.readable(bench.federation, ALICE, model.sets[0].sha256).size > 0
    assert not model.extractors


def test_evaluations_of_an_update_are_all_answered(bench: Bench) -> None:
    start(bench)

    with pytest.raises(UpdateInvalid, match="evaluations: found 'start', asked for were 'start', 'trained'"):
        bench.report(
            ALICE,
            tables={"profile": profile(1.0, FEATURES)},
            evaluations=[update_pb2.EvaluationSums(label="start")],
        )
