"""Phases whose rows are the outputs of several frozen extractors."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedlens_edge_client.engines import BadInput, Rows
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training import extracted
from fedlens_edge_client.training.extracted import Extractor
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos
from fedlens_edge_client.training.prediction import predict
from fedlens_proto import blob
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import fedavg_plan
from tests.edge_client.federation import Federation
from tests.edge_client.linear import BATCH, WIDTH, LinearEngine, make_bundle

# Maps a photo's three mean colours to two numbers.
FIRST = {"base.weight": np.array([[1, 0, 0], [0, 2, 0]], np.float32)}
SECOND = {"base.weight": np.array([[0, 0, 1], [1, 1, 1]], np.float32)}


class CountingEngine(LinearEngine):
    """The linear engine, which counts the batches that it runs `extract` on."""

    extractions = 0

    def extract(self, extractor: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        assert len(inputs) % BATCH == 0
        type(self).extractions += len(inputs) // BATCH
        return super().extract(extractor, inputs)


@pytest.fixture
def concatenating(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "concat", concatenated=2)


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(tmp_path / "features.sqlite3", 1 << 30)


@pytest.fixture(autouse=True)
def count_from_zero() -> None:
    CountingEngine.extractions = 0


def extractor(tensors: dict[str, Array]) -> Extractor:
    return Extractor(sha256(blob.encode(tensors)).digest(), lambda: tensors)


def photos(count: int) -> PreparedPhotos:
    """Half of them to train on, half of them to test with; inputs are a digest's first bytes."""
    digests = sorted(sha256(f"{index}".encode()).digest() for index in range(count))
    inputs = np.stack([np.frombuffer(digest[:3], np.uint8).astype(np.float32) for digest in digests])
    labels = np.arange(count, dtype=np.int64) % 2
    entries = tuple((digest, 0) for digest in digests)
    sides = slice(count // 2), slice(count // 2, count)
    train, test = (PhotoSet(entries[at], Rows(inputs[at], labels[at])) for at in sides)
    return PreparedPhotos(train, test, {})


def plan() -> assignment_pb2.LocalPlan:
    """FedAvg of the classifier on two extractors."""
    result = fedavg_plan()
    result.extractors.extend(["cluster_0", "cluster_1"])
    return result


def test_rows_are_the_extractors_outputs_side_by_side_and_zeros_for_an_absent_one(
    concatenating: Bundle, cache: FeatureCache
) -> None:
    given = photos(10)
    engine = LinearEngine(concatenating)
    both = extracted.side_by_side(given, engine, [extractor(FIRST), extractor(SECOND)], cache)
    without = extracted.side_by_side(given, engine, [None, extractor(SECOND)], cache)

    r, g, b = given.train.rows.inputs.T
    np.testing.assert_array_equal(both.train.rows.inputs, np.stack([r, 2 * g, b, r + g + b], axis=1))
    np.testing.assert_array_equal(without.test.rows.inputs[:, :WIDTH], 0)
    np.testing.assert_array_equal(without.test.rows.inputs[:, WIDTH:], both.test.rows.inputs[:, WIDTH:])
    np.testing.assert_array_equal(both.train.rows.labels, given.train.rows.labels)


def test_outputs_are_computed_once_for_each_photo_and_extractor(concatenating: Bundle, cache: FeatureCache) -> None:
    engine = CountingEngine(concatenating)
    first = extracted.side_by_side(photos(10), engine, [extractor(FIRST), None], cache)
    before = engine.extractions
    # The outputs are in the cache, so that the extractor is not even read.
    unread = replace(extractor(FIRST), read=partial(pytest.fail, "the extractor is read"))
    second = extracted.side_by_side(photos(10), engine, [unread, None], cache)

    assert engine.extractions == before > 0
    np.testing.assert_array_equal(first.train.rows.inputs, second.train.rows.inputs)


def test_another_extractor_or_photo_is_computed(concatenating: Bundle, cache: FeatureCache) -> None:
    engine = CountingEngine(concatenating)
    extracted.side_by_side(photos(10), engine, [extractor(FIRST), None], cache)
    before = engine.extractions
    extracted.side_by_side(photos(11), engine, [extractor(FIRST), None], cache)
    assert engine.extractions == before + 1
    extracted.side_by_side(photos(11), engine, [extractor(SECOND), None], cache)

    assert engine.extractions > before + 1


def test_copies_of_a_photo_share_an_output(concatenating: Bundle, cache: FeatureCache) -> None:
    digest = bytes(32)
    twins = PhotoSet(((digest, 0), (digest, 1)), Rows(np.ones((2, 3), np.float32), np.array([0, 1])))
    nothing = PhotoSet((), Rows(np.zeros((0, 1), np.float32), np.zeros(0, np.int64)))
    result = extracted.side_by_side(
        PreparedPhotos(twins, nothing, {}), LinearEngine(concatenating), [extractor(FIRST), None], cache
    )

    np.testing.assert_array_equal(result.train.rows.inputs, [[1, 2, 0, 0]] * 2)
    assert result.test.rows.inputs.shape == (0, 4)


def test_a_photo_stands_at_the_same_place_of_a_batch_whichever_others_are_new() -> None:
    digests = [entry[0] for entry in photos(100).train.entries]
    everywhere = extracted._placed(digests, BATCH)
    few = extracted._placed(digests[::7], BATCH)
    place = {digest: place for one in everywhere for place, digest in one.items()}

    assert sorted(place) == digests
    assert all(place[digest] == at for one in few for at, digest in one.items())
    # No batch is begun before one that has the place free: as many batches as photos at the fullest place.
    assert len(everywhere) == max(list(place.values()).count(at) for at in range(BATCH))


async def test_rounds_of_a_concatenated_phase_run_the_extractors_only_once(
    concatenating: Bundle, federation: Federation
) -> None:
    joined = federation.joined(plan(), rounds=3, bundle=concatenating, engine_factory=CountingEngine)
    async with joined as (server, client):
        server.sets |= {"cluster_0": blob.encode(FIRST), "cluster_1": blob.encode(SECOND)}
        await client.run_once()
        once = CountingEngine.extractions
        await client.run()

    assert CountingEngine.extractions == once > 0
    assert sorted(server.updates) == [1, 2, 3]
    assert server.header(3).evaluations[1].loss < server.header(1).evaluations[0].loss


async def test_a_cluster_that_the_assignment_lacks_counts_as_zeros(
    concatenating: Bundle, federation: Federation
) -> None:
    async with federation.joined(plan(), bundle=concatenating) as (server, client):
        server.sets["cluster_1"] = blob.encode(SECOND)
        await client.run_once()

    trained = blob.Blob.from_bytes(server.blob(1))
    np.testing.assert_array_equal(trained["fc.weight"][:, :WIDTH], 0)
    assert trained["fc.weight"][:, WIDTH:].any()


async def test_an_extractor_that_does_not_fit_fails_the_round(concatenating: Bundle, federation: Federation) -> None:
    class Strict(LinearEngine):
        def extract(self, extractor: Mapping[str, Array], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
            raise BadInput("tensor 'base.weight' is missing from the extractor")

    async with federation.joined(plan(), bundle=concatenating, engine_factory=Strict) as (server, client):
        server.sets["cluster_0"] = blob.encode({"other": np.zeros(2, np.float32)})
        await client.run_once()

    assert "'base.weight' is missing" in server.failures[1].detail


async def test_a_prediction_uses_the_extractors_of_the_last_pass(
    concatenating: Bundle, federation: Federation, cat: Path
) -> None:
    async with federation.joined(plan(), bundle=concatenating) as (server, client):
        server.sets["cluster_0"] = blob.encode(FIRST)
        await client.run()
        predicted = await client.predict(cat)

    weights, engine = blob.Blob.from_bytes(server.blob(1)), LinearEngine(concatenating)
    assert predicted == predict(engine, weights, cat, [FIRST, None]) != predict(engine, weights, cat, [None, None])


def test_a_concatenated_model_without_its_extractors_predicts_nothing(concatenating: Bundle, cat: Path) -> None:
    with pytest.raises(BadInput, match="takes 2 extractors side by side, there are 0"):
        predict(LinearEngine(concatenating), concatenating.initial(), cat)
