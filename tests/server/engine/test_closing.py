"""A round whose time is over and whose result is not there yet: what came counts, nothing else enters."""

import json
from collections.abc import Iterator
from hashlib import sha256

import numpy as np
import pytest

from fedlens_proto import blob
from fedlens_proto.v1 import admin_pb2, assignment_pb2, check_in_pb2, update_pb2
from fedlens_server.engine import clients, tasks, updates
from fedlens_server.errors import RoundClosed
from tests.server.bundles import tiny_bundle
from tests.server.fakes import SEED, Bench, client_ids, update_of
from tests.server.patchwork import registered

ALICE, BOB = client_ids(2)
WEIGHTS = {"fc.bias": np.full(2, 9.0, np.float32), "fc.weight": np.full((2, 3), 9.0, np.float32)}


@pytest.fixture
def closing(bench: Bench) -> Bench:
    """Alice has reported all weights 1, Bob nothing; the deadline has passed, and nothing is aggregated yet."""
    settings = {"method": "fedavg", "rounds": 2, "population": 2, "deadline_s": 60, "seed": SEED}
    bench.create(json.dumps(settings))
    bench.enrol([ALICE, BOB])
    bench.assignment(BOB)
    bench.report(ALICE, 1.0)
    bench.clock.wind(60)
    bench.freeze()
    return bench


def test_an_update_that_comes_while_its_round_is_closing_does_not_enter(closing: Bench) -> None:
    current = closing.task.round
    header, raw = update_of(_as_assigned(closing), WEIGHTS)

    with pytest.raises(RoundClosed):
        updates.expect(closing.federation, BOB, 1, 1)
    with pytest.raises(RoundClosed):
        closing.send(BOB, _as_assigned(closing), header, raw)
    closing.advance()

    np.testing.assert_array_equal(closing.model()["fc.bias"], [1.0, 1.0])
    assert current is not None
    assert current.members[BOB].state == admin_pb2.MEMBER_STATE_PENDING
    assert header.blob_sha256 not in closing.store.blobs.sizes


def test_a_bad_blob_or_a_failure_changes_nothing_in_a_closing_round(closing: Bench) -> None:
    begun = closing.begun[BOB, 1, 1]
    updates.quarantine(closing.federation, begun, "tensor 'fc.bias' holds a NaN or an infinity", b"b" * 32).result()
    with pytest.raises(RoundClosed):
        updates.accept_failure(closing.federation, BOB, 1, 1, update_pb2.FAILURE_REASON_NO_PHOTOS, "").result()

    states = {member.client_id: member.state for member in closing.show().rounds[0].members}
    assert states == {ALICE: admin_pb2.MEMBER_STATE_REPORTED, BOB: admin_pb2.MEMBER_STATE_PENDING}


def test_who_has_reported_gets_the_receipt_again_while_the_round_is_closing(closing: Bench) -> None:
    assignment = _as_assigned(closing)
    ones = {name: np.ones_like(value) for name, value in WEIGHTS.items()}

    again = closing.send(ALICE, assignment, *update_of(assignment, ones))

    digest = closing.member(ALICE).body_sha256
    assert again.body_sha256 == digest


def test_nobody_is_given_an_assignment_whose_time_is_over(bench: Bench) -> None:
    settings = {"method": "fedavg", "rounds": 2, "population": 2, "deadline_s": 60, "seed": SEED}
    bench.create(json.dumps(settings))
    bench.enrol([ALICE, BOB])
    bench.clock.wind(60)

    assert bench.check_in(ALICE).wait.reason == check_in_pb2.WAIT_REASON_NEXT_ROUND


@pytest.fixture
def gathering(bench: Bench) -> Iterator[Bench]:
    """A server that knows Patchwork."""
    with registered():
        yield bench


def start_gathering(bench: Bench, **changes: object) -> None:
    """A task whose state keeps the biases of each client; Alice's become [1, 1], Bob's [2, 2] after its first round."""
    settings = {"method": "patchwork", "rounds": 3, "population": 2, "deadline_s": 60, "seed": SEED, **changes}
    bench.create(json.dumps(settings), [tiny_bundle(references=["global"])])
    bench.enrol([ALICE, BOB])
    for client, value in ((ALICE, 1.0), (BOB, 2.0)):
        assignment = bench.assignment(client)
        upload = {"fc.bias": np.full(2, value, np.float32)}  # the difference to 0 is the same
        base = assignment.sets[0].sha256 if assignment.local_plan.upload.base_set else None
        header, _ = update_of(assignment, None, class_counts=[5, 5])
        raw = blob.encode(upload, base=base)
        header.blob_sha256, header.blob_size = sha256(raw).digest(), len(raw)
        bench.send(client, assignment, header, raw)


def is_kept(bench: Bench, value: float) -> bool:
    """Tell whether biases of this value are stored, alone and in full."""
    return sha256(blob.encode({"fc.bias": np.full(2, value, np.float32)})).digest() in bench.store.blobs.sizes


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("difference", [False, True])  # the upload itself enters the state, or is written anew for it
def test_what_a_client_forgotten_while_its_round_closes_would_have_had_kept_is_not_kept(
    gathering: Bench, difference: bool, restart: bool
) -> None:
    start_gathering(gathering, difference=difference)
    gathering.freeze()

    clients.forget(gathering.federation, ALICE).result()
    if restart:
        gathering.reopen()
    gathering.advance()

    assert gathering.show().rounds[0].state == admin_pb2.ROUND_STATE_COMMITTED
    assert not is_kept(gathering, 1.0)
    assert is_kept(gathering, 2.0)


@pytest.mark.parametrize("end", ["commit", "stop"])
@pytest.mark.parametrize("restart", [False, True])
def test_what_was_kept_of_a_client_forgotten_while_a_round_closes_goes_with_the_end_of_that_round(
    gathering: Bench, end: str, restart: bool
) -> None:
    start_gathering(gathering)
    gathering.advance()
    assignment = gathering.assignment(BOB)
    gathering.send(BOB, assignment, *update_of(assignment, None))
    gathering.clock.wind(60)
    gathering.freeze(2)

    clients.forget(gathering.federation, ALICE).result()
    if restart:
        gathering.reopen()
    before = is_kept(gathering, 1.0)
    if end == "stop":
        tasks.stop(gathering.federation, "task").result()
    else:
        gathering.advance()

    assert before  # from a closing round nothing is taken away
    assert not is_kept(gathering, 1.0)
    assert is_kept(gathering, 2.0)


def _as_assigned(bench: Bench) -> assignment_pb2.Assignment:
    """The assignments that members got while the round was open."""
    task = bench.task
    return assignment_pb2.Assignment(task=1, round=1, phase=0, bundle=task.bundles[0].id)


def test_a_round_one_of_whose_files_is_gone_is_abandoned_and_the_next_one_opens(bench: Bench) -> None:
    # 2 x 20000 float32 are more than a row takes, so that every update is a file.
    settings = {"method": "fedavg", "rounds": 2, "population": 2, "deadline_s": 60, "seed": SEED}
    bench.create(json.dumps(settings), [tiny_bundle(features=20_000)])
    bench.enrol([ALICE, BOB])
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
