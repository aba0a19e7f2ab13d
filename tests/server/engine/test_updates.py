"""Updates of members: sent once, twice, late, or wrong."""

import json
import threading
from concurrent.futures import Future
from hashlib import sha256

import numpy as np
import pytest

from fedlens_proto.v1 import admin_pb2, assignment_pb2, update_pb2
from fedlens_server.engine import aggregation, assignments, evaluation, updates
from fedlens_server.engine.updates import ReceivedUpdate
from fedlens_server.errors import (
    AlreadyFailed,
    Forbidden,
    Malformed,
    RoundClosed,
    StorageFull,
    Unknown,
    UpdateDiffers,
    UpdateInvalid,
)
from fedlens_server.store import PendingBlob
from tests.server.bundles import tiny_bundle
from tests.server.fakes import EVALUATORS, SEED, Bench, client_ids, update_of

ALICE, BOB, CAROL = client_ids(3)
EVE = client_ids(10)[-1]
NO_PHOTOS = update_pb2.FAILURE_REASON_NO_PHOTOS


def start(bench: Bench, **changes: object) -> Bench:
    settings = {"method": "fedavg", "rounds": 3, "population": 2, "deadline_s": 60, "seed": SEED, **changes}
    bench.create(json.dumps(settings), [tiny_bundle(with_counter=True)])
    bench.enrol([ALICE, BOB])
    return bench


@pytest.fixture
def running(bench: Bench) -> Bench:
    return start(bench)


def weights(value: float) -> dict[str, np.ndarray]:
    return {
        "bn.batches": np.array(4, np.int64),
        "fc.bias": np.full(2, value, np.float32),
        "fc.weight": np.full((2, 3), value, np.float32),
    }


def member(bench: Bench, client: bytes, round_number: int = 1) -> admin_pb2.MemberResult:
    members = bench.show().rounds[round_number - 1].members
    return next(found for found in members if found.client_id == client)


def send(bench: Bench, assignment: assignment_pb2.Assignment, value: float = 1.0, count: int = 10, client=ALICE):
    return bench.send(client, assignment, *update_of(assignment, weights(value), count))


def quarantine(bench: Bench, reason: str, body_sha256: bytes | None = None) -> None:
    membership = updates.expect(bench.federation, ALICE, 1, 1)
    updates.quarantine(bench.federation, membership, reason, body_sha256).result()


def test_an_update_sent_twice_gets_the_same_receipt_and_counts_once(running: Bench) -> None:
    assignment = running.assignment(ALICE)

    first, second = send(running, assignment), send(running, assignment)

    assert first == second
    assert aggregation.due(running.federation) == []


