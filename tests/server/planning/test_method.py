"""The round engine knows no method by name: it runs one that only the tests have."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedlens_proto import keyed_hash
from fedlens_proto.v1 import admin_pb2, assignment_pb2, check_in_pb2
from fedlens_server.engine import assignments
from fedlens_server.methods import METHODS
from fedlens_server.planning.method import Method, MethodDefinition, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.store import IncomingBlob, PendingBlob, method_state
from tests.server.bundles import tiny_bundle
from tests.server.fakes import ALICE, BOB, CAROL, EVALUATORS, EVE, SEED, Bench, client_ids, update_of
from tests.server.patchwork import METHOD, aggregate, for_task


@pytest.fixture(autouse=True)
def patchwork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "patchwork", METHOD)


@pytest.fixture
def started(bench: Bench) -> Bench:
    """The task with Alice and Bob."""
    return start(bench)


@pytest.fixture
def gathered(bench: Bench) -> Bench:
    """After the first phase: Alice's biases are [1, 1], Bob's [3, 3], and Carol came too late."""
    return gather(bench, [CAROL])


def start(bench: Bench, rounds: int = 1, **changed: Any) -> Bench:
    return bench.start(tiny_bundle(references=["global"]), method="patchwork", rounds=rounds, **changed)


def upload(bench: Bench, client: bytes, value: float, num_examples: int = 4) -> None:
    """Biases for the first phase, with three photos of the first class and one of the second."""
    assignment = bench.assignment(client)
    bias = {"fc.bias": np.full(2, value, np.float32)}
    bench.send(client, assignment, *update_of(assignment, bias, num_examples, class_counts=[3, 1]))


def stitch(bench: Bench, *clients: bytes) -> None:
    """A round of the second phase, whose clients upload nothing."""
    for client in clients:
        assignment = bench.assignment(client)
        bench.send(client, assignment, *update_of(assignment, None, 4))
    bench.advance()


def gather(bench: Bench, late: list[bytes], **changed: Any) -> Bench:
    """Through the first phase with Alice and Bob; the others enrol before it ends."""
    start(bench, **changed)
    upload(bench, ALICE, 1.0)
    upload(bench, BOB, 3.0)
    bench.enrol(late)
    bench.advance()
    return bench


def stored(bench: Bench) -> State:
    return method_state.load(bench.store, 1)[0]


def test_the_local_plan_reaches_the_client_as_the_method_wrote_it(started: Bench) -> None:
    local_plan = started.assignment(ALICE).local_plan

    assert local_plan == started.federation.tasks[1].phases[0].plan
    assert [keep.state for keep in local_plan.keeps] == ["mine"]
    assert local_plan.statistics[0].HasField("class_counts")


def test_an_upload_of_selected_tensors_is_what_is_expected(started: Bench) -> None:
    (layout,) = started.expect().layouts

    assert [str(spec) for spec in layout.specs] == ["fc.bias float32[2]"]


def test_plain_values_arrays_and_sets_are_the_same_after_a_restart(gathered: Bench) -> None:
    gathered.reopen()
    stitch(gathered, ALICE, BOB)

    state = stored(gathered).shared
    assert state["log"] == ["gather", "gather 2 of 2", "stitch", "stitch 2 of 3"]
    assert state["scale"] == 0.1
    # Photos of both clients: 2 * [3, 1]
    np.testing.assert_array_equal(state["classes"], [6, 2])
    drawn = keyed_hash.server_generator(bytes.fromhex(SEED), 2).random(2, np.float32)
    np.testing.assert_array_equal(state["draws"], drawn)


def test_an_uploaded_blob_enters_the_state_by_digest_and_stays(gathered: Bench) -> None:
    assignment = gathered.assignment(ALICE)

    assert sorted(item.name for item in assignment.sets) == ["global", "own"]
    np.testing.assert_array_equal(gathered.tensors(assignment, "own")["fc.bias"], [1.0, 1.0])
    # (4 * 1 + 4 * 3) / 8
    np.testing.assert_array_equal(gathered.tensors(assignment, "global")["fc.bias"], [2.0, 2.0])


def test_entries_that_do_not_change_are_not_written_again(gathered: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[list[str]] = []
    write = gathered.store.write_tensors

    def noted(tensors: TensorSet, incoming: IncomingBlob) -> PendingBlob:
        written.append(sorted(tensors))
        return write(tensors, incoming)

    monkeypatch.setattr(gathered.store, "write_tensors", noted)
    stitch(gathered, ALICE, BOB)

    # Of sets and arrays only `draws` changes.
    assert written == [["value"]]
    assert gathered.show().task.state == admin_pb2.TASK_STATE_FINISHED


def test_a_client_may_fetch_its_own_sets_and_not_anothers(gathered: Bench) -> None:
    (alices,) = [item.sha256 for item in gathered.assignment(ALICE).sets if item.name == "own"]

    assert assignments.readable(gathered.federation, ALICE, alices).size > 0
    with pytest.raises(Exception, match="there is no blob"):
        assignments.readable(gathered.federation, BOB, alices)


def test_a_client_that_the_method_gives_nothing_sits_the_phase_out(gathered: Bench) -> None:
    response = gathered.check_in(CAROL)

    assert response.wait.reason == check_in_pb2.WAIT_REASON_PHASE
    assert [member.client_id for member in gathered.show().rounds[1].members] == [ALICE, BOB]


def test_nobody_is_drawn_who_sits_the_phase_out(bench: Bench) -> None:
    late = [client for client in client_ids(30) if client not in (ALICE, BOB)]
    gather(bench, late, rounds=3, cohort=1)

    waiting = {check_in_pb2.WAIT_REASON_PHASE, check_in_pb2.WAIT_REASON_NEXT_ROUND}
    for _ in range(3):
        (member,) = [client for client in (ALICE, BOB) if bench.check_in(client).HasField("assignment")]
        assert {bench.check_in(client).wait.reason for client in late} <= waiting
        stitch(bench, member)

    assert bench.show().task.state == admin_pb2.TASK_STATE_FINISHED
    assert [each.state for each in bench.show().rounds] == [admin_pb2.ROUND_STATE_COMMITTED] * 4


def test_a_forgotten_clients_state_is_gone_at_once(gathered: Bench) -> None:
    (alices,) = [item.sha256 for item in gathered.assignment(ALICE).sets if item.name == "own"]

    gathered.forget(ALICE)

    assert stored(gathered).clients.keys() == {BOB}
    assert alices not in gathered.store.blobs.sizes
    gathered.reopen()
    assert stored(gathered).clients.keys() == {BOB}


def test_class_counts_that_do_not_add_up_are_quarantined(started: Bench) -> None:
    with pytest.raises(Exception, match=r"2 counts that add up to 4, must be 2 that add up to num_examples, 5"):
        upload(started, ALICE, 0.0, num_examples=5)

    assert started.members()[ALICE].state == admin_pb2.MEMBER_STATE_QUARANTINED


def test_evaluators_get_only_what_can_be_downloaded(gathered: Bench) -> None:
    gathered.enrol([EVE], EVALUATORS)

    assignment = gathered.assignment(EVE)

    assert assignment.answer == assignment_pb2.ANSWER_EVALUATION
    (model,) = assignment.local_plan.instructions
    assert [rule.source for rule in model.assemble.rules] == [assignment_pb2.Source(download="global")]
    assert [each.label for each in assignment.local_plan.evaluations] == ["global"]


def test_a_bundle_without_the_reference_is_refused_when_the_task_is_made(bench: Bench) -> None:
    with pytest.raises(Exception, match=r"phase 'gather': .*program 'step' has no reference 'global'"):
        bench.make(method="patchwork")


def test_a_method_that_breaks_ends_the_round_and_not_the_server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaking(task: TaskPlan) -> Method:
        return replace(for_task(task), aggregate=lambda *_: 1 / 0)

    monkeypatch.setitem(METHODS, "patchwork", MethodDefinition(breaking))

    gather(bench, [])

    first, second = bench.show().rounds
    assert first.state == admin_pb2.ROUND_STATE_ABANDONED
    assert "ZeroDivisionError" in first.reason
    assert second.state == admin_pb2.ROUND_STATE_OPEN


def written_in_place(state: State) -> State:
    """A mistake: the method changes the state that it was given."""
    state.shared["n"] = 1  # type: ignore[index]
    return state


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda state: None, "the method's state cannot be stored: found NoneType, must be a State"),
        (lambda state: state.with_clients({ALICE.hex(): {"n": 1}}), f"clients: found key '{ALICE.hex()}', must be"),
        (lambda state: replace(state, clients={ALICE: 1}), "clients: found a int for a client, must be its entries"),
        (lambda state: state.with_clients({ALICE: {1: 1}}), "found entry 1, must be a name"),
        (lambda state: state.with_shared(n=np.float32(1)), "shared['n']: Object of type float32 is not JSON"),
        (lambda state: state.with_shared(n=float("nan")), "shared['n']: Out of range float values"),
        (lambda state: state.with_shared(n={"x": 1}), "; a set has an array of numbers for each name"),
        (lambda state: state.with_shared(n={"x": np.full(2, np.nan)}), "shared['n']: tensor 'x' holds a NaN"),
        (lambda state: state.with_clients({ALICE: {"n": np.array(["x"])}}), f"clients[{ALICE.hex()[:8]}...]['n']: "),
        (written_in_place, "TypeError: 'mappingproxy' object does not support item assignment"),
    ],
)
def test_a_state_that_cannot_be_stored_ends_the_round_with_what_is_wrong_in_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[State], State], words: str
) -> None:
    def spoiling(task: TaskPlan) -> Method:
        return replace(for_task(task), aggregate=lambda phase, state, *_: spoil(state))

    monkeypatch.setitem(METHODS, "patchwork", MethodDefinition(spoiling))

    gather(bench, [])

    first, second = bench.show().rounds
    assert (first.state, second.state) == (admin_pb2.ROUND_STATE_ABANDONED, admin_pb2.ROUND_STATE_OPEN)
    assert words in first.reason


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ({"fc.bias": np.zeros(3, np.float32)}, "found shape [3] for tensor 'fc.bias', must be shape [2], as before"),
        ({}, "found none for tensor 'fc.bias', must be shape [2], as before the round"),
    ],
)
@pytest.mark.parametrize("rounds", [1, 2], ids=["the last round", "another"])
def test_a_global_model_of_other_tensors_ends_the_round(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, model: TensorSet, words: str, rounds: int
) -> None:
    def spoiling(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        if phase.name == "gather":
            return aggregate(phase, state, updates, tools)
        kept = {name: value for name, value in state.shared["global"].items() if name != "fc.bias"}
        return state.with_shared(**{"global": {**kept, **model}})

    made = MethodDefinition(lambda task: replace(for_task(task), aggregate=spoiling))
    monkeypatch.setitem(METHODS, "patchwork", made)
    gather(bench, [], rounds=rounds)

    stitch(bench, ALICE, BOB)

    assert f"shared['global']: {words}" in bench.show().rounds[1].reason


def test_a_list_that_a_method_changes_in_place_is_not_taken_for_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noting(task: TaskPlan) -> Method:
        made = for_task(task)

        def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
            notes = state.shared.get("notes", [])
            notes.append(len(notes))
            return made.aggregate(phase, state.with_shared(notes=notes), updates, tools)

        return replace(made, aggregate=aggregate)

    monkeypatch.setitem(METHODS, "patchwork", MethodDefinition(noting))
    gather(bench, [], rounds=3)
    stitch(bench, ALICE, BOB)

    stored, _ = method_state.load(bench.federation.store, bench.task.id)

    assert stored.shared["notes"] == bench.task.values.shared["notes"] == [0, 1]
