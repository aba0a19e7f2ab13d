import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from fedlens_edge_client import AlbumSnapshot, EdgeClient, FolderAlbum, Policy
from fedlens_edge_client.background import CancellableExecutor
from fedlens_edge_client.client.clock import SystemClock
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
from fedlens_edge_client.client.waiting import described
from fedlens_edge_client.engines import BundleUnusable
from fedlens_edge_client.errors import AssignmentFailed, BadResponse, ModelError, Refused, StateError
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.training.photo_set import CHANGED
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, enrolment_pb2, update_pb2
from tests.edge_client.fakes import (
    TASK,
    FakeServer,
    answering,
    evaluation_plan,
    fedavg_plan,
    fine_tune,
    hang_up,
    keep_all,
    parse_body,
    refusal,
    reply,
    start_of,
    train_of,
)
from tests.edge_client.federation import Federation, Heard
from tests.edge_client.linear import LinearEngine, make_bundle
from tests.edge_client.photo_folders import add_photos


async def test_a_client_takes_part_until_every_task_has_ended(federation: Federation, events: Heard) -> None:
    server = await federation.run(rounds=3)

    assert [event.round_number for event in events.of(RoundReported)] == [1, 2, 3]
    assert isinstance(events[-1], TasksFinished)
    # 16 train photos (see the `photos` fixture) in batches of 4 are 4 steps.
    assert events.of(Trained)[-1].step == events.of(Trained)[-1].steps == 4
    assert (server.header(1).num_examples, server.header(1).bundle) == (16, server.bundle.id)


async def test_the_last_training_step_tells_the_mean_loss_over_all_steps_however_many_were_told(
    bundle: Bundle, federation: Federation
) -> None:
    engine = LinearEngine(bundle)
    await federation.run(engine_factory=lambda bundle: engine)

    # Events come at most ten times a second, so not each of the 4 steps has one.
    assert len(engine.losses) == 4
    assert federation.events.of(Trained)[-1].mean_loss == pytest.approx(sum(engine.losses) / 4)


async def test_training_lowers_the_loss_on_test_photos(federation: Federation) -> None:
    await federation.run(fedavg_plan(epochs=20))

    (outcome,) = federation.events.of(RoundReported)
    start, trained = outcome.evaluations["start"], outcome.evaluations["trained"]
    # Zero weights give each of two classes probability 1/2: log 2 for each of 4 photos.
    assert start.loss == pytest.approx(4 * np.log(2))
    assert trained.loss < start.loss
    assert trained.correct == trained.count == 4


async def test_what_was_downloaded_once_is_not_fetched_again(federation: Federation) -> None:
    async with federation.server(rounds=2) as server:
        await federation.one_round(server)
        first = server.calls["blob"]
        await federation.one_round(server)

    # Manifest, three programs, frozen weights and the global model; then only the new global model.
    assert (first, server.calls["blob"], server.calls["clients"]) == (6, 7, 1)


async def test_photos_are_embedded_once_and_new_ones_when_they_appear(federation: Federation, photos: Path) -> None:
    async with federation.joined(rounds=2) as (_, client):
        await client.run_once()
        add_photos(photos, "cat", 3, seed=1)
        (photos / "dog" / "0-000.png").unlink()
        await client.run_once()

    events = federation.events
    assert [event.total for event in events.of(Embedded) if event.done == event.total] == [20, 3]
    assert [event.train_photos + event.test_photos for event in events.of(RoundStarted)] == [20, 22]


async def test_a_relabelled_photo_counts_for_its_new_class(federation: Federation, photos: Path) -> None:
    async with federation.joined(fedavg_plan(asking="class_counts"), rounds=2) as (server, client):
        await client.run_once()
        train = [p for p in FolderAlbum(photos).photos(0).photos if not p.is_test and p.label == "cat"]
        train[0].path.rename(photos / "dog" / "was-a-cat.png")
        await client.run_once()

    before, after = list(server.header(1).class_counts), list(server.header(2).class_counts)
    assert after == [before[0] - 1, before[1] + 1]
    assert sum(after) == server.header(2).num_examples


