"""Downloads that are computed when they are read: pFedSim's mixes, from the opening of a round to the sweep."""

import threading
from collections.abc import Mapping
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from fedlens_proto import blob
from fedlens_proto.v1 import admin_pb2, assignment_pb2, check_in_pb2
from fedlens_server.engine import aggregation, assignments
from fedlens_server.engine.cohorts import downloads
from fedlens_server.errors import Unknown
from fedlens_server.store import encoding, schema
from fedlens_server.store.blobs import ComputedTensors
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, EVALUATORS, EVE, Bench
from tests.server.networks import network, weights

CLASSIFIERS = {
    ALICE: ((1.0, 0.0), (0.0, 1.0)),
    BOB: ((2.0, 0.0), (3.0, 3.0)),
    CAROL: ((1.0, 1.0), (1.0, 0.0)),
    DAVE: ((0.0, 1.0), (1.0, 2.0)),
}
# Of 2 x 200,000 float32: a blob that is a file and too large to be kept in memory.
WIDTH = 200_000
TRIO = (ALICE, BOB, CAROL)


def start(bench: Bench, width: int = WIDTH, **changed: object) -> None:
    """A task that Alice, Bob and Carol take part in."""
    settings = {"method": "pfedsim", "rounds": 5, "population": 3, "options": {"warm_up": 0}}
    bench.make(network(width), **settings | changed)
    bench.enrol(TRIO)


def upload(bench: Bench, client: bytes, value: float, width: int = WIDTH) -> None:
    bench.upload(client, weights(value, CLASSIFIERS[client], width))


def commit(bench: Bench, *values: float, width: int = WIDTH) -> None:
    """A round to which Alice, Bob and Carol upload these."""
    for client, value in zip(TRIO, values, strict=False):
        upload(bench, client, value, width)
    bench.advance()


@pytest.fixture
def mixing(bench: Bench) -> Bench:
    """All three have uploaded once, 1, 5 and 9; the second round is open."""
    start(bench)
    commit(bench, 1.0, 5.0, 9.0)
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


def test_a_mix_is_on_no_disk(mixing: Bench) -> None:
    mixes = {personal(mixing, client).sha256 for client in TRIO}

    assert recipes(mixing) == mixes
    assert not {digest.hex() for digest in mixes} & files(mixing)
    assert not mixes & mixing.store.blobs.sizes.keys()


@pytest.mark.parametrize("gone", [[], [CAROL]], ids=["all there", "one forgotten"])
def test_a_restart_changes_no_byte_of_the_open_round(mixing: Bench, gone: list[bytes]) -> None:
    before = content(mixing, ALICE)

    for client in gone:
        mixing.forget(client)
    mixing.reopen()

    assert content(mixing, ALICE) == before


def test_restarts_at_every_step_change_no_digest(tmp_path: Path) -> None:
    def driven(folder: Path, *, restarts: bool) -> list[bytes]:
        digests = []
        with closing(Bench(folder)) as bench:
            start(bench, width=3)
            for value in (1.0, 3.0, 2.0):
                for k, client in enumerate(TRIO):
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
    commit(mixing, 3.0, 3.0, 3.0)

    given = mixing.tensors(mixing.assignment(DAVE), "personal")

    np.testing.assert_array_equal(given["conv.weight"], np.zeros((2, WIDTH), np.float32))
    upload(mixing, DAVE, 7.0)
    commit(mixing, 3.0, 3.0, 3.0)
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
    commit(bench, 1.0, 5.0, 9.0, width=3)
    before = content(bench, ALICE)
    kept = bench.store.blobs.locate(personal(bench, ALICE).sha256).raw

    bench.reopen()

    assert content(bench, ALICE) == before == kept
    assert bench.store.blobs.locate(personal(bench, ALICE).sha256).computed is not None
    assert sha256(before).digest() == personal(bench, ALICE).sha256


def test_who_waits_predicts_with_its_last_upload(mixing: Bench) -> None:
    commit(mixing, 4.0, 4.5, 4.5)
    upload(mixing, ALICE, 8.0)

    response = mixing.check_in(ALICE)

    # Of the round that has ended; the one sent last counts when its round has.
    assert response.wait.reason == check_in_pb2.WAIT_REASON_NEXT_ROUND
    (item,) = response.wait.models[0].sets
    assert item.name == "personal"
    np.testing.assert_array_equal(mixing.store.tensors(item.sha256)["conv.weight"][0, :2], [4.0, 4.0])
    assert assignments.readable(mixing.federation, ALICE, item.sha256).path is not None


def test_evaluators_and_operators_are_told_of_no_global_model_in_personalisation(mixing: Bench) -> None:
    mixing.enrol([EVE], EVALUATORS)

    assert not mixing.check_in(EVE).HasField("assignment")
    with pytest.raises(Unknown, match="no global model"):
        mixing.model()


def test_digests_are_found_before_the_writing_thread_needs_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = note_threads(monkeypatch)
    start(bench)
    commit(bench, 1.0, 5.0, 9.0)

    assert len(threads) == 3
    assert "fedlens-writer" not in threads


def test_the_norm_of_an_update_is_that_of_its_difference_to_the_mix(bench: Bench) -> None:
    start(bench, width=3, max_update_norm=100.0)
    commit(bench, 1.0, 5.0, 9.0, width=3)

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
        for k, client in enumerate(TRIO):
            assignment = bench.assignment(client)
            base = bench.tensors(assignment, "personal")
            trained = weights(value + 4 * k, CLASSIFIERS[client], WIDTH)
            differences = {name: trained[name] - base[name] for name in trained}
            bench.upload(client, differences, base=assignment.sets[0].sha256)
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
    commit(bench, 1.0, 5.0, 9.0, width=3)

    digests = {personal(bench, client).sha256 for client in TRIO}

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


@pytest.mark.parametrize("client", TRIO, ids=["Alice", "Bob", "Carol"])
def test_the_mix_is_the_papers(mixing: Bench, client: bytes) -> None:
    decoded = blob.Blob.from_bytes(content(mixing, client))

    expected = mixed_by_hand({ALICE: 1.0, BOB: 5.0, CAROL: 9.0}, client)
    np.testing.assert_allclose(decoded["conv.weight"], np.full((2, WIDTH), expected), rtol=1e-5)
