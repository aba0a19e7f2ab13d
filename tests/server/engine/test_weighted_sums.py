"""Downloads that are computed when they are read: pFedSim's mixes, from the opening of a round to the sweep."""

import json
import threading
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from fedlens_proto import blob
from fedlens_proto.v1 import admin_pb2, assignment_pb2, check_in_pb2
from fedlens_server.engine import aggregation, assignments, clients, downloads, tasks
from fedlens_server.errors import Unknown
from fedlens_server.store import encoding, schema
from fedlens_server.store.blobs import ComputedTensors
from tests.server.fakes import EVALUATORS, SEED, Bench, after_drawing, client_ids, update_of
from tests.server.fakes import bench as open_bench
from tests.server.networks import network, weights

ALICE, BOB, CAROL, DAVE = client_ids(4)
SETTINGS = {
    "method": "pfedsim",
    "rounds": 5,
    "population": 3,
    "deadline_s": 60,
    "options": {"warm_up": 0},
    "seed": SEED,
}
CLASSIFIERS = {
    ALICE: ((1.0, 0.0), (0.0, 1.0)),
    BOB: ((2.0, 0.0), (3.0, 3.0)),
    CAROL: ((1.0, 1.0), (1.0, 0.0)),
    DAVE: ((0.0, 1.0), (1.0, 2.0)),
}
# Of 2 x 200,000 float32: a blob that is a file and too large to be kept in memory.
WIDTH = 200_000


def start(bench: Bench, width: int = WIDTH, **changed: object) -> None:
    """A task that Alice, Bob and Carol take part in."""
    bench.create(json.dumps(SETTINGS | changed), [network(width)])
    bench.enrol([ALICE, BOB, CAROL])


def upload(bench: Bench, client: bytes, value: float, width: int = WIDTH) -> None:
    trained = weights(value, CLASSIFIERS[client], width)
    bench.send(client, bench.assignment(client), *update_of(bench.assignment(client), trained))


@pytest.fixture
def mixing(bench: Bench) -> Bench:
    """All three have uploaded once, 1, 5 and 9; the second round is open."""
    start(bench)
    for client, value in ((ALICE, 1.0), (BOB, 5.0), (CAROL, 9.0)):
        upload(bench, client, value)
    bench.advance()
    return bench


def personal(bench: Bench, client: bytes) -> assignment_pb2.BlobSet:
    (found,) = bench.assignment(client).sets
    assert found.name == "personal"
    return found


def content(bench: Bench, client: bytes) -> bytes:
    """The bytes that the client gets."""
    location = assignments.readable(bench.federation, client, personal(bench, client).sha256)
    if location.raw is not None:
        return location.raw
    assert location.computed is not None
    return b"".join(encoding.pieces(location.computed))


def recipes(bench: Bench) -> set[bytes]:
    return {row.digest for row in bench.store.read(select(schema.weighted_sums))}


def files(bench: Bench) -> set[str]:
    return {path.name for path in (bench.folder / "blobs").iterdir() if path.is_file()}


def test_each_member_gets_a_mix_of_its_own_under_its_digest(mixing: Bench) -> None:
    mine, bobs = content(mixing, ALICE), content(mixing, BOB)

    assert mine != bobs
    assert sha256(mine).digest() == personal(mixing, ALICE).sha256
    assert len(mine) == personal(mixing, ALICE).size
    decoded = blob.Blob.from_bytes(mine)
    np.testing.assert_array_equal(decoded["fc.weight"], CLASSIFIERS[ALICE])
    assert decoded["bn.batches"] == 1
    assert 1 < decoded["conv.weight"].min() == decoded["conv.weight"].max() < 9


def test_a_mix_is_on_no_disk(mixing: Bench) -> None:
    mixes = {personal(mixing, client).sha256 for client in (ALICE, BOB, CAROL)}

    assert recipes(mixing) == mixes
    assert not {digest.hex() for digest in mixes} & files(mixing)
    assert not mixes & mixing.store.blobs.sizes.keys()


def test_another_client_may_not_fetch_it(mixing: Bench) -> None:
    with pytest.raises(Unknown):
        assignments.readable(mixing.federation, BOB, personal(mixing, ALICE).sha256)


def test_a_restart_in_an_open_round_gives_the_same_bytes(mixing: Bench) -> None:
    before = content(mixing, ALICE)

    mixing.reopen()

    assert content(mixing, ALICE) == before


def test_a_mix_and_what_only_it_needs_go_when_its_round_has_ended(mixing: Bench) -> None:
    first_mixes, first_files = recipes(mixing), files(mixing)
    for value in (20.0, 30.0):
        for client in (ALICE, BOB, CAROL):
            upload(mixing, client, value)
        mixing.advance()

    assert recipes(mixing) == {personal(mixing, client).sha256 for client in (ALICE, BOB, CAROL)}
    assert not recipes(mixing) & first_mixes
    assert mixing.store.blobs.computed.keys() == recipes(mixing)
    # The program is a row; of the first round's files only the initial weights are left.
    assert len(files(mixing) & first_files) == 1