async def test_a_header_has_confusion_matrices_and_the_fine_tuned_evaluation(federation: Federation) -> None:
    plan = fedavg_plan(asking="confusion")
    fine_tune(plan, epochs=3)
    server = await federation.run(plan)

    sums = server.header(1).evaluations
    assert [entry.label for entry in sums] == ["start", "trained", "fine_tuned"]
    assert [sum(entry.confusion) for entry in sums] == [entry.count for entry in sums] == [4, 4, 4]
    assert [entry.confusion[0] + entry.confusion[3] for entry in sums] == [entry.correct for entry in sums]
    (reported,) = federation.events.of(RoundReported)
    assert reported.evaluations["fine_tuned"].loss == sums[2].loss


async def test_unusable_photos_are_told_and_left_out(federation: Federation, photos: Path, events: Heard) -> None:
    (photos / "cat" / "broken.jpg").write_bytes(b"no photo")
    (photos / "cat" / "phone.heic").write_bytes(b"whatever")
    add_photos(photos, "horse", 1)
    await federation.run()

    skipped = {name for names in events.of(PhotosSkipped)[0].skipped.values() for name in names}
    assert skipped == {"cat/broken.jpg", "cat/phone.heic", "horse/0-000.png"}
    assert events.of(RoundStarted)[0].train_photos == 16


async def test_a_photo_that_changes_after_the_album_was_read_is_left_out_of_the_round(
    federation: Federation, photos: Path
) -> None:
    before = FolderAlbum(photos).photos(0)

    class Remembered:
        """An album as it was."""

        def photos(self, round_number: int) -> AlbumSnapshot:
            return before

    (photos / "cat" / "0-000.png").write_bytes(b"another file now")
    (photos / "cat" / "0-001.png").unlink()
    server = await federation.run(album=Remembered())

    assert list(server.updates) == [1]
    skipped = federation.events.of(PhotosSkipped)[0].skipped
    assert set(skipped[CHANGED]) == {"cat/0-000.png", "cat/0-001.png"}


async def test_an_album_without_train_photos_gives_the_round_up(federation: Federation, photos: Path) -> None:
    for label in ("cat", "dog"):
        shutil.rmtree(photos / label)
    server = await federation.run()

    assert [event.reason for event in federation.events.of(RoundFailed)] == ["no_photos"]
    assert server.failures[1].reason == update_pb2.FAILURE_REASON_NO_PHOTOS


async def test_an_evaluator_evaluates_all_its_photos_and_trains_on_none(bundle: Bundle, federation: Federation) -> None:
    answer, role = assignment_pb2.ANSWER_EVALUATION, enrolment_pb2.CLIENT_ROLE_EVALUATOR
    server = FakeServer(bundle, evaluation_plan(), answer=answer, role=role)
    async with server, federation.client(server) as client:
        await client.run()

    header, blobs = parse_body(server.evaluations[1])
    assert (header.num_examples, header.evaluations[0].count, blobs) == (0, 20, [])
    assert server.check_ins[0].num_examples == 0
    assert not server.updates


async def test_the_same_assignment_and_photos_give_the_same_bytes_on_any_client(
    federation: Federation, tmp_path: Path
) -> None:
    one, two = [(await federation.run(fedavg_plan(3), state=tmp_path / name)).updates for name in ("one", "two")]

    assert one == two and list(one) == [1]


async def test_a_result_in_the_outbox_is_sent_and_not_trained_again(federation: Federation, events: Heard) -> None:
    async with federation.server() as server:
        server.troubles.append(("update", answering(_stopped)))
        with pytest.raises(BadResponse):
            await federation.one_round(server)
        trained = len(events.of(Trained))
        outcome = await federation.one_round(server)

    assert isinstance(outcome, RoundReported)
    assert len(events.of(Trained)) == trained
    assert server.calls["check-in"] == 1
    assert list(server.updates) == [1]


def _stopped() -> web.Response:
    return reply(update_pb2.Receipt(body_sha256=bytes(32)))


async def test_an_update_whose_answer_is_lost_is_sent_again_with_the_same_bytes(federation: Federation) -> None:
    async with federation.joined() as (server, client):
        server.troubles.append(("update", server.after_update(hang_up)))
        outcome = await client.run_once()

    assert isinstance(outcome, RoundReported)
    assert server.calls["update"] == 2
    assert list(server.updates) == [1]