def test_the_same_bytes_get_their_receipt_when_the_round_is_long_over(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    first = send(running, assignment)
    running.report(BOB)
    running.advance()
    running.reopen()

    assert updates.expect(running.federation, ALICE, 1, 1).layout is not None
    assert send(running, assignment) == first


def test_a_second_update_with_other_bytes_is_refused_and_the_first_one_counts(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    send(running, assignment, 1.0)

    with pytest.raises(UpdateDiffers):
        send(running, assignment, 2.0)
    running.report(BOB, 1.0)
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [1.0, 1.0])
    with pytest.raises(UpdateDiffers):
        send(running, assignment, 2.0)


def test_two_different_updates_at_the_same_moment_leave_one(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    received = []
    for value in (1.0, 2.0):
        header, raw = update_of(assignment, weights(value))
        blob = PendingBlob(header.blob_sha256, len(raw), raw=raw)
        received.append(ReceivedUpdate(header=header, body_sha256=sha256(raw).digest(), body_size=len(raw), blob=blob))

    membership = updates.expect(running.federation, ALICE, 1, 1)
    futures = [updates.accept(running.federation, membership, update) for update in received]

    assert futures[0].result().body_sha256 == received[0].body_sha256
    assert isinstance(futures[1].exception(), UpdateDiffers)


def test_an_update_after_the_round_is_refused(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    running.report(BOB)
    running.clock.wind(60)
    running.advance()

    with pytest.raises(RoundClosed):
        updates.expect(running.federation, ALICE, 1, 1)
    with pytest.raises(RoundClosed):
        send(running, assignment)


def test_foreign_tasks_rounds_and_members_are_refused(running: Bench) -> None:
    running.enrol([CAROL])

    with pytest.raises(Unknown, match="no task 9"):
        updates.expect(running.federation, ALICE, 9, 1)
    for number in (0, 2, 2**64 - 1):
        with pytest.raises(Unknown, match="has no round"):
            updates.expect(running.federation, ALICE, 1, number)
    with pytest.raises(Forbidden, match="not a member"):
        updates.expect(running.federation, CAROL, 1, 1)


def test_an_expectation_is_the_uploads_exact_layout(running: Bench) -> None:
    layout = updates.expect(running.federation, ALICE, 1, 1).layout
    header, raw = update_of(running.assignment(ALICE), weights(1.0))

    assert layout is not None
    assert [str(spec) for spec in layout.specs] == [
        "bn.batches int64[]",
        "fc.bias float32[2]",
        "fc.weight float32[2, 3]",
    ]
    assert layout.size == header.blob_size == len(raw)


def test_a_half_precision_task_expects_half_precision(bench: Bench) -> None:
    start(bench, codec="f16")

    layout = updates.expect(bench.federation, ALICE, 1, 1).layout
    assert layout is not None
    assert str(layout.specs[1]) == "fc.bias float16[2]"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"phase": 1}, "phase: found 1, the round is of phase 0"),
        ({"bundle": b"\1" * 32}, "bundle: found 0101"),
        ({"num_examples": 10**9}, "num_examples: found 1000000000, at most 1000000"),
        ({"num_examples": 2**64 - 1}, "num_examples: found 18446744073709551615"),
        ({"class_counts": [5, 5]}, "class_counts came where none were asked for"),
        ({"evaluations": [update_pb2.EvaluationSums(moment=1, count=2**63)]}, "photos right"),
        ({"evaluations": [update_pb2.EvaluationSums(moment=1, count=1, correct=2)]}, "2 of 1 photos right"),
        ({"evaluations": [update_pb2.EvaluationSums(moment=2, count=1, loss=float("nan"))]}, "a loss of nan"),
        ({"evaluations": [update_pb2.EvaluationSums(moment=2), update_pb2.EvaluationSums(moment=1)]}, "moments"),
        ({"evaluations": [update_pb2.EvaluationSums(moment=7)]}, "moments"),
    ],
)
def test_an_unacceptable_header_quarantines_the_member(running: Bench, change: dict[str, object], reason: str) -> None:
    assignment = running.assignment(ALICE)
    header, raw = update_of(assignment, weights(1.0))
    for name in change:
        header.ClearField(name)  # type: ignore[arg-type]
    header.MergeFrom(update_pb2.UpdateHeader(**change))  # type: ignore[arg-type]

    with pytest.raises(UpdateInvalid, match=reason):
        running.send(ALICE, assignment, header, raw)

    found = member(running, ALICE)
    assert found.state == admin_pb2.MEMBER_STATE_QUARANTINED
    assert reason in found.reason
    assert header.blob_sha256 not in running.store.blobs.sizes


def test_a_quarantined_member_counts_as_reported_and_the_round_goes_on(running: Bench) -> None:
    quarantine(running, "tensor 'fc.bias' holds a NaN or an infinity", b"b" * 32)
    running.report(BOB, 3.0)
    running.advance()

    np.testing.assert_array_equal(running.model()["fc.bias"], [3.0, 3.0])
    assert member(running, ALICE).reason == "tensor 'fc.bias' holds a NaN or an infinity"


