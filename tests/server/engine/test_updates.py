"""Updates of members: sent once, twice, late, or wrong."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import admin_pb2, assignment_pb2, update_pb2
from fedlens_server.engine import aggregation, assignments, updates
from fedlens_server.engine.operators import bans
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.engine.updates import ReceivedUpdate
from fedlens_server.errors import (
    AlreadyFailed,
    Forbidden,
    Malformed,
    RoundClosed,
    Unknown,
    UpdateDiffers,
    UpdateInvalid,
)
from fedlens_server.store import PendingBlob
from tests.server.bundles import tiny_bundle
from tests.server.fakes import ALICE, BOB, CAROL, EVALUATORS, EVE, Bench, evaluation_of, update_of

BUNDLE = tiny_bundle(with_counter=True)
BAD_BLOB = "tensor 'fc.bias' holds a NaN or an infinity"


@pytest.fixture
def running(bench: Bench) -> Bench:
    return bench.start(BUNDLE)


def weights(value: float) -> dict[str, np.ndarray]:
    return {
        "bn.batches": np.array(4, np.int64),
        "fc.bias": np.full(2, value, np.float32),
        "fc.weight": np.full((2, 3), value, np.float32),
    }


def sums(label: str, **numbers: Any) -> update_pb2.EvaluationSums:
    return update_pb2.EvaluationSums(label=label, **numbers)


def received(assignment: assignment_pb2.Assignment, value: float, body: bytes) -> ReceivedUpdate:
    header, raw = update_of(assignment, weights(value))
    stored = PendingBlob(header.uploads[0].sha256, len(raw), raw=raw)
    return ReceivedUpdate(header=header, body_sha256=sha256(body).digest(), body_size=len(raw), blobs=(stored,))


def send(bench: Bench, assignment: assignment_pb2.Assignment, value: float = 1.0, client: bytes = ALICE):
    return bench.send(client, assignment, *update_of(assignment, weights(value)))


def test_an_update_sent_again_gets_the_same_receipt_and_counts_once_even_when_the_round_is_long_over(
    running: Bench,
) -> None:
    assignment = running.assignment(ALICE)
    first, second = send(running, assignment), send(running, assignment)
    due = aggregation.due(running.federation)
    running.report(BOB)
    running.advance()
    running.reopen()

    assert due == []
    assert len(running.expect().layouts) == 1
    assert send(running, assignment) == second == first


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
    assignment, membership = running.assignment(ALICE), running.expect()

    first, second = [
        updates.accept(running.federation, membership, received(assignment, value, body))
        for value, body in ((1.0, b"first"), (2.0, b"second"))
    ]

    assert first.result().body_sha256 == sha256(b"first").digest()
    assert isinstance(second.exception(), UpdateDiffers)


def test_an_update_after_the_round_is_refused(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    running.report(BOB)
    running.clock.wind(60)
    running.advance()

    with pytest.raises(RoundClosed):
        running.expect()
    with pytest.raises(RoundClosed):
        send(running, assignment)


def test_foreign_tasks_rounds_and_members_are_refused(running: Bench) -> None:
    running.enrol([CAROL])

    with pytest.raises(Unknown, match="no task 9"):
        running.expect(task=9)
    for number in (0, 2, 2**64 - 1):
        with pytest.raises(Unknown, match="has no round"):
            running.expect(number=number)
    with pytest.raises(Forbidden, match="not a member"):
        running.expect(CAROL)


@pytest.mark.parametrize(("codec", "floats"), [("f32", "float32"), ("f16", "float16")])
def test_an_expectation_is_the_uploads_exact_layout(bench: Bench, codec: str, floats: str) -> None:
    bench.start(BUNDLE, codec=codec)

    (layout,) = bench.expect().layouts

    assert [str(spec) for spec in layout.specs] == [
        "bn.batches int64[]",
        f"fc.bias {floats}[2]",
        f"fc.weight {floats}[2, 3]",
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"phase": 1}, "phase: found 1, the round is of phase 0"),
        ({"bundle": b"\1" * 32}, "bundle: found 0101"),
        ({"num_examples": 10**9}, "num_examples: found 1000000000, at most 1000000"),
        ({"num_examples": 2**64 - 1}, "num_examples: found 18446744073709551615"),
        ({"class_counts": [5, 5]}, "class_counts came where none were asked for"),
        ({"evaluations": [sums("start", count=10**9), sums("trained")]}, "1000000000 photos, at most 1000000 are"),
        ({"evaluations": [sums("start", count=1, correct=2), sums("trained")]}, "2 of 1 photos right"),
        ({"evaluations": [sums("start"), sums("trained", count=1, loss=float("nan"))]}, "a loss of nan"),
        ({"evaluations": [sums("start"), sums("trained", count=1, loss=-1.0)]}, "a loss of -1"),
        ({"evaluations": [sums("trained"), sums("start")]}, "found 'trained', 'start', asked for were 'start', 'train"),
        ({"evaluations": [sums("start")]}, "evaluations: found 'start', asked for were 'start', 'trained'"),
        ({"evaluations": []}, "evaluations: found none, asked for were 'start', 'trained'"),
        ({"evaluations": [sums("start"), sums("trained"), sums("trained")]}, "evaluations: found"),
    ],
)
def test_an_unacceptable_header_quarantines_the_member(running: Bench, change: dict[str, Any], reason: str) -> None:
    assignment = running.assignment(ALICE)
    header, raw = update_of(assignment, weights(1.0))
    for name in change:
        header.ClearField(name)  # type: ignore[arg-type]
    header.MergeFrom(update_pb2.UpdateHeader(**change))

    with pytest.raises(UpdateInvalid, match=reason):
        running.send(ALICE, assignment, header, raw)

    found = running.members()[ALICE]
    assert found.state == admin_pb2.MEMBER_STATE_QUARANTINED
    assert reason in found.reason
    assert header.uploads[0].sha256 not in running.store.blobs.sizes


@pytest.mark.parametrize(
    ("end", "refusal", "reason"),
    [
        (lambda bench: bench.quarantine(bench.expect(), "bad"), UpdateInvalid, "bad"),
        (lambda bench: bench.fail(ALICE, detail="album is empty"), AlreadyFailed, "no-photos: album is empty"),
    ],
    ids=["quarantined", "failed"],
)
def test_a_member_that_is_quarantined_or_has_failed_is_so_for_the_round_which_goes_on(
    running: Bench, end: Callable[[Bench], None], refusal: type[Exception], reason: str
) -> None:
    assignment = running.assignment(ALICE)
    end(running)
    running.fail(ALICE, detail="again")

    with pytest.raises(refusal, match=reason):
        running.expect()
    with pytest.raises(refusal, match=reason):
        send(running, assignment)
    assert running.check_in(ALICE).HasField("wait")
    running.report(BOB, 3.0)
    running.advance()
    np.testing.assert_array_equal(running.model()["fc.bias"], [3.0, 3.0])
    assert running.members()[ALICE].reason == reason
    assert running.assignment(ALICE).round == 2


def test_a_member_that_has_reported_is_not_quarantined_any_more(running: Bench) -> None:
    running.report(ALICE)

    running.quarantine(running.expect(), "a second body, cut off")
    with pytest.raises(UpdateDiffers):
        running.quarantine(running.expect(), BAD_BLOB, b"b" * 32)

    assert running.members()[ALICE].state == admin_pb2.MEMBER_STATE_REPORTED


@pytest.mark.parametrize(
    # From 0, 8 floats of 2.0 differ by sqrt(8 * 4) = 5.66; of 1.0 by sqrt(8) = 2.83. The counter does not count.
    ("most", "near", "far", "norm"),
    [(3.0, 1.0, 2.0, r"5\.65685, at most 3 is allowed"), (1e30, 1e29, 3e38, "8.*e[+]38")],
    ids=["small", "too large for float32"],
)
def test_an_update_too_far_from_its_download_is_quarantined(
    bench: Bench, most: float, near: float, far: float, norm: str
) -> None:
    bench.start(BUNDLE, max_update_norm=most)
    send(bench, bench.assignment(ALICE), near)

    with pytest.raises(UpdateInvalid, match=f"norm {norm}"):
        send(bench, bench.assignment(BOB), far, client=BOB)


def test_tensors_that_may_start_from_client_state_change_from_the_nearest_download(patchwork: Bench) -> None:
    # From 0.5 to 2.0 two biases move by sqrt(2 * 1.5^2) = 2.12.
    patchwork.start(tiny_bundle(references=("global",), fill=0.5), method="patchwork", max_update_norm=2.0)

    with pytest.raises(UpdateInvalid, match=r"norm 2\.12132, at most 2 is allowed"):
        patchwork.upload(ALICE, {"fc.bias": np.full(2, 2.0, np.float32)}, class_counts=[4, 6])


def test_updates_with_a_bound_on_their_norm_share_a_commit(bench: Bench) -> None:
    bench.start(BUNDLE, max_update_norm=3.0)
    gate = threading.Event()
    bench.store.submit(lambda _: gate.wait())

    def begin(client: bytes) -> Future[update_pb2.Receipt]:
        update = received(bench.assignment(client), 1.0, body=client)
        return updates.accept(bench.federation, bench.expect(client), update)

    receipts = [begin(client) for client in (ALICE, BOB)]
    try:
        # Both norms are found, one after the other, while the writing thread is still busy.
        bench.federation.norms.submit(lambda: None).result(5)
    finally:
        gate.set()

    assert [receipt.result().body_sha256 for receipt in receipts] == [sha256(c).digest() for c in (ALICE, BOB)]


@pytest.mark.parametrize("bound", [None, 3.0])
@pytest.mark.parametrize("returns", [False, True])
def test_an_update_under_way_when_its_client_left_the_round_is_refused(
    bench: Bench, bound: float | None, returns: bool
) -> None:
    bench.start(BUNDLE, max_update_norm=bound)
    update = received(bench.assignment(ALICE), 1.0, body=b"body")
    begun = bench.expect(ALICE)
    bans.ban(bench.federation, ALICE, "noise", ADMIN).result()
    if returns:
        bans.unban(bench.federation, ALICE, ADMIN).result()

    with pytest.raises(Forbidden):
        updates.accept(bench.federation, begun, update).result()


def test_a_failure_after_an_update_is_refused(running: Bench) -> None:
    running.report(ALICE)

    with pytest.raises(UpdateDiffers):
        running.fail(ALICE)


def test_what_a_client_says_of_its_failure_cannot_command_a_terminal(running: Bench) -> None:
    running.fail(ALICE, update_pb2.FAILURE_REASON_INTERNAL, "out of\nmemory \x1b]0;title\x07, sagt Zoë")

    assert running.members()[ALICE].reason == "internal: out of memory  ]0;title , sagt Zoë"


@pytest.mark.parametrize(("reason", "detail"), [(0, ""), (99, ""), (1, "x" * 1001)])
def test_a_failure_without_a_known_reason_is_refused(running: Bench, reason: int, detail: str) -> None:
    with pytest.raises(Malformed):
        running.fail(ALICE, reason, detail)


def test_a_client_reads_its_sets_and_bundle_and_nothing_else(running: Bench) -> None:
    assignment = running.assignment(ALICE)
    send(running, assignment, 5.0)
    header, _ = update_of(assignment, weights(5.0))

    for raw in BUNDLE.parts:
        assert assignments.readable(running.federation, BOB, sha256(raw).digest()).size == len(raw)
    assert assignments.readable(running.federation, BOB, assignment.sets[0].sha256).size == assignment.sets[0].size
    for digest in (header.uploads[0].sha256, b"\0" * 32, b"short", b""):
        with pytest.raises(Unknown):
            assignments.readable(running.federation, BOB, digest)
        with pytest.raises(Unknown):
            assignments.readable(running.federation, ALICE, digest)


@pytest.fixture
def evaluating(bench: Bench) -> Bench:
    """The first of nine rounds has committed, and Eve is to evaluate it."""
    bench.start(rounds=9)
    bench.enrol([EVE], EVALUATORS)
    bench.commit()
    return bench


def test_an_evaluator_that_takes_longer_than_a_round_answers(evaluating: Bench) -> None:
    given = evaluating.assignment(EVE)
    for _ in range(6):  # the state itself is kept for three commits
        evaluating.commit()

    again = evaluating.assignment(EVE)
    assert (again.round, again.sets) == (given.round, given.sets)
    assert assignments.readable(evaluating.federation, EVE, given.sets[0].sha256).size == given.sets[0].size
    evaluating.evaluate(EVE, evaluation_of(given))

    assert evaluating.show().rounds[0].__getattribute__("global")[0].correct == 8
    assert evaluating.assignment(EVE).round == 7


def test_an_evaluation_after_its_deadline_is_refused_once_another_round_has_followed(evaluating: Bench) -> None:
    header = evaluation_of(evaluating.assignment(EVE))
    evaluating.commit()
    evaluating.clock.wind(60)

    assert evaluating.assignment(EVE).round == 2
    with pytest.raises(RoundClosed):
        evaluating.evaluate(EVE, header)
    for number in (0, 3, 2**64 - 1):
        with pytest.raises(Unknown):
            evaluating.evaluate(EVE, header, number)


@pytest.mark.parametrize(
    "change",
    [
        {"bundle": b"\1" * 32},
        {"phase": 3},
        {"evaluations": []},
        {"evaluations": [sums("start")]},
        {"evaluations": [sums("global", count=1_000_001)]},
        {"class_counts": [1]},
        {"uploads": [update_pb2.UploadedBlob(name="weights")]},
    ],
)
def test_an_unacceptable_evaluation_is_refused(evaluating: Bench, change: dict[str, object]) -> None:
    with pytest.raises(UpdateInvalid):
        evaluating.evaluate(EVE, evaluation_of(evaluating.assignment(EVE), **change))
    assert evaluating.assignment(EVE).round == 1