def test_a_client_that_uploads_the_mix_itself_has_it_stored(mixing: Bench) -> None:
    mine = content(mixing, ALICE)
    assignment = mixing.assignment(ALICE)

    mixing.send(ALICE, assignment, *update_of(assignment, blob.Blob.from_bytes(mine)))

    assert sha256(mine).hexdigest() in files(mixing)
    for client in (BOB, CAROL):
        upload(mixing, client, 3.0)
    mixing.advance()
    assert mixing.store.blobs.locate(sha256(mine).digest()).path is not None


def test_a_forgotten_client_stays_in_the_mixes_of_the_open_round_and_goes_with_it(mixing: Bench) -> None:
    before = content(mixing, ALICE)
    model = mixing.task.values[f"clients/{CAROL.hex()}/model"].digest.hex()

    clients.forget(mixing.federation, CAROL).result()
    during = content(mixing, ALICE)
    upload(mixing, ALICE, 2.0)
    upload(mixing, BOB, 6.0)
    held = model in files(mixing)
    mixing.advance()

    assert during == before
    assert held
    assert model not in files(mixing)
    # Without Carol's 9.
    expected = mixed_by_hand({ALICE: 2.0, BOB: 6.0}, ALICE)
    np.testing.assert_allclose(blob.Blob.from_bytes(content(mixing, ALICE))["conv.weight"], expected, rtol=1e-5)


def test_a_client_forgotten_after_the_next_cohort_was_drawn_is_in_none_of_its_mixes(
    mixing: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Revoked before, she is not eligible: only the state tells of her.
    clients.revoke(mixing.federation, CAROL).result()
    after_drawing(monkeypatch, lambda: clients.forget(mixing.federation, CAROL).result())
    upload(mixing, ALICE, 2.0)
    upload(mixing, BOB, 6.0)

    mixing.advance()

    # Without Carol's 9.
    expected = mixed_by_hand({ALICE: 2.0, BOB: 6.0}, ALICE)
    np.testing.assert_allclose(blob.Blob.from_bytes(content(mixing, ALICE))["conv.weight"], expected, rtol=1e-5)


def test_a_restart_after_somebody_was_forgotten_changes_no_byte_of_the_open_round(mixing: Bench) -> None:
    before = content(mixing, ALICE)

    clients.forget(mixing.federation, CAROL).result()
    mixing.reopen()

    assert content(mixing, ALICE) == before


def test_restarts_at_every_step_change_no_digest(tmp_path: Path) -> None:
    def driven(folder: Path, *, restarts: bool) -> list[bytes]:
        digests = []
        with open_bench(folder) as bench:
            start(bench, width=3)
            for value in (1.0, 3.0, 2.0):
                for k, client in enumerate((ALICE, BOB, CAROL)):
                    digests.append(personal(bench, client).sha256)
                    upload(bench, client, value + k, width=3)
                    if restarts:
                        bench.reopen()
                bench.freeze(aggregation.due(bench.federation)[0].round)
                if restarts:
                    bench.reopen()
                bench.advance()
        return digests

    assert driven(tmp_path / "plain", restarts=False) == driven(tmp_path / "restarted", restarts=True)


def test_who_joins_late_starts_from_the_global_model(mixing: Bench) -> None:
    mixing.enrol([DAVE])
    for client in (ALICE, BOB, CAROL):
        upload(mixing, client, 3.0)
    mixing.advance()

    given = mixing.tensors(mixing.assignment(DAVE), "personal")

    np.testing.assert_array_equal(given["conv.weight"], np.zeros((2, WIDTH), np.float32))
    upload(mixing, DAVE, 7.0)
    for client in (ALICE, BOB, CAROL):
        upload(mixing, client, 3.0)
    mixing.advance()
    assert 3.0 < blob.Blob.from_bytes(content(mixing, DAVE))["conv.weight"].mean() < 7.0


def test_who_vanishes_keeps_its_old_model_in_the_others_mixes(mixing: Bench) -> None:
    upload(mixing, ALICE, 1.0)
    upload(mixing, BOB, 1.0)
    mixing.clock.wind(60)
    mixing.advance()

    assert mixing.show().rounds[1].state == admin_pb2.ROUND_STATE_COMMITTED
    # Carol's 9 is still in.
    assert blob.Blob.from_bytes(content(mixing, ALICE))["conv.weight"].min() > 1.0


def test_small_mixes_are_kept_in_memory_and_computed_anew_after_a_restart(bench: Bench) -> None:
    start(bench, width=3)
    for client, value in ((ALICE, 1.0), (BOB, 5.0), (CAROL, 9.0)):
        upload(bench, client, value, width=3)
    bench.advance()
    before = content(bench, ALICE)
    kept = bench.store.blobs.locate(personal(bench, ALICE).sha256).raw

    bench.reopen()

    assert content(bench, ALICE) == before == kept
    assert bench.store.blobs.locate(personal(bench, ALICE).sha256).computed is not None
    assert sha256(before).digest() == personal(bench, ALICE).sha256


def test_who_waits_predicts_with_its_last_upload(mixing: Bench) -> None:
    upload(mixing, ALICE, 4.0)
    for client in (BOB, CAROL):
        upload(mixing, client, 4.5)
    mixing.advance()
    upload(mixing, ALICE, 8.0)

    response = mixing.check_in(ALICE)

    # Of the round that has ended; the one sent last counts when its round has.
    assert response.wait.reason == check_in_pb2.WAIT_REASON_NEXT_ROUND
    (item,) = response.wait.models[0].sets
    assert item.name == "personal"
    np.testing.assert_array_equal(mixing.store.tensors(item.sha256)["conv.weight"][0, :2], [4.0, 4.0])
    assert assignments.readable(mixing.federation, ALICE, item.sha256).path is not None


def test_evaluators_and_operators_are_told_of_no_global_model_in_personalisation(mixing: Bench) -> None:
    evaluator = client_ids(9)[-1]
    mixing.enrol([evaluator], EVALUATORS)

    assert not mixing.check_in(evaluator).HasField("assignment")
    with pytest.raises(Unknown, match="no global model"):
        tasks.model(mixing.federation, "task")


def test_digests_are_found_before_the_writing_thread_needs_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = note_threads(monkeypatch)
    start(bench)
    for client, value in ((ALICE, 1.0), (BOB, 5.0), (CAROL, 9.0)):
        upload(bench, client, value)
    bench.advance()

    assert len(threads) == 3
    assert "fedlens-writer" not in threads


def test_the_norm_of_an_update_is_that_of_its_difference_to_the_mix(bench: Bench) -> None:
    start(bench, width=3, max_update_norm=100.0)
    for client, value in ((ALICE, 1.0), (BOB, 5.0), (CAROL, 9.0)):
        upload(bench, client, value, width=3)
    bench.advance()

    upload(bench, ALICE, 4.0, width=3)
    with pytest.raises(Exception, match=r"norm 3[0-9]{3}.*at most 100"):
        upload(bench, BOB, 1000.0, width=3)


@pytest.mark.parametrize("download_codec", ["f32", "int8"])
def test_differences_to_a_mix_make_the_models_of_the_next_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, download_codec: str
) -> None:
    threads = note_threads(monkeypatch)
    start(bench, difference=True, download_codec=download_codec)
    for value in (1.0, 2.0):
        for k, client in enumerate((ALICE, BOB, CAROL)):
            assignment = bench.assignment(client)
            base = bench.tensors(assignment, "personal")
            trained = weights(value + 4 * k, CLASSIFIERS[client], WIDTH)
            raw = blob.encode(
                {name: trained[name] - base[name] for name in trained}, base=personal(bench, client).sha256
            )
            header, _ = update_of(assignment, None)
            header.blob_sha256, header.blob_size = sha256(raw).digest(), len(raw)
            bench.send(client, assignment, header, raw)
        bench.advance()

    decoded = bench.tensors(bench.assignment(BOB), "personal")

    # int8 keeps 127 steps of a row, whose values here are all the same.
    expected = mixed_by_hand({ALICE: 2.0, BOB: 6.0, CAROL: 10.0}, BOB)
    np.testing.assert_allclose(decoded["conv.weight"], np.full((2, WIDTH), expected), rtol=1e-5)
    assert decoded["bn.batches"] == 6
    assert "fedlens-writer" not in threads
    assert (recipes(bench) == set()) == (download_codec == "int8")