async def test_a_refused_update_is_dropped_and_the_next_round_goes_on(federation: Federation) -> None:
    async with federation.joined(rounds=2) as (server, client):
        closed = answering(lambda: refusal(409, "round-closed", "too late"))
        server.troubles.append(("update", server.after_update(closed)))
        first, second = await client.run_once(), await client.run_once()

    assert first == RoundRefused(TASK, 1, "round-closed", "too late")
    assert isinstance(second, RoundReported)
    assert second.round_number == 2


async def test_a_failure_that_comes_too_late_ends_the_round_alone(federation: Federation, photos: Path) -> None:
    for label in ("cat", "dog"):
        shutil.rmtree(photos / label)
    async with federation.joined() as (server, client):
        server.troubles.append(("failure", answering(lambda: refusal(409, "round-closed", "too late"))))

        assert isinstance(await client.run_once(), RoundFailed)


async def test_a_server_that_has_forgotten_a_client_during_the_round_gets_it_and_its_update(
    federation: Federation,
) -> None:
    async with federation.joined() as (server, client):
        server.troubles.append(("update", answering(lambda: refusal(401, "unauthorised", "no such client"))))
        outcome = await client.run_once()

    assert isinstance(outcome, RoundReported)
    assert server.calls["clients"] == 2


async def test_an_assignment_that_comes_again_after_its_end_is_not_carried_out_at_once(federation: Federation) -> None:
    slept = []

    class Noting(SystemClock):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    async with federation.server() as server, federation.client(server, clock=Noting()) as client:
        server.troubles.append(("update", answering(lambda: refusal(409, "round-closed", "too late"))))
        for _ in range(2):
            await client.run_once()

    assert slept == [5.0]


async def test_a_role_that_this_version_does_not_know_is_named(federation: Federation) -> None:
    async with federation.server() as server:
        server.role = 99  # type: ignore[assignment]
        async with federation.client(server) as client:
            with pytest.raises(BadResponse, match="unknown role"):
                await client.run_once()


async def test_a_model_that_has_no_room_in_the_cache_is_a_failure_that_says_so(federation: Federation) -> None:
    async with federation.joined(max_cache_bytes=100) as (server, client):
        assert isinstance(await client.run_once(), RoundFailed)

    assert server.failures[1].reason == update_pb2.FAILURE_REASON_UNSUPPORTED


async def test_client_state_becomes_current_with_the_receipt_and_starts_the_next_round(federation: Federation) -> None:
    server = await federation.run(_personal_plan(), rounds=2)

    first, second = Blob.from_bytes(server.blob(1)), Blob.from_bytes(server.blob(2))
    # Nothing is uploaded but the bias; had the second round started from the download, its loss would be the first's.
    assert list(first) == ["fc.bias"]
    losses = [server.header(number).evaluations[0].loss for number in (1, 2)]
    assert losses[1] < losses[0] == pytest.approx(4 * np.log(2))
    assert not np.array_equal(first["fc.bias"], second["fc.bias"])


async def test_client_state_of_a_refused_round_is_dropped(federation: Federation) -> None:
    async with federation.server(_personal_plan(), rounds=2) as server:
        server.troubles.append(("update", answering(lambda: refusal(409, "round-closed", "too late"))))
        await federation.one_round(server)
        server.failures[1] = update_pb2.FailureRequest()
        await federation.one_round(server)

    assert server.header(2).evaluations[0].loss == pytest.approx(4 * np.log(2))


async def test_client_state_survives_the_process(federation: Federation) -> None:
    async with federation.server(_personal_plan(), rounds=2) as server:
        await federation.one_round(server)
        await federation.one_round(server)

    assert server.header(2).evaluations[0].loss < 4 * np.log(2)


def _personal_plan() -> assignment_pb2.LocalPlan:
    """Everything is kept; only the bias is sent."""
    plan = fedavg_plan(5)
    start_of(plan).state = "mine"
    keep_all(plan, "mine")
    plan.uploads[0].tensors.names.append("fc.bias")
    return plan


async def test_large_tensors_are_files_that_are_gone_after_the_receipt(federation: Federation, tmp_path: Path) -> None:
    # 2 x 20,000 float32 weights are 160 kB, more than a row takes.
    bundle = make_bundle(tmp_path / "wide", features=20_000)
    plan = fedavg_plan()
    keep_all(plan, "mine")
    async with federation.joined(plan, bundle=bundle) as (server, client):
        server.troubles.append(("update", answering(_stopped)))
        with pytest.raises(BadResponse):
            await client.run_once()
        waiting = [file.stat().st_size for file in (tmp_path / "state" / "tensors").iterdir()]
        await client.run_once()
        kept = list((tmp_path / "state" / "tensors").iterdir())

    # Client state and upload are equal here, so they share a file; it stays, as client state.
    assert len(waiting) == 1 and waiting[0] > 160_000
    assert [file.name for file in kept] == [sha256(server.blob(1)).hexdigest()]


