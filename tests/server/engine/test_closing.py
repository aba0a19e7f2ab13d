"""A round whose time is over and whose result is not there yet: what came counts, nothing else enters."""

import errno
import os
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from fedlens_proto import blob
from fedlens_proto.v1 import admin_pb2, assignment_pb2, check_in_pb2
from fedlens_server.engine import rounds
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.errors import RoundClosed
from fedlens_server.store import tensors
from tests.server.bundles import tiny_bundle
from tests.server.elsewhere import needs_a_folder
from tests.server.fakes import ALICE, BOB, Bench, update_of
from tests.server.networks import network, weights

WEIGHTS = {"fc.bias": np.full(2, 9.0, np.float32), "fc.weight": np.full((2, 3), 9.0, np.float32)}


@pytest.fixture
def closing(running: Bench) -> Bench:
    """Alice has reported all weights 1, Bob nothing; the deadline has passed, and nothing is aggregated yet."""
    running.assignment(BOB)
    running.report(ALICE, 1.0)
    running.clock.wind(60)
    running.freeze()
    return running


def test_an_update_that_comes_while_its_round_is_closing_does_not_enter(closing: Bench) -> None:
    header, raw = update_of(_as_assigned(closing), WEIGHTS)

    with pytest.raises(RoundClosed):
        closing.expect(BOB)
    with pytest.raises(RoundClosed):
        closing.send(BOB, _as_assigned(closing), header, raw)
    closing.advance()

    np.testing.assert_array_equal(closing.model()["fc.bias"], [1.0, 1.0])
    assert closing.members()[BOB].state == admin_pb2.MEMBER_STATE_PENDING
    assert header.uploads[0].sha256 not in closing.store.blobs.sizes


def test_a_bad_blob_or_a_failure_changes_nothing_in_a_closing_round(closing: Bench) -> None:
    closing.quarantine(closing.begun[BOB, 1, 1])
    with pytest.raises(RoundClosed):
        closing.fail(BOB)

    states = {client: member.state for client, member in closing.members().items()}
    assert states == {ALICE: admin_pb2.MEMBER_STATE_REPORTED, BOB: admin_pb2.MEMBER_STATE_PENDING}


def test_who_has_reported_gets_the_receipt_again_while_the_round_is_closing(closing: Bench) -> None:
    assignment = _as_assigned(closing)
    ones = {name: np.ones_like(value) for name, value in WEIGHTS.items()}

    again = closing.send(ALICE, assignment, *update_of(assignment, ones))

    assert again.body_sha256 == closing.member(ALICE).body_sha256


def test_nobody_is_given_an_assignment_whose_time_is_over(running: Bench) -> None:
    running.clock.wind(60)

    assert running.check_in(ALICE).wait.reason == check_in_pb2.WAIT_REASON_NEXT_ROUND


def gather(bench: Bench, **changes: object) -> None:
    """A task whose state keeps the biases of each client; Alice's become [1, 1], Bob's [2, 2] after its first round."""
    bench.start(tiny_bundle(references=["global"]), method="patchwork", **changes)
    for client, value in ((ALICE, 1.0), (BOB, 2.0)):
        assignment = bench.assignment(client)
        base = assignment.sets[0].sha256 if assignment.local_plan.uploads[0].base else None
        biases = {"fc.bias": np.full(2, value, np.float32)}  # the difference to 0 is the same
        bench.upload(client, biases, class_counts=[5, 5], base=base)


def is_kept(bench: Bench, value: float) -> bool:
    """Tell whether biases of this value are stored, alone and in full."""
    return sha256(blob.encode({"fc.bias": np.full(2, value, np.float32)})).digest() in bench.store.blobs.sizes


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("difference", [False, True])  # the upload itself enters the state, or is written anew for it
def test_what_a_client_forgotten_while_its_round_closes_would_have_had_kept_is_not_kept(
    patchwork: Bench, difference: bool, restart: bool
) -> None:
    gather(patchwork, difference=difference)
    patchwork.freeze()

    patchwork.forget(ALICE)
    if restart:
        patchwork.reopen()
    patchwork.advance()

    assert patchwork.show().rounds[0].state == admin_pb2.ROUND_STATE_COMMITTED
    assert not is_kept(patchwork, 1.0)
    assert is_kept(patchwork, 2.0)


@pytest.mark.parametrize("end", ["commit", "stop"])
@pytest.mark.parametrize("restart", [False, True])
def test_what_was_kept_of_a_client_forgotten_while_a_round_closes_goes_with_the_end_of_that_round(
    patchwork: Bench, end: str, restart: bool
) -> None:
    gather(patchwork)
    patchwork.advance()
    patchwork.upload(BOB)
    patchwork.clock.wind(60)
    patchwork.freeze(2)

    patchwork.forget(ALICE)
    if restart:
        patchwork.reopen()
    before = is_kept(patchwork, 1.0)
    if end == "stop":
        tasks.stop(patchwork.federation, tasks.find(patchwork.federation, "task"), ADMIN).result()
    else:
        patchwork.advance()

    assert before  # from a closing round nothing is taken away
    assert not is_kept(patchwork, 1.0)
    assert is_kept(patchwork, 2.0)


def _as_assigned(bench: Bench) -> assignment_pb2.Assignment:
    """The assignments that members got while the round was open."""
    plan = bench.task.phases[0].plan
    return assignment_pb2.Assignment(task=1, round=1, phase=0, bundle=bench.task.bundles[0].id, local_plan=plan)


@needs_a_folder
def test_a_round_one_of_whose_files_is_gone_is_abandoned_and_the_next_one_opens(bench: Bench) -> None:
    # 2 x 20000 float32 are more than a row takes, so that every update is a file.
    bench.start(tiny_bundle(features=20_000))
    before = set((bench.folder / "blobs").iterdir())
    bench.report(ALICE, 1.0)
    (uploaded,) = {path for path in (bench.folder / "blobs").iterdir() if path.is_file()} - before
    bench.report(BOB, 2.0)
    uploaded.unlink()

    bench.advance()

    first, second = tasks.show(bench.federation, "task").rounds
    assert first.state == admin_pb2.ROUND_STATE_ABANDONED
    assert "the method failed" in first.reason
    assert second.state == admin_pb2.ROUND_STATE_OPEN


@needs_a_folder
@pytest.mark.parametrize("call", ["open", "preadv"])
def test_a_disk_that_fails_while_a_round_is_aggregated_costs_no_update(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    width = 10_000
    bench.make(network(width), method="fedavg", population=2)
    bench.enrol([ALICE, BOB])
    for client, value in ((ALICE, 1.0), (BOB, 3.0)):
        bench.upload(client, weights(value, width=width))
    own = getattr(os, call)
    failures = [OSError(errno.EIO, os.strerror(errno.EIO))]

    def fails_once(*given: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return own(*given, **named)

    monkeypatch.setattr(tensors.os, call, fails_once)
    bench.advance()

    assert not failures
    assert bench.task.round.closing
    bench.clock.wind(rounds.RETRY_S)
    bench.advance()
    np.testing.assert_array_equal(bench.model()["bn.weight"], [2.0, 2.0])