def note_threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads in which digests of weighted sums are found from now on."""
    threads: list[str] = []
    found = encoding.digest

    def noted(tensors: ComputedTensors) -> bytes:
        threads.append(threading.current_thread().name)
        return found(tensors)

    monkeypatch.setattr(downloads.encoding, "digest", noted)
    return threads


def test_personal_evaluation_at_the_end_is_of_everybodys_mix(bench: Bench) -> None:
    start(bench, width=3, rounds=1, personal_evaluation=True)
    for client, value in ((ALICE, 1.0), (BOB, 5.0), (CAROL, 9.0)):
        upload(bench, client, value, width=3)
    bench.advance()

    digests = {personal(bench, client).sha256 for client in (ALICE, BOB, CAROL)}

    assert len(digests) == 3
    assert digests == recipes(bench)


def mixed_by_hand(sent: Mapping[bytes, float], client: bytes) -> float:
    """The paper's formula for the classifiers above, in plain numpy."""
    ids = sorted(sent)
    phi = {other: np.array(CLASSIFIERS[other]) for other in ids}
    total = weight = 0.0
    for other in ids:
        a, b = phi[client], phi[other]
        cosines = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
        similarity = 1.0 if other == client else float(np.mean(-np.log(1 - np.clip(cosines, 0, 0.9999))))
        total, weight = total + similarity * sent[other], weight + similarity
    return total / weight


@pytest.mark.parametrize("client", [ALICE, BOB, CAROL], ids=["Alice", "Bob", "Carol"])
def test_the_mix_is_the_papers(mixing: Bench, client: bytes) -> None:
    decoded = blob.Blob.from_bytes(content(mixing, client))

    expected = mixed_by_hand({ALICE: 1.0, BOB: 5.0, CAROL: 9.0}, client)
    np.testing.assert_allclose(decoded["conv.weight"], np.full((2, WIDTH), expected), rtol=1e-5)