def test_a_quarantined_member_cannot_send_again(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    quarantine(running, "bad")

    with pytest.raises(UpdateInvalid, match="bad"):
        updates.expect(running.federation, ALICE, 1, 1)
    with pytest.raises(UpdateInvalid, match="bad"):
        send(running, assignment)
    assert running.check_in(ALICE).HasField("wait")


def test_a_member_that_has_reported_is_not_quarantined_any_more(running: Bench) -> None:
    running.report(ALICE)

    quarantine(running, "a second body, cut off")

    assert member(running, ALICE).state == admin_pb2.MEMBER_STATE_REPORTED


def test_a_bad_blob_after_a_report_is_a_second_update_with_other_bytes(running: Bench) -> None:
    running.report(ALICE)

    with pytest.raises(UpdateDiffers):
        quarantine(running, "tensor 'fc.bias' holds a NaN or an infinity", b"b" * 32)

    assert member(running, ALICE).state == admin_pb2.MEMBER_STATE_REPORTED


def test_an_update_too_far_from_its_download_is_quarantined(bench: Bench) -> None:
    # From 0, 8 floats of 2.0 differ by sqrt(8 * 4) = 5.66; of 1.0 by sqrt(8) = 2.83. The counter does not count.
    start(bench, max_update_norm=3.0)
    send(bench, bench.assignment(ALICE), 1.0)

    with pytest.raises(UpdateInvalid, match=r"norm 5\.65685, at most 3 is allowed"):
        send(bench, bench.assignment(BOB), 2.0, client=BOB)


def test_a_norm_too_large_for_float32_is_still_compared(bench: Bench) -> None:
    start(bench, max_update_norm=1e30)

    with pytest.raises(UpdateInvalid, match="norm 8"):
        send(bench, bench.assignment(ALICE), 3e38)


def test_updates_with_a_bound_on_their_norm_share_a_commit(bench: Bench) -> None:
    start(bench, max_update_norm=3.0)
    gate = threading.Event()
    bench.store.submit(lambda _: gate.wait())

    def begin(client: bytes) -> Future[update_pb2.Receipt]:
        header, raw = update_of(bench.assignment(client), weights(1.0))
        stored = PendingBlob(header.blob_sha256, len(raw), raw=raw)
        received = ReceivedUpdate(header=header, body_sha256=sha256(client).digest(), body_size=len(raw), blob=stored)
        return updates.accept(bench.federation, updates.expect(bench.federation, client, 1, 1), received)

    receipts = [begin(client) for client in (ALICE, BOB)]
    try:
        # Both norms are found, one after the other, while the writing thread is still busy.
        bench.federation.norms.submit(lambda: None).result(5)
    finally:
        gate.set()

    assert [receipt.result().body_sha256 for receipt in receipts] == [sha256(c).digest() for c in (ALICE, BOB)]


def test_a_failure_is_final_for_the_round(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    updates.accept_failure(running.federation, ALICE, 1, 1, NO_PHOTOS, "album is empty").result()
    updates.accept_failure(running.federation, ALICE, 1, 1, NO_PHOTOS, "again").result()

    with pytest.raises(AlreadyFailed):
        updates.expect(running.federation, ALICE, 1, 1)
    with pytest.raises(AlreadyFailed):
        send(running, assignment)
    assert member(running, ALICE).reason == "no-photos: album is empty"
    assert running.check_in(ALICE).HasField("wait")


def test_a_failure_counts_as_an_answer(running: Bench) -> None:
    updates.accept_failure(running.federation, ALICE, 1, 1, NO_PHOTOS, "").result()
    running.report(BOB, 3.0)
    running.advance()

    assert running.assignment(ALICE).round == 2


def test_a_failure_after_an_update_is_refused(running: Bench) -> None:
    running.report(ALICE)

    with pytest.raises(UpdateDiffers):
        updates.accept_failure(running.federation, ALICE, 1, 1, NO_PHOTOS, "").result()


def test_what_a_client_says_of_its_failure_cannot_command_a_terminal(running: Bench) -> None:
    said = "out of\nmemory \x1b]0;title\x07, sagt Zoë"
    updates.accept_failure(running.federation, ALICE, 1, 1, update_pb2.FAILURE_REASON_INTERNAL, said).result()

    reasons = [member.reason for member in running.show().rounds[0].members]
    assert "internal: out of memory  ]0;title , sagt Zoë" in reasons


@pytest.mark.parametrize(("reason", "detail"), [(0, ""), (99, ""), (1, "x" * 1001)])
def test_a_failure_without_a_known_reason_is_refused(running: Bench, reason: int, detail: str) -> None:
    with pytest.raises(Malformed):
        updates.accept_failure(running.federation, ALICE, 1, 1, reason, detail).result()  # type: ignore[arg-type]


def test_a_full_disk_is_answered_with_later_and_the_same_update_is_taken_then(
    running: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedlens_server.store import Transaction
    from fedlens_server.store.blobs import full

    def fail(*_: object) -> None:
        raise full()

    assignment = running.assignment(ALICE)
    monkeypatch.setattr(Transaction, "place", fail)
    with pytest.raises(StorageFull):
        send(running, assignment)
    assert member(running, ALICE).state == admin_pb2.MEMBER_STATE_PENDING
    monkeypatch.undo()

    send(running, assignment)
    assert member(running, ALICE).state == admin_pb2.MEMBER_STATE_REPORTED


def test_a_client_reads_its_sets_and_bundle_and_nothing_else(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    bundle = tiny_bundle(with_counter=True)
    send(running, assignment, 5.0)
    header, _ = update_of(assignment, weights(5.0))

    for raw in bundle.parts:
        assert assignments.readable(running.federation, BOB, sha256(raw).digest()).size == len(raw)
    assert assignments.readable(running.federation, BOB, assignment.sets[0].sha256).size == assignment.sets[0].size
    for digest in (header.blob_sha256, b"\0" * 32, b"short", b""):
        with pytest.raises(Unknown):
            assignments.readable(running.federation, BOB, digest)
        with pytest.raises(Unknown):
            assignments.readable(running.federation, ALICE, digest)


def evaluated(running: Bench, **changes: object) -> update_pb2.UpdateHeader:
    assignment = running.assignment(EVE)
    sums = update_pb2.EvaluationSums(moment=update_pb2.EVALUATION_MOMENT_START, count=10, correct=8, loss=2.0)
    fields = {"protocol": 1, "phase": assignment.phase, "bundle": assignment.bundle, "evaluations": [sums], **changes}
    return update_pb2.UpdateHeader(**fields)  # type: ignore[arg-type]


@pytest.fixture
def evaluating(running: Bench) -> Bench:
    """The first round has committed, and Eve is to evaluate it."""
    running.enrol([EVE], EVALUATORS)
    running.report(ALICE)
    running.report(BOB)
    running.advance()
    return running


def test_an_evaluation_sent_twice_gets_the_same_receipt(evaluating: Bench) -> None:
    header = evaluated(evaluating)

    first = evaluation.accept(evaluating.federation, EVE, 1, 1, header, b"x" * 32).result()
    second = evaluation.accept(evaluating.federation, EVE, 1, 1, header, b"x" * 32).result()

    assert first == second
    with pytest.raises(UpdateDiffers):
        evaluation.accept(evaluating.federation, EVE, 1, 1, header, b"y" * 32).result()


def test_an_evaluation_of_a_round_that_another_has_followed_is_refused(evaluating: Bench) -> None:
    header = evaluated(evaluating)
    evaluating.report(ALICE)
    evaluating.report(BOB)
    evaluating.advance()

    with pytest.raises(RoundClosed):
        evaluation.accept(evaluating.federation, EVE, 1, 1, header, b"x" * 32).result()
    for number in (0, 3, 2**64 - 1):
        with pytest.raises(Unknown):
            evaluation.accept(evaluating.federation, EVE, 1, number, header, b"x" * 32).result()


def test_trainers_do_not_send_evaluations(evaluating: Bench) -> None:
    with pytest.raises(Forbidden):
        evaluation.accept(evaluating.federation, ALICE, 1, 1, evaluated(evaluating), b"x" * 32).result()


@pytest.mark.parametrize(
    "change",
    [{"bundle": b"\1" * 32}, {"phase": 3}, {"evaluations": []}, {"class_counts": [1]}, {"blob_sha256": b"\1" * 32}],
)
def test_an_unacceptable_evaluation_is_refused(evaluating: Bench, change: dict[str, object]) -> None:
    with pytest.raises(UpdateInvalid):
        evaluation.accept(evaluating.federation, EVE, 1, 1, evaluated(evaluating, **change), b"x" * 32).result()
    assert evaluating.assignment(EVE).round == 1