async def test_a_policy_is_stronger_than_an_assignment(federation: Federation) -> None:
    server = await federation.run(fedavg_plan(asking="class_counts"), policy=Policy(answer_class_counts=False))

    assert [event.reason for event in federation.events.of(RoundFailed)] == ["policy"]
    assert server.calls["blob"] == 0


async def test_a_nan_in_training_is_reported_and_nothing_uploaded(federation: Federation, tmp_path: Path) -> None:
    plan = fedavg_plan(3)
    train_of(plan).bindings.add(reference="global").source.value = "start"
    # The second step's pull is about 10 * 1e37, times 1e38: beyond float32.
    train_of(plan).hyper_values.add(name="lr", value=1e38)
    train_of(plan).hyper_values.add(name="mu", value=10.0)
    server = await federation.run(plan, bundle=make_bundle(tmp_path / "proximal", with_reference=True))

    assert len(federation.events.of(RoundFailed)) == 1
    assert server.failures[1].reason == update_pb2.FAILURE_REASON_NON_FINITE
    assert not server.updates


async def test_a_blob_that_is_gone_means_another_check_in_and_then_a_failure(federation: Federation) -> None:
    async with federation.joined() as (server, client):
        server.troubles += [("blob", answering(lambda: refusal(404, "unknown", "no such blob")))] * 2
        outcome = await client.run_once()

    assert isinstance(outcome, RoundFailed)
    assert server.calls["check-in"] == 2
    assert server.failures[1].reason == update_pb2.FAILURE_REASON_INTERNAL


@asynccontextmanager
async def told_to_wait(federation: Federation, server: FakeServer, **others: Any) -> AsyncIterator[EdgeClient]:
    """A client, new in this process, that is in its first round until the end of the block."""
    waits = asyncio.Event()

    def hear(event: Event) -> None:
        federation.events.append(event)
        if isinstance(event, Waiting):
            waits.set()

    async with federation.client(server, on_event=hear, **others) as client:
        running = asyncio.create_task(client.run_once())
        await waits.wait()
        yield client
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def minute(**fields: Any) -> tuple[str, Callable[..., Any]]:
    """The server's answer to a check-in: wait for a minute."""
    wait = check_in_pb2.Wait(retry_after_ms=60_000, reason=check_in_pb2.WAIT_REASON_REST, **fields)
    return "check-in", answering(lambda: reply(check_in_pb2.CheckInResponse(wait=wait)))


async def test_a_new_process_asks_no_earlier_than_the_last_one_was_told(federation: Federation) -> None:
    async with federation.server() as server:
        server.troubles.append(minute())
        async with told_to_wait(federation, server):
            pass
        federation.events.clear()

        async with told_to_wait(federation, server):
            assert server.calls["check-in"] == 1

    (waiting,) = federation.events.of(Waiting)
    assert waiting.reason == "not_before"
    assert 50_000 < waiting.retry_after_ms <= 66_000


async def test_a_clock_that_was_set_back_does_not_stop_a_client_for_more_than_an_hour(federation: Federation) -> None:
    async with federation.server() as server:
        with closing(StateFolder.open(federation.state, server.url)) as folder:
            folder.set("not_before", str(time.time() + 86_400).encode())

        async with told_to_wait(federation, server):
            pass

        with closing(StateFolder.open(federation.state, server.url)) as folder:
            kept = folder.get("not_before")

    assert federation.events.of(Waiting) == [Waiting("not_before", 3_600_000)]
    assert kept is not None and float(kept) <= time.time() + 3600  # the next process does not wait for a day's worth


async def test_a_call_after_a_cancelled_one_waits_for_the_rest_of_its_pause(federation: Federation) -> None:
    def cancel_in_the_pause(event: Event) -> None:
        federation.events.append(event)
        task = asyncio.current_task()
        if isinstance(event, Waiting) and task is not None:
            task.cancel()

    async with federation.server() as server:
        server.troubles.append(minute())
        async with federation.client(server, on_event=cancel_in_the_pause) as client:
            for _ in range(2):
                with suppress(asyncio.CancelledError):
                    await asyncio.create_task(client.run_once())

    assert [event.reason for event in federation.events.of(Waiting)] == ["rest", "not_before"]
    assert server.calls["check-in"] == 1


