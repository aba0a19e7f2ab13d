import asyncio
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from aiohttp import web

from fedlens_edge_client import AlbumSnapshot, EdgeClient, FolderAlbum, Policy
from fedlens_edge_client.client.events import (
    Downloaded,
    Embedded,
    Event,
    PhotosSkipped,
    RoundFailed,
    RoundRefused,
    RoundReported,
    RoundStarted,
    TasksFinished,
    Trained,
    Waiting,
)
from fedlens_edge_client.engines import BundleUnusable
from fedlens_edge_client.errors import AssignmentFailed, BadResponse, ModelError, Refused, StateError
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.training.photo_set import CHANGED
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, enrolment_pb2, update_pb2
from tests.edge_client.fakes import (
    SEED,
    TASK,
    FakeServer,
    answering,
    fedavg_plan,
    hang_up,
    parse_body,
    refusal,
    reply,
)
from tests.edge_client.linear import LinearEngine, make_bundle
from tests.edge_client.photo_folders import add_photos

MakeClient = Callable[..., EdgeClient]
E = TypeVar("E")


def of_kind(events: list[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


async def test_a_client_takes_part_until_every_task_has_ended(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=3) as server, client_of(server.url) as client:
        await client.run()

    assert [event.round_number for event in of_kind(events, RoundReported)] == [1, 2, 3]
    assert isinstance(events[-1], TasksFinished)
    # 16 train photos (see the `photos` fixture) in batches of 4 are 4 steps.
    assert of_kind(events, Trained)[-1].step == of_kind(events, Trained)[-1].steps == 4
    assert server.header(1).num_examples == 16
    assert server.header(1).bundle == bundle.id


async def test_the_last_training_step_tells_the_mean_loss_over_all_steps_however_many_were_told(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    engine = LinearEngine(bundle)
    async with (
        FakeServer(bundle, fedavg_plan()) as server,
        client_of(server.url, engine_factory=lambda bundle: engine) as client,
    ):
        await client.run_once()

    # Events come at most ten times a second, so not each of the 4 steps has one.
    assert len(engine.losses) == 4
    assert of_kind(events, Trained)[-1].mean_loss == pytest.approx(sum(engine.losses) / 4)


async def test_training_lowers_the_loss_on_test_photos(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    async with FakeServer(bundle, fedavg_plan(epochs=20)) as server, client_of(server.url) as client:
        outcome = await client.run_once()

    assert isinstance(outcome, RoundReported)
    assert outcome.start is not None and outcome.end is not None
    # Zero weights give each of two classes probability 1/2: log 2 for each of 4 photos.
    assert outcome.start.loss == pytest.approx(4 * np.log(2))
    assert outcome.end.loss < outcome.start.loss
    assert outcome.end.correct == outcome.end.count == 4


async def test_what_was_downloaded_once_is_not_fetched_again(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server:
        async with client_of(server.url) as client:
            await client.run_once()
        first = server.calls["blob"]
        async with client_of(server.url) as client:
            await client.run_once()

    # Manifest, three programs, frozen weights and the global model; then only the new global model.
    assert (first, server.calls["blob"]) == (6, 7)
    assert server.calls["clients"] == 1


async def test_photos_are_embedded_once_and_new_ones_when_they_appear(
    bundle: Bundle, client_of: MakeClient, photos: Path, events: list[Event]
) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server, client_of(server.url) as client:
        await client.run_once()
        add_photos(photos, "cat", 3, seed=1)
        (photos / "dog" / "0-000.png").unlink()
        await client.run_once()

    assert [event.total for event in of_kind(events, Embedded) if event.done == event.total] == [20, 3]
    started = of_kind(events, RoundStarted)
    assert [event.train_photos + event.test_photos for event in started] == [20, 22]


async def test_a_relabelled_photo_counts_for_its_new_class(bundle: Bundle, client_of: MakeClient, photos: Path) -> None:
    plan = fedavg_plan()
    plan.statistics.add().class_counts.SetInParent()
    async with FakeServer(bundle, plan, rounds=2) as server, client_of(server.url) as client:
        await client.run_once()
        train = [p for p in FolderAlbum(photos).photos(0).photos if not p.is_test and p.label == "cat"]
        train[0].path.rename(photos / "dog" / "was-a-cat.png")
        await client.run_once()

    before, after = list(server.header(1).class_counts), list(server.header(2).class_counts)
    assert after == [before[0] - 1, before[1] + 1]
    assert sum(after) == server.header(2).num_examples


async def test_a_header_has_confusion_matrices_and_the_fine_tuned_evaluation(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    plan = fedavg_plan()
    plan.statistics.add().confusion.SetInParent()
    plan.evaluation.fine_tuning.add(program="step", epochs=3)
    async with FakeServer(bundle, plan) as server, client_of(server.url) as client:
        await client.run_once()

    sums = server.header(1).evaluations
    assert [entry.moment for entry in sums] == [1, 2, 3]
    assert [sum(entry.confusion) for entry in sums] == [entry.count for entry in sums] == [4, 4, 4]
    assert [entry.confusion[0] + entry.confusion[3] for entry in sums] == [entry.correct for entry in sums]
    (reported,) = of_kind(events, RoundReported)
    assert reported.fine_tuned is not None
    assert reported.fine_tuned.loss == sums[2].loss


async def test_unusable_photos_are_told_and_left_out(
    bundle: Bundle, client_of: MakeClient, photos: Path, events: list[Event]
) -> None:
    (photos / "cat" / "broken.jpg").write_bytes(b"no photo")
    (photos / "cat" / "phone.heic").write_bytes(b"whatever")
    add_photos(photos, "horse", 1)
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url) as client:
        await client.run_once()

    skipped = {name for names in of_kind(events, PhotosSkipped)[0].skipped.values() for name in names}
    assert skipped == {"cat/broken.jpg", "cat/phone.heic", "horse/0-000.png"}
    assert of_kind(events, RoundStarted)[0].train_photos == 16


async def test_a_photo_that_changes_after_the_album_was_read_is_left_out_of_the_round(
    bundle: Bundle, client_of: MakeClient, photos: Path, events: list[Event]
) -> None:
    @dataclass
    class Remembered:
        """An album as it was."""

        snapshot: AlbumSnapshot

        def photos(self, round_number: int) -> AlbumSnapshot:
            return self.snapshot

    album = Remembered(FolderAlbum(photos).photos(0))
    (photos / "cat" / "0-000.png").write_bytes(b"another file now")
    (photos / "cat" / "0-001.png").unlink()
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url, album=album) as client:
        outcome = await client.run_once()

    assert isinstance(outcome, RoundReported)
    assert set(of_kind(events, PhotosSkipped)[0].skipped[CHANGED]) == {"cat/0-000.png", "cat/0-001.png"}


async def test_an_album_without_train_photos_gives_the_round_up(
    bundle: Bundle, client_of: MakeClient, photos: Path
) -> None:
    for label in ("cat", "dog"):
        shutil.rmtree(photos / label)
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url) as client:
        outcome = await client.run_once()

    assert isinstance(outcome, RoundFailed)
    assert outcome.reason == "no_photos"
    assert server.failures[1].reason == update_pb2.FAILURE_REASON_NO_PHOTOS


async def test_an_evaluator_evaluates_all_its_photos_and_trains_on_none(bundle: Bundle, client_of: MakeClient) -> None:
    plan = assignment_pb2.LocalPlan(start=fedavg_plan().start, evaluation=assignment_pb2.EvaluationPlan(at_start=True))
    server = FakeServer(bundle, plan, answer=assignment_pb2.ANSWER_EVALUATION, role=enrolment_pb2.CLIENT_ROLE_EVALUATOR)
    async with server, client_of(server.url) as client:
        await client.run()

    header, blob = parse_body(server.evaluations[1])
    assert (header.num_examples, header.evaluations[0].count, blob) == (0, 20, b"")
    assert server.check_ins[0].num_examples == 0
    assert not server.updates


async def test_the_same_assignment_and_photos_give_the_same_bytes_on_any_client(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path
) -> None:
    bodies = []
    for name in ("one", "two"):
        async with FakeServer(bundle, fedavg_plan(3)) as server, client_of(server.url, state=tmp_path / name) as client:
            await client.run_once()
        bodies.append(server.updates[1])

    assert bodies[0] == bodies[1]


async def test_float16_uploads_are_half_as_long_and_close(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path
) -> None:
    blobs = []
    for codec in (assignment_pb2.CODEC_FLOAT32, assignment_pb2.CODEC_FLOAT16):
        plan = fedavg_plan(3)
        plan.upload.codec = codec
        async with (
            FakeServer(bundle, plan) as server,
            client_of(server.url, state=tmp_path / str(codec)) as client,
        ):
            await client.run_once()
        blobs.append(Blob.from_bytes(server.blob(1)))

    np.testing.assert_allclose(blobs[0]["fc.weight"], blobs[1]["fc.weight"], rtol=1e-3, atol=1e-4)
    # Bias 2 and weight 6 elements; the header is the same length, and only the last tensor's length shows.
    assert blobs[0].size - blobs[1].size == 6 * 2


async def test_a_result_in_the_outbox_is_sent_and_not_trained_again(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    async with FakeServer(bundle, fedavg_plan(), troubles=[("update", answering(_stopped))]) as server:
        async with client_of(server.url) as client:
            with pytest.raises(BadResponse):
                await client.run_once()
        trained = len(of_kind(events, Trained))
        async with client_of(server.url) as client:
            outcome = await client.run_once()

    assert isinstance(outcome, RoundReported)
    assert len(of_kind(events, Trained)) == trained
    assert server.calls["check-in"] == 1
    assert list(server.updates) == [1]


def _stopped() -> web.Response:
    return reply(update_pb2.Receipt(body_sha256=bytes(32)))


async def test_an_update_whose_answer_is_lost_is_sent_again_with_the_same_bytes(
    bundle: Bundle, client_of: MakeClient
) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server:
        server.troubles.append(("update", server.after_update(hang_up)))
        async with client_of(server.url) as client:
            outcome = await client.run_once()

    assert isinstance(outcome, RoundReported)
    assert server.calls["update"] == 2
    assert list(server.updates) == [1]


async def test_a_refused_update_is_dropped_and_the_next_round_goes_on(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server:
        closed = answering(lambda: refusal(409, "round-closed", "too late"))
        server.troubles.append(("update", server.after_update(closed)))
        async with client_of(server.url) as client:
            first = await client.run_once()
            second = await client.run_once()

    assert first == RoundRefused(TASK, 1, "round-closed", "too late")
    assert isinstance(second, RoundReported)
    assert second.round_number == 2


async def test_client_state_becomes_current_with_the_receipt_and_starts_the_next_round(
    bundle: Bundle, client_of: MakeClient
) -> None:
    plan = _personal_plan()
    async with FakeServer(bundle, plan, rounds=2) as server, client_of(server.url) as client:
        await client.run()

    first, second = Blob.from_bytes(server.blob(1)), Blob.from_bytes(server.blob(2))
    # Nothing is uploaded but the bias; had the second round started from the download, its loss would be the first's.
    assert list(first) == ["fc.bias"]
    losses = [server.header(number).evaluations[0].loss for number in (1, 2)]
    assert losses[1] < losses[0] == pytest.approx(4 * np.log(2))
    assert not np.array_equal(first["fc.bias"], second["fc.bias"])


async def test_client_state_of_a_refused_round_is_dropped(bundle: Bundle, client_of: MakeClient) -> None:
    async with FakeServer(bundle, _personal_plan(), rounds=2) as server:
        server.troubles.append(("update", answering(lambda: refusal(409, "round-closed", "too late"))))
        async with client_of(server.url) as client:
            await client.run_once()
        server.failures[1] = update_pb2.FailureRequest()
        async with client_of(server.url) as client:
            await client.run_once()

    assert server.header(2).evaluations[0].loss == pytest.approx(4 * np.log(2))


async def test_client_state_survives_the_process(bundle: Bundle, client_of: MakeClient) -> None:
    async with FakeServer(bundle, _personal_plan(), rounds=2) as server:
        async with client_of(server.url) as client:
            await client.run_once()
        async with client_of(server.url) as client:
            await client.run_once()

    assert server.header(2).evaluations[0].loss < 4 * np.log(2)


def _personal_plan() -> assignment_pb2.LocalPlan:
    """Everything is kept; only the bias is sent."""
    plan = fedavg_plan(5)
    plan.start[0].source.kept = "mine"
    plan.keep.add(set="mine")
    plan.upload.tensors.names.append("fc.bias")
    return plan


async def test_large_tensors_are_files_that_are_gone_after_the_receipt(client_of: MakeClient, tmp_path: Path) -> None:
    # 2 x 20,000 float32 weights are 160 kB, more than a row takes.
    bundle = make_bundle(tmp_path / "wide", features=20_000)
    plan = fedavg_plan()
    plan.keep.add(set="mine")
    async with FakeServer(bundle, plan) as server:
        server.troubles.append(("update", answering(_stopped)))
        async with client_of(server.url) as client:
            with pytest.raises(BadResponse):
                await client.run_once()
            waiting = [file.stat().st_size for file in (tmp_path / "state" / "tensors").iterdir()]
            await client.run_once()
            kept = list((tmp_path / "state" / "tensors").iterdir())

    # Client state and upload are equal here, so they share a file; it stays, as client state.
    assert len(waiting) == 1 and waiting[0] > 160_000
    assert [file.name for file in kept] == [sha256(server.blob(1)).hexdigest()]


async def test_a_policy_is_stronger_than_an_assignment(bundle: Bundle, client_of: MakeClient) -> None:
    plan = fedavg_plan()
    plan.statistics.add().class_counts.SetInParent()
    async with (
        FakeServer(bundle, plan) as server,
        client_of(server.url, policy=Policy(answer_class_counts=False)) as client,
    ):
        outcome = await client.run_once()

    assert isinstance(outcome, RoundFailed)
    assert outcome.reason == "policy"
    assert server.calls["blob"] == 0


async def test_a_nan_in_training_is_reported_and_nothing_uploaded(client_of: MakeClient, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "proximal", with_reference=True)
    plan = fedavg_plan(3)
    plan.references.add(name="global").start = True
    # The second step's pull is about 10 * 1e37, times 1e38: beyond float32.
    plan.stages[0].hyper_values.add(name="lr", value=1e38)
    plan.stages[0].hyper_values.add(name="mu", value=10.0)
    async with FakeServer(bundle, plan) as server, client_of(server.url) as client:
        outcome = await client.run_once()

    assert isinstance(outcome, RoundFailed)
    assert server.failures[1].reason == update_pb2.FAILURE_REASON_NON_FINITE
    assert not server.updates


async def test_a_blob_that_is_gone_means_another_check_in_and_then_a_failure(
    bundle: Bundle, client_of: MakeClient
) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server:
        gone = answering(lambda: refusal(404, "unknown", "no such blob"))
        server.troubles += [("blob", gone), ("blob", gone)]
        async with client_of(server.url) as client:
            outcome = await client.run_once()

    assert isinstance(outcome, RoundFailed)
    assert server.calls["check-in"] == 2
    assert server.failures[1].reason == update_pb2.FAILURE_REASON_INTERNAL


async def test_waiting_is_told_and_lasts_as_long_as_the_server_says(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    wait = check_in_pb2.Wait(retry_after_ms=80, reason=check_in_pb2.WAIT_REASON_POPULATION)
    async with FakeServer(bundle, fedavg_plan()) as server:
        server.troubles.append(("check-in", answering(lambda: reply(check_in_pb2.CheckInResponse(wait=wait)))))
        async with client_of(server.url) as client:
            started = asyncio.get_running_loop().time()
            await client.run_once()
            took_s = asyncio.get_running_loop().time() - started

    assert of_kind(events, Waiting) == [Waiting("population", 80)]
    assert took_s >= 0.08


async def test_a_check_in_says_how_many_train_photos_there_are_and_how_long_it_may_be_held(
    bundle: Bundle, client_of: MakeClient
) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url, hold_ms=1234, task=TASK) as client:
        await client.run_once()

    assert (server.check_ins[0].num_examples, server.check_ins[0].hold_ms, server.check_ins[0].task) == (16, 1234, TASK)


async def test_a_wrong_enrolment_token_is_refused_with_the_servers_reason(
    bundle: Bundle, client_of: MakeClient
) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url, enrolment_token="no") as client:
        with pytest.raises(Refused, match="this enrolment token is not known"):
            await client.run()


async def test_a_client_without_token_says_that_it_needs_one(bundle: Bundle, client_of: MakeClient) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url, enrolment_token=None) as client:
        with pytest.raises(StateError, match="give an enrolment token"):
            await client.run()


async def test_a_server_that_has_forgotten_the_client_gets_it_back_without_old_results(
    bundle: Bundle, client_of: MakeClient
) -> None:
    async with FakeServer(bundle, _personal_plan(), rounds=2) as server, client_of(server.url) as client:
        await client.run_once()
        server.enrolled.clear()
        await client.run_once()

    assert server.calls["clients"] == 2
    assert server.header(2).evaluations[0].loss == pytest.approx(4 * np.log(2))


async def test_a_revoked_client_ends_with_the_servers_reason(bundle: Bundle, client_of: MakeClient) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server, client_of(server.url) as client:
        await client.run_once()
        server.troubles.append(("check-in", answering(lambda: refusal(403, "forbidden", "revoked by the operator"))))
        with pytest.raises(Refused, match="revoked by the operator"):
            await client.run()


async def test_forgetting_deletes_the_identity_on_both_sides(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path
) -> None:
    async with FakeServer(bundle, _personal_plan(), rounds=2) as server:
        async with client_of(server.url) as client:
            before = client.client_id
            await client.run_once()
            assert await client.forget() is True
        assert not server.enrolled
        async with client_of(server.url) as client:
            assert client.client_id != before


class StartedByHand(ThreadPoolExecutor):
    """Says when work begins, and lets it begin only then."""

    def __init__(self) -> None:
        super().__init__(1)
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def work() -> Any:
            self.has_begun.set()
            self.may_go_on.wait()
            return fn(*args, **kwargs)

        return super().submit(work)


async def test_cancelling_while_the_state_folder_is_opened_leaves_it_free(photos: Path, tmp_path: Path) -> None:
    with StartedByHand() as executor:
        client = EdgeClient("http://127.0.0.1:1", tmp_path / "state", FolderAlbum(photos), disk=executor)
        entering = asyncio.create_task(client.__aenter__())
        await asyncio.to_thread(executor.has_begun.wait)
        entering.cancel()
        executor.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await entering

    StateFolder.open(tmp_path / "state", "http://127.0.0.1:1").close()


async def test_cancelling_during_training_leaves_nothing_half_done(bundle: Bundle, client_of: MakeClient) -> None:
    training = asyncio.Event()
    plan = fedavg_plan()
    plan.stages[0].steps = 1_000_000

    def watch(event: Event) -> None:
        if isinstance(event, Trained):
            training.set()

    async with FakeServer(bundle, plan) as server:
        async with client_of(server.url, on_event=watch) as client:
            running = asyncio.create_task(client.run())
            await training.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        plan.stages[0].steps = 2
        async with client_of(server.url) as client:
            outcome = await client.run_once()

    assert isinstance(outcome, RoundReported)
    assert list(server.updates) == [1]


async def test_the_event_loop_stays_free_while_training(
    bundle: Bundle, client_of: MakeClient, events: list[Event]
) -> None:
    plan = fedavg_plan()
    plan.stages[0].steps = 3000
    gaps = []
    async with FakeServer(bundle, plan) as server, client_of(server.url) as client:
        running = asyncio.create_task(client.run_once())
        last = asyncio.get_running_loop().time()
        while not running.done():
            await asyncio.sleep(0.005)
            now = asyncio.get_running_loop().time()
            gaps.append(now - last)
            last = now

    assert isinstance(await running, RoundReported)
    # Far below the time of the training; generous because the machine may be busy.
    assert sorted(gaps)[len(gaps) // 2] < 0.1


async def test_a_batchnorm_bundle_without_embed_trains_on_pixels(client_of: MakeClient, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "whole", frozen=False)
    async with FakeServer(bundle, fedavg_plan(5), rounds=2) as server, client_of(server.url) as client:
        await client.run()

    assert server.header(2).evaluations[1].loss < server.header(1).evaluations[0].loss


async def test_a_shared_cache_serves_a_second_client(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path, events: list[Event]
) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=2) as server:
        for name in ("one", "two"):
            async with client_of(server.url, state=tmp_path / name, cache=tmp_path / "cache") as client:
                await client.run_once()

    assert len([event for event in of_kind(events, Embedded) if event.done == event.total]) == 1
    assert len(of_kind(events, Downloaded)) == 6


async def test_a_part_that_is_not_what_its_digest_says_ends_in_a_named_error(
    bundle: Bundle, client_of: MakeClient
) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server:
        wrong = answering(lambda: web.Response(body=b"x" * 50))
        server.troubles += [("blob", wrong), ("blob", wrong)]
        async with client_of(server.url) as client:
            with pytest.raises(BadResponse, match="digest"):
                await client.run_once()


async def test_an_unknown_kind_of_answer_to_a_check_in_is_named(bundle: Bundle, client_of: MakeClient) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server:
        server.troubles.append(("check-in", answering(lambda: reply(check_in_pb2.CheckInResponse()))))
        async with client_of(server.url) as client:
            with pytest.raises(BadResponse, match="says nothing that this version knows"):
                await client.run_once()


async def test_an_engine_that_cannot_load_the_bundle_is_a_failure_with_reason_bundle(
    bundle: Bundle, client_of: MakeClient
) -> None:
    def broken(given: Bundle) -> LinearEngine:
        raise BundleUnusable("made for another engine")

    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url, engine_factory=broken) as client:
        await client.run_once()

    assert server.failures[1].reason == update_pb2.FAILURE_REASON_BUNDLE


async def test_the_seed_decides_the_order_of_photos(bundle: Bundle, client_of: MakeClient, tmp_path: Path) -> None:
    blobs = []
    for index, seed in enumerate((SEED, bytes(32))):
        async with FakeServer(bundle, fedavg_plan()) as server:
            assignment = server.assignment()
            assignment.seed = seed
            given = check_in_pb2.CheckInResponse(assignment=assignment)
            server.troubles.append(("check-in", answering(lambda given=given: reply(given))))  # type: ignore[misc]
            async with client_of(server.url, state=tmp_path / str(index)) as client:
                await client.run_once()
        blobs.append(server.blob(1))

    assert blobs[0] != blobs[1]


async def test_an_app_can_predict_with_the_model_that_the_server_named(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path
) -> None:
    cat, dog = (add_photos(tmp_path / "new", label, 1, seed=9)[0] for label in ("cat", "dog"))
    async with FakeServer(bundle, fedavg_plan(30)) as server, client_of(server.url) as client:
        with pytest.raises(ModelError, match="check in first"):
            await client.predict(cat)
        await client.run()
        of_cat, of_dog = await client.predict(cat), await client.predict(dog, task=TASK)

    assert list(of_cat) == ["cat", "dog"]
    assert of_cat["cat"] > 0.5 > of_dog["cat"]
    assert sum(of_cat.values()) == pytest.approx(1)


@pytest.mark.parametrize("album", ["photos", "none"])
async def test_after_one_round_an_app_can_predict_with_or_without_photos(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path, album: str
) -> None:
    (cat,) = add_photos(tmp_path / "new", "cat", 1, seed=9)
    (tmp_path / album).mkdir(exist_ok=True)
    async with FakeServer(bundle, fedavg_plan()) as server:
        async with client_of(server.url, album=FolderAlbum(tmp_path / album)) as client:
            await client.run_once()
            found = await client.predict(cat)

    # The plan started from these weights, which are all zeros.
    assert found == {"cat": 0.5, "dog": 0.5}


async def test_an_assignment_says_nothing_about_the_models_of_other_tasks(
    bundle: Bundle, client_of: MakeClient, tmp_path: Path
) -> None:
    (cat,) = add_photos(tmp_path / "new", "cat", 1, seed=9)
    async with FakeServer(bundle, fedavg_plan(), rounds=0) as server, client_of(server.url) as client:
        await client.run_once()
        server.task, server.rounds = TASK - 1, 1
        await client.run_once()
        for task in (TASK, TASK - 1):
            await client.predict(cat, task=task)


async def test_a_model_that_is_not_pinned_is_not_run(bundle: Bundle, client_of: MakeClient, tmp_path: Path) -> None:
    (cat,) = add_photos(tmp_path / "new", "cat", 1, seed=9)
    pinned = Policy(bundles=frozenset({bytes(32)}))
    async with FakeServer(bundle, fedavg_plan(), rounds=0) as server, client_of(server.url, policy=pinned) as client:
        await client.run_once()
        with pytest.raises(AssignmentFailed, match="is not among the pinned ones") as caught:
            await client.predict(cat)

    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY
    assert server.calls["blob"] == 0


async def test_a_prediction_uses_the_client_state(bundle: Bundle, client_of: MakeClient, tmp_path: Path) -> None:
    (cat,) = add_photos(tmp_path / "new", "cat", 1, seed=9)
    async with FakeServer(bundle, _personal_plan()) as server, client_of(server.url) as client:
        await client.run()
        found = await client.predict(cat)

    # The global model is still all zeros, which gives every class the same.
    assert found["cat"] > 0.5
