"""Uploads and downloads as int8 and as differences: what methods and clients make of them, and what is kept."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from fedlens_proto import blob
from fedlens_proto.blob import Array, Blob
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.v1 import admin_pb2, assignment_pb2, blob_pb2, update_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.operators import tasks
from fedlens_server.errors import Unknown, UpdateInvalid
from fedlens_server.methods import METHODS
from fedlens_server.methods.fedavg import sharing_global_set, whole_model_plan
from fedlens_server.planning.method import Method, MethodDefinition, Phase, State, TaskPlan, TensorSet
from tests.server.bundles import tiny_bundle
from tests.server.fakes import ALICE, BOB, EVALUATORS, EVE, Bench, update_of

INT8, FLOAT32, FLOAT16 = blob_pb2.DTYPE_INT8, blob_pb2.DTYPE_FLOAT32, blob_pb2.DTYPE_FLOAT16


def start(bench: Bench, features: int = 3, **changes: Any) -> Bench:
    """A task from weights of 0.5 and a counter of 3."""
    return bench.start(tiny_bundle(features, with_counter=True, fill=0.5), **{"rounds": 6} | changes)


def downloaded(bench: Bench, client: bytes) -> assignment_pb2.BlobSet:
    (found,) = bench.assignment(client).sets
    return found


def raw_of(bench: Bench, client: bytes, digest: bytes) -> bytes:
    """The blob that the client fetches."""
    location = assignments.readable(bench.federation, client, digest)
    raw = location.raw if location.path is None else location.path.read_bytes()
    assert raw is not None
    return raw


def trained(tensors: Mapping[str, Array], shift: float) -> dict[str, Array]:
    """As after training that moves the weights of class i by (i + 1) times the shift, and the counter by 2."""
    bias, weight = shift * np.float32([1, 2]), shift * np.float32([[1], [2]])
    return {
        "bn.batches": tensors["bn.batches"] + 2,
        "fc.bias": tensors["fc.bias"] + bias,
        "fc.weight": tensors["fc.weight"] + weight,
    }


def difference_of(
    bench: Bench, client: bytes, tensors: Mapping[str, Array], floats: blob_pb2.Dtype = INT8
) -> tuple[update_pb2.UpdateHeader, bytes]:
    assignment = bench.assignment(client)
    differences = Differences(tensors, bench.tensors(assignment))
    return update_of(assignment, differences, floats=floats, base=downloaded(bench, client).sha256)


def report(bench: Bench, client: bytes, shift: float, floats: blob_pb2.Dtype = INT8) -> None:
    """Train and send the difference."""
    assignment = bench.assignment(client)
    tensors = trained(bench.tensors(assignment), shift)
    bench.send(client, assignment, *difference_of(bench, client, tensors, floats))


def both_report(bench: Bench, shift: float = 1.0) -> None:
    report(bench, ALICE, shift)
    report(bench, BOB, shift)
    bench.advance()


def test_an_upload_is_asked_for_as_the_difference_to_what_was_downloaded(bench: Bench) -> None:
    start(bench, codec="int8", difference=True)

    (upload,) = bench.assignment(ALICE).local_plan.uploads
    expected = bench.expect()
    (layout,), (base,) = expected.layouts, expected.bases

    assert (upload.codec, upload.base) == (assignment_pb2.CODEC_INT8, "global")
    assert base == downloaded(bench, ALICE).sha256
    header, raw = difference_of(bench, ALICE, trained(bench.tensors(bench.assignment(ALICE)), 1.0))
    assert layout.size == len(raw) == header.uploads[0].size
    checker = blob.Checker(layout.specs, base)
    checker.feed(raw)
    assert checker.finish().size == len(raw)


@pytest.mark.parametrize(("codec", "floats"), [("int8", INT8), ("f32", FLOAT32), ("f16", FLOAT16)])
@pytest.mark.parametrize("features", [3, 30_000])  # in a row of the database, and in a file
def test_the_mean_is_of_the_tensors_that_the_differences_stand_for(
    bench: Bench, codec: str, floats: blob_pb2.Dtype, features: int
) -> None:
    start(bench, features, codec=codec, difference=True)

    report(bench, ALICE, 1.0, floats)
    report(bench, BOB, 3.0, floats)
    bench.advance()

    # From 0.5; class 0 moves by 1 and 3, so to 0.5 + 2; class 1 by 2 and 6, so to 0.5 + 4. The counter goes 3 -> 5.
    model = bench.model()
    assert model["bn.batches"] == 5
    np.testing.assert_allclose(model["fc.bias"], [2.5, 4.5], rtol=1e-6)
    np.testing.assert_allclose(model["fc.weight"], np.array([[2.5], [4.5]]).repeat(features, 1), rtol=1e-6)


def test_a_plain_int8_upload_counts_with_its_decoded_values(bench: Bench) -> None:
    start(bench, codec="int8")
    tensors = trained(bench.tensors(bench.assignment(ALICE)), 1.0)

    for client in (ALICE, BOB):
        bench.upload(client, tensors, floats=INT8)
    bench.advance()

    np.testing.assert_allclose(bench.model()["fc.weight"], [[1.5] * 3, [2.5] * 3], rtol=1e-6)


def test_a_difference_sent_again_gets_its_receipt_even_after_the_round(bench: Bench) -> None:
    start(bench, codec="int8", difference=True)
    assignment = bench.assignment(ALICE)
    header, raw = difference_of(bench, ALICE, trained(bench.tensors(assignment), 1.0))
    base = downloaded(bench, ALICE).sha256

    receipts = [bench.send(ALICE, assignment, header, raw)]
    report(bench, BOB, 1.0)
    bench.advance()
    bench.reopen()
    expected = bench.expect()
    receipts.append(bench.send(ALICE, assignment, header, raw))

    assert expected.bases == (base,)
    assert receipts[0] == receipts[1]


def test_a_difference_that_gives_an_infinity_is_left_out(bench: Bench) -> None:
    start(bench, codec="f32", difference=True)
    for number in (1, 2):  # 3e38 is 0.5 + 3e38; twice that is above the largest float32, 3.4e38
        for client in (ALICE, BOB):
            start_from = bench.tensors(bench.assignment(client))
            far = {name: np.full_like(value, 3e38 if value.ndim else 1) for name, value in start_from.items()}
            with pytest.raises(UpdateInvalid, match="give an infinity") if number == 2 else nullcontext():
                bench.upload(client, far, base=downloaded(bench, client).sha256)
        bench.advance()

    assert bench.show().rounds[1].state == admin_pb2.ROUND_STATE_ABANDONED


def test_the_bound_on_the_norm_is_about_the_difference_that_was_sent(bench: Bench) -> None:
    # 1 for a bias and 3 weights of class 0, 2 for those of class 1: sqrt(4 * 1 + 4 * 4) = 4.47; half of it: 2.24.
    start(bench, codec="int8", difference=True, max_update_norm=3.0)

    report(bench, ALICE, 0.5)

    with pytest.raises(UpdateInvalid, match=r"norm 4\.47"):
        report(bench, BOB, 1.0)


def test_a_download_in_int8_is_encoded_once_and_the_evaluators_is_exact(bench: Bench) -> None:
    start(bench, download_codec="int8")
    bench.enrol([EVE], EVALUATORS)
    first = downloaded(bench, ALICE)
    bench.commit()

    second, exact = downloaded(bench, ALICE), downloaded(bench, EVE)
    decoded = Blob.from_bytes(raw_of(bench, ALICE, second.sha256))

    assert first.sha256 != second.sha256
    assert second == downloaded(bench, BOB)
    assert not second.HasField("difference")
    assert [spec.dtype for spec in decoded.layout.specs] == [blob_pb2.DTYPE_INT64, FLOAT32, INT8]
    assert exact.sha256 == tasks.model(bench.federation, "task").blob_sha256
    assert exact.sha256 != second.sha256


def test_the_base_of_a_difference_may_itself_have_come_as_int8(bench: Bench) -> None:
    start(bench, codec="int8", difference=True, download_codec="int8")

    both_report(bench)
    both_report(bench)

    # Twice 1 for class 0 and twice 2 for class 1, from 0.5; rows are constant, so int8 loses nothing but rounding.
    np.testing.assert_allclose(bench.model()["fc.weight"], [[2.5] * 3, [4.5] * 3], rtol=1e-6)


@pytest.mark.parametrize("features", [3, 30_000])
def test_later_rounds_offer_the_difference_to_the_download_before(bench: Bench, features: int) -> None:
    start(bench, features, download_codec="int8", download_difference=True)
    first = downloaded(bench, ALICE)
    bench.report(ALICE, 0.25)
    bench.report(BOB, 0.25)
    before = raw_of(bench, ALICE, first.sha256) if features == 3 else None
    held = {name: np.array(value) for name, value in bench.store.tensors(first.sha256).items()}
    bench.advance()

    second = downloaded(bench, ALICE)
    difference = Blob.from_bytes(raw_of(bench, ALICE, second.difference.sha256))
    restored = blob.encode(Sums(held, difference))

    assert not first.HasField("difference")
    assert before is None or Blob.from_bytes(before).layout.base is None
    assert second == downloaded(bench, BOB)
    assert second.difference.base == first.sha256 == difference.layout.base
    assert second.difference.size == difference.size == len(raw_of(bench, ALICE, second.difference.sha256))
    assert second.difference.size < second.size
    assert sha256(restored).digest() == second.sha256
    assert restored == raw_of(bench, ALICE, second.sha256)


def test_what_clients_hold_stays_within_one_rounding_of_the_model_over_many_rounds(bench: Bench) -> None:
    start(bench, rounds=30, codec="int8", difference=True, download_codec="int8", download_difference=True)

    for i in range(20):
        both_report(bench, 1.0 if i % 3 else -0.7)

    held, exact = bench.tensors(bench.assignment(ALICE)), bench.model()
    # Rows move by at most 2 a round; half a scale is 2 / 127 / 2 = 0.008, and every round starts afresh from it.
    assert np.abs(held["fc.weight"] - exact["fc.weight"]).max() <= 2 / 127 / 2 + 1e-5


def test_a_restart_changes_no_byte_of_what_clients_get(bench: Bench) -> None:
    start(bench, codec="int8", difference=True, download_codec="int8", download_difference=True)
    both_report(bench, 0.3)
    before = bench.assignment(ALICE).sets[0]
    raw = raw_of(bench, ALICE, before.difference.sha256), raw_of(bench, ALICE, before.sha256)

    bench.reopen()
    after = bench.assignment(ALICE).sets[0]

    assert after == before
    assert (raw_of(bench, ALICE, after.difference.sha256), raw_of(bench, ALICE, after.sha256)) == raw
    both_report(bench, 0.3)
    assert downloaded(bench, ALICE).difference.base == before.sha256


def test_an_abandoned_round_is_followed_by_one_that_comes_closer_to_the_model(bench: Bench) -> None:
    start(bench, download_codec="int8", download_difference=True)
    for client in (ALICE, BOB):
        new = dict(bench.tensors(bench.assignment(client)))
        # Values that no eight bits express.
        for name in ("fc.bias", "fc.weight"):
            new[name] = np.sqrt(np.arange(new[name].size, dtype=np.float32)).reshape(new[name].shape)
        bench.upload(client, new)
    bench.advance()
    before, far = downloaded(bench, ALICE), _distance(bench)

    bench.clock.wind(61)
    bench.advance()

    assert bench.show().rounds[1].state == admin_pb2.ROUND_STATE_ABANDONED
    assert downloaded(bench, ALICE).difference.base == before.sha256
    assert _distance(bench) < far


def _distance(bench: Bench) -> float:
    """How far what Alice downloads is from the model."""
    found, model = bench.tensors(bench.assignment(ALICE)), bench.model()
    return max(float(np.abs(found[name] - value).max()) for name, value in model.items())


def test_f32_offers_no_difference_as_it_would_be_no_shorter(bench: Bench) -> None:
    start(bench, download_difference=True)
    bench.commit()

    assert not downloaded(bench, ALICE).HasField("difference")
    assert downloaded(bench, ALICE).sha256 == tasks.model(bench.federation, "task").blob_sha256


def test_base_and_difference_can_be_fetched_during_the_round_and_are_gone_later(bench: Bench) -> None:
    start(bench, 30_000, download_codec="int8", download_difference=True)
    seen = []
    for _ in range(5):
        seen.append(downloaded(bench, ALICE))
        bench.commit(0.25, 0.25)

    now = downloaded(bench, ALICE)
    for digest in (now.sha256, now.difference.sha256, now.difference.base):
        raw_of(bench, ALICE, digest)
    for digest in (seen[1].sha256, seen[1].difference.sha256, seen[2].difference.sha256):
        with pytest.raises(Unknown):
            assignments.readable(bench.federation, ALICE, digest)
        assert digest not in bench.store.blobs.sizes


def test_a_fetched_difference_counts_as_sent(bench: Bench) -> None:
    start(bench, download_codec="int8", download_difference=True)
    bench.commit(0.25, 0.25)

    assignments.count_sent(bench.federation, ALICE, downloaded(bench, ALICE).difference.sha256, 77)

    assert bench.show().rounds[1].bytes_sent == 77


def test_values_too_large_for_the_codec_are_downloaded_as_they_are(bench: Bench) -> None:
    start(bench, download_codec="f16")
    bench.commit(1e6, 1e6)  # float16 ends at 65504

    assert downloaded(bench, ALICE).sha256 != bench.assignment(ALICE).bundle
    np.testing.assert_allclose(bench.tensors(bench.assignment(ALICE))["fc.bias"], 1e6, rtol=1e-5)


def start_patchwork(bench: Bench, **changes: object) -> None:
    bench.start(tiny_bundle(references=("global",), fill=0.5), method="patchwork", **changes)


def gather(bench: Bench) -> None:
    """The first phase: Alice's biases become 2, Bob's 4."""
    for client, value in ((ALICE, 2.0), (BOB, 4.0)):
        assignment = bench.assignment(client)
        sent: Mapping[str, Array] = {"fc.bias": np.full(2, value, np.float32)}
        base = assignment.sets[0].sha256 if assignment.local_plan.uploads[0].base else None
        if base is not None:
            sent = Differences(sent, bench.store.tensors(base))
        bench.upload(client, sent, class_counts=[4, 6], floats=INT8, base=base)
    bench.advance()


@pytest.mark.parametrize("difference", [True, False])
def test_an_upload_that_enters_the_state_stands_there_in_full(patchwork: Bench, difference: bool) -> None:
    start_patchwork(patchwork, codec="int8", difference=difference)

    gather(patchwork)
    patchwork.reopen()

    own = {item.name: item.sha256 for item in patchwork.assignment(ALICE).sets}["own"]
    kept = Blob.from_bytes(raw_of(patchwork, ALICE, own))
    assert kept.layout.base is None
    np.testing.assert_array_equal(kept["fc.bias"], [2.0, 2.0])


def test_a_set_that_not_all_members_share_is_offered_without_a_difference(patchwork: Bench) -> None:
    start_patchwork(patchwork, download_codec="f16", download_difference=True)
    gather(patchwork)
    for client in (ALICE, BOB):
        patchwork.upload(client)
    patchwork.advance()

    sets = {item.name: item for item in patchwork.assignment(ALICE).sets}

    assert not sets["own"].HasField("difference")
    np.testing.assert_array_equal(Blob.from_bytes(raw_of(patchwork, ALICE, sets["own"].sha256))["fc.bias"], [2.0, 2.0])


def test_a_base_that_lacks_what_is_uploaded_fails_the_task_by_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def biased(task: TaskPlan) -> Method:
        local_plan = whole_model_plan(task)
        local_plan.uploads[0].base = "biases"

        def download(phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet]:
            return {"global": state.shared["global"], "biases": {"fc.bias": np.zeros(2, np.float32)}}

        return replace(sharing_global_set(task, local_plan), download=download)

    monkeypatch.setitem(METHODS, "biased", MethodDefinition(biased))
    start(bench, method="biased")

    task = bench.show().task
    assert task.state == admin_pb2.TASK_STATE_FAILED
    assert task.reason == "the method's download lacks tensors in 'biases', to which clients send differences"