async def test_a_pause_that_is_over_is_forgotten(federation: Federation) -> None:
    async with federation.server() as server:
        with closing(StateFolder.open(federation.state, server.url)) as folder:
            folder.set("not_before", str(time.time() - 1).encode())

        outcome = await federation.one_round(server)

    assert isinstance(outcome, RoundReported)


async def test_a_result_in_the_outbox_does_not_wait(federation: Federation) -> None:
    async with federation.server() as server:
        arrived = asyncio.Event()

        async def cut_off(request: web.Request) -> web.StreamResponse:
            arrived.set()
            return await hang_up(request)

        server.troubles.append(("update", cut_off))
        async with federation.client(server) as client:
            running = asyncio.create_task(client.run_once())
            await arrived.wait()
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        with closing(StateFolder.open(federation.state, server.url)) as folder:
            folder.set("not_before", str(time.time() + 3000).encode())

        outcome = await federation.one_round(server)

    assert isinstance(outcome, RoundReported)


async def test_a_check_in_tells_the_apps_version_and_a_wait_says_what_is_missing(federation: Federation) -> None:
    async with federation.server() as server:
        server.troubles.append(minute(detail="version 6 of the app; task 'photos' needs 7"))
        async with told_to_wait(federation, server):
            pass
    async with federation.server() as server:
        async with federation.client(server, state=federation.state / "other", client_version=6) as client:
            await client.run_once()

    assert server.check_ins[-1].client_version == 6
    (waiting,) = federation.events.of(Waiting)
    assert described(waiting).endswith("go first: version 6 of the app; task 'photos' needs 7")


def test_a_version_that_is_no_unsigned_number_of_32_bits_is_refused(federation: Federation) -> None:
    for version in (-1, 1 << 32):
        with pytest.raises(ValueError, match=f"client_version: found {version}, must be 0 to 4294967295"):
            EdgeClient(
                "http://127.0.0.1:1",
                federation.state,
                FolderAlbum(federation.photos),
                publishers=TRUST_SERVER,
                client_version=version,
            )


async def test_waiting_is_told_and_lasts_as_long_as_the_server_says(federation: Federation) -> None:
    wait = check_in_pb2.Wait(retry_after_ms=80, reason=check_in_pb2.WAIT_REASON_POPULATION)
    async with federation.joined() as (server, client):
        server.troubles.append(("check-in", answering(lambda: reply(check_in_pb2.CheckInResponse(wait=wait)))))
        started = asyncio.get_running_loop().time()
        await client.run_once()
        took_s = asyncio.get_running_loop().time() - started

    assert federation.events.of(Waiting) == [Waiting("population", 80)]
    assert took_s >= 0.08


async def test_a_check_in_says_how_many_train_photos_there_are_and_how_long_it_may_be_held(
    federation: Federation,
) -> None:
    told = (await federation.run(hold_ms=1234, task=TASK)).check_ins[0]

    assert (told.num_examples, told.hold_ms, told.task) == (16, 1234, TASK)


@pytest.mark.parametrize(("least", "told"), [(16, 16), (17, 0)])
async def test_with_fewer_photos_than_the_policy_trains_on_a_check_in_offers_none(
    federation: Federation, least: int, told: int
) -> None:
    server = await federation.run(policy=Policy(least_train_photos=least))

    assert server.check_ins[0].num_examples == told


@pytest.mark.parametrize(
    ("token", "error", "named"),
    [("no", Refused, "this enrolment token is not known"), (None, StateError, "give an enrolment token")],
)
async def test_without_a_good_token_a_client_ends_with_the_reason(
    federation: Federation, token: str | None, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        await federation.run(enrolment_token=token)


async def test_a_server_that_has_forgotten_the_client_gets_it_back_without_old_results(federation: Federation) -> None:
    async with federation.joined(_personal_plan(), rounds=2) as (server, client):
        await client.run_once()
        server.enrolled.clear()
        await client.run_once()

    assert server.calls["clients"] == 2
    assert server.header(2).evaluations[0].loss == pytest.approx(4 * np.log(2))


async def test_a_client_enrols_anew_each_time_that_the_server_has_forgotten_it(federation: Federation) -> None:
    async with federation.joined(rounds=3) as (server, client):
        await client.run_once()
        for _ in range(2):
            server.enrolled.clear()
            await client.run_once()

    assert (server.calls["clients"], sorted(server.updates)) == (3, [1, 2, 3])


async def test_a_client_does_not_enrol_again_and_again_with_a_server_that_never_knows_it(
    federation: Federation,
) -> None:
    async with federation.joined(rounds=3) as (server, client):
        await client.run_once()
        server.troubles += [("check-in", answering(lambda: refusal(401, "unauthorised", "no such client")))] * 3
        for _ in range(2):
            with pytest.raises(Refused, match="no such client"):
                await client.run()

    assert (server.calls["clients"], server.troubles) == (2, [])


async def test_a_client_whose_models_have_changed_needs_its_token_once_more(federation: Federation) -> None:
    async with federation.server(rounds=2) as server:
        await federation.one_round(server)
        with pytest.raises(StateError, match="tables or another engine; give the enrolment token once more"):
            await federation.one_round(server, models=["other"], enrolment_token=None)
        outcome = await federation.one_round(server, enrolment_token=None)

    assert isinstance(outcome, RoundReported)


async def test_the_thread_of_a_client_ends_before_the_features_that_it_uses_are_closed(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = list[str]()

    def noted(kind: type[CancellableExecutor | FeatureCache]) -> Callable[[Any], None]:
        close = kind.close

        def note(self: Any) -> None:
            close(self)
            closed.append(kind.__name__)

        return note

    for kind in (CancellableExecutor, FeatureCache):
        monkeypatch.setattr(kind, "close", noted(kind))
    await federation.run()

    # The last is the thread of the disk.
    assert closed == ["CancellableExecutor", "FeatureCache", "CancellableExecutor"]


async def test_a_revoked_client_ends_with_the_servers_reason(federation: Federation) -> None:
    async with federation.joined(rounds=2) as (server, client):
        await client.run_once()
        server.troubles.append(("check-in", answering(lambda: refusal(403, "forbidden", "revoked by the operator"))))
        with pytest.raises(Refused, match="revoked by the operator"):
            await client.run()


async def test_forgetting_deletes_the_identity_on_both_sides(federation: Federation) -> None:
    async with federation.server(_personal_plan(), rounds=2) as server:
        async with federation.client(server) as client:
            before = client.client_id
            await client.run_once()
            assert await client.forget() is True
        assert not server.enrolled
        async with federation.client(server) as client:
            assert client.client_id != before


async def test_a_deletion_whose_answer_is_lost_deletes_the_identity_here_too(federation: Federation) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        server.enrolled.clear()
        return await hang_up(request)

    async with federation.joined() as (server, client):
        await client.run_once()
        server.troubles.append(("self", cut))
        assert await client.forget() is False

    assert server.calls["self"] == 2
    assert not (federation.state / "secret").exists()


async def test_a_revoked_client_is_not_forgotten_and_keeps_its_identity(federation: Federation) -> None:
    async with federation.joined() as (server, client):
        await client.run_once()
        server.troubles.append(("self", answering(lambda: refusal(403, "forbidden", "revoked by the operator"))))
        with pytest.raises(Refused, match="revoked by the operator"):
            await client.forget()

    assert (federation.state / "secret").exists()


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
        client = EdgeClient(
            "http://127.0.0.1:1", tmp_path / "state", FolderAlbum(photos), publishers=TRUST_SERVER, disk=executor
        )
        entering = asyncio.create_task(client.__aenter__())
        await asyncio.to_thread(executor.has_begun.wait)
        entering.cancel()
        executor.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await entering

    StateFolder.open(tmp_path / "state", "http://127.0.0.1:1").close()


async def test_cancelling_during_training_leaves_nothing_half_done(federation: Federation) -> None:
    training = asyncio.Event()
    plan = fedavg_plan()
    train_of(plan).steps = 1_000_000

    def watch(event: Event) -> None:
        if isinstance(event, Trained):
            training.set()

    async with federation.server(plan, rounds=2) as server:
        async with federation.client(server, on_event=watch) as client:
            running = asyncio.create_task(client.run())
            await training.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            train_of(plan).steps = 2
            first = await client.run_once()
        second = await federation.one_round(server)

    assert isinstance(first, RoundReported) and isinstance(second, RoundReported)
    assert list(server.updates) == [1, 2]


async def test_the_event_loop_stays_free_while_training(federation: Federation) -> None:
    plan = fedavg_plan()
    train_of(plan).steps = 3000
    gaps = []
    async with federation.joined(plan) as (_, client):
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


async def test_a_shared_cache_serves_a_second_client(federation: Federation, tmp_path: Path, events: Heard) -> None:
    async with federation.server(rounds=2) as server:
        for name in ("one", "two"):
            await federation.one_round(server, state=tmp_path / name, cache=tmp_path / "cache")

    assert len([event for event in events.of(Embedded) if event.done == event.total]) == 1
    assert len(events.of(Downloaded)) == 6


async def test_a_part_that_is_not_what_its_digest_says_ends_in_a_named_error(federation: Federation) -> None:
    async with federation.joined() as (server, client):
        server.troubles += [("blob", answering(lambda: web.Response(body=b"x" * 50)))] * 2
        with pytest.raises(BadResponse, match="digest"):
            await client.run_once()


async def test_an_unknown_kind_of_answer_to_a_check_in_is_named(federation: Federation) -> None:
    async with federation.joined() as (server, client):
        server.troubles.append(("check-in", answering(lambda: reply(check_in_pb2.CheckInResponse()))))
        with pytest.raises(BadResponse, match="says nothing that this version knows"):
            await client.run_once()


async def test_an_engine_that_cannot_load_the_bundle_is_a_failure_with_reason_bundle(federation: Federation) -> None:
    def broken(given: Bundle) -> LinearEngine:
        raise BundleUnusable("made for another engine, \udcff")  # no Unicode, as of a file's name

    server = await federation.run(engine_factory=broken)

    assert server.failures[1].reason == update_pb2.FAILURE_REASON_BUNDLE
    assert server.failures[1].detail == r"made for another engine, \udcff"


async def test_an_app_can_predict_with_the_model_that_the_server_named(federation: Federation, tmp_path: Path) -> None:
    cat, dog = (add_photos(tmp_path / "new", label, 1, seed=9)[0] for label in ("cat", "dog"))
    async with federation.joined(fedavg_plan(30)) as (_, client):
        with pytest.raises(ModelError, match="check in first"):
            await client.predict(cat)
        await client.run()
        of_cat, of_dog = await client.predict(cat), await client.predict(dog, task=TASK)

    assert list(of_cat) == ["cat", "dog"]
    assert of_cat["cat"] > 0.5 > of_dog["cat"]
    assert sum(of_cat.values()) == pytest.approx(1)


@pytest.mark.parametrize("album", ["photos", "none"])
async def test_after_one_round_an_app_can_predict_with_or_without_photos(
    federation: Federation, tmp_path: Path, cat: Path, album: str
) -> None:
    (tmp_path / album).mkdir(exist_ok=True)
    async with federation.joined(album=FolderAlbum(tmp_path / album)) as (_, client):
        await client.run_once()
        found = await client.predict(cat)

    # The plan started from these weights, which are all zeros.
    assert found == {"cat": 0.5, "dog": 0.5}


async def test_an_assignment_says_nothing_about_the_models_of_other_tasks(federation: Federation, cat: Path) -> None:
    async with federation.joined(rounds=0) as (server, client):
        await client.run_once()
        server.task, server.rounds = TASK - 1, 1
        await client.run_once()
        for task in (TASK, TASK - 1):
            await client.predict(cat, task=task)


async def test_a_model_that_is_not_pinned_is_not_run(federation: Federation, cat: Path) -> None:
    async with federation.joined(rounds=0, policy=Policy(bundles=frozenset({bytes(32)}))) as (server, client):
        await client.run_once()
        with pytest.raises(AssignmentFailed, match="is not among the pinned ones") as caught:
            await client.predict(cat)

    assert caught.value.reason == update_pb2.FAILURE_REASON_POLICY
    assert server.calls["blob"] == 0


async def test_a_prediction_uses_the_client_state(federation: Federation, cat: Path) -> None:
    async with federation.joined(_personal_plan()) as (_, client):
        await client.run()
        found = await client.predict(cat)

    # The global model is still all zeros, which gives every class the same.
    assert found["cat"] > 0.5
