"""Training on augmented views, of whole photos and of what a frozen backbone makes of them."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from fedlens_edge_client import FolderAlbum
from fedlens_edge_client.engines import BadInput, Rows
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training import features, photo_set, views
from fedlens_edge_client.training.photo_set import PreparedPhotos
from fedlens_export.exporting import Training, frozen_backbone_bundle, whole_model_bundle
from fedlens_export.models import backbones, whole_models
from fedlens_export.programs.view import augmented
from fedlens_proto import keyed_hash
from fedlens_proto.manifest import Bundle
from fedlens_proto.photos import as_input, load
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import SEED, fedavg_plan, train_of
from tests.edge_client.federation import Federation

CLASSES = ("cat", "dog")
SIDE = 16
STORED = 4
REFERENCE = assignment_pb2.Binding(reference="global", source=assignment_pb2.Source(download="global"))


class Counting(TorchEngine):
    """The torch engine, which counts the views that it makes."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle)
        self.made = 0

    def view(self, photos: NDArray[np.float32], uniforms: NDArray[np.float32]) -> NDArray[np.float32]:
        self.made += len(photos)
        return super().view(photos, uniforms)


@pytest.fixture(scope="module")
def whole_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    model = whole_models.build("small_plain", len(CLASSES), SIDE, seed=0)
    training = Training(class_names=CLASSES, batch=4, objective="supcon", optimiser="adam")
    return whole_model_bundle(tmp_path_factory.mktemp("views") / "whole", model, training, SIDE)


@pytest.fixture(scope="module")
def frozen_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """8 x 8 photos become 12 features, the means of four fields; the head is 12-512-2."""
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    head = backbones.build_head("hidden", 12, len(CLASSES), seed=0)
    training = Training(class_names=CLASSES, batch=4, objective="supcon_raw", optimiser="adam", stored_views=STORED)
    return frozen_backbone_bundle(tmp_path_factory.mktemp("views") / "frozen", backbone, head, training, 8)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[FeatureCache]:
    with closing(FeatureCache(tmp_path / "features.sqlite3", 1 << 30)) as cache:
        yield cache


def prepared(photos: Path, engine: TorchEngine, cache: FeatureCache) -> PreparedPhotos:
    return photo_set.prepare(FolderAlbum(photos).photos(1), engine, cache)


def seen(rows: Rows, *indices: int) -> NDArray[np.float32]:
    assert rows.views is not None
    out = np.empty((len(indices), *rows.views.shape[1:]), np.float32)
    rows.views.take(np.array(indices), out)
    return out


def test_a_view_follows_from_seed_photo_and_number(whole_bundle: Bundle, photos: Path, cache: FeatureCache) -> None:
    train = prepared(photos, TorchEngine(whole_bundle), cache).train

    found = seen(train.training_rows(TorchEngine(whole_bundle), SEED), 5, 2)

    for place, row in enumerate((5, 2)):
        for number in range(2):
            uniforms = torch.from_numpy(keyed_hash.view_uniforms(SEED, train.entries[row][0], number, 11)).unsqueeze(0)
            expected = augmented(torch.from_numpy(train.rows.inputs[row : row + 1]), uniforms)
            np.testing.assert_allclose(found[place, number], expected[0].numpy(), atol=1e-6)


def test_a_photo_looks_the_same_throughout_a_pass_and_different_in_the_next(
    whole_bundle: Bundle, photos: Path, cache: FeatureCache
) -> None:
    engine = Counting(whole_bundle)
    train = prepared(photos, engine, cache).train
    rows = train.training_rows(engine, SEED)

    first, again = seen(rows, 0, 3, 7), seen(rows, 7, 0)
    other = seen(train.training_rows(engine, bytes(32)), 0)

    assert np.array_equal(again, first[[2, 0]])
    assert not np.array_equal(other, first[:1])
    # Two views of each of three photos, then nothing new, then those of one photo.
    assert engine.made == 2 * 3 + 2


def test_what_does_not_fit_into_memory_is_made_again(whole_bundle: Bundle, photos: Path, cache: FeatureCache) -> None:
    engine = Counting(whole_bundle)
    train = prepared(photos, engine, cache).train
    digests = [digest for digest, _ in train.entries]
    # 4 bytes * 2 views * 3 colours * 16 * 16 = 6,144 bytes a photo: room for one.
    one = views.MadeViews(engine, train.rows.inputs, digests, SEED, max_cached_bytes=12_000)

    first, second = (seen(Rows(train.rows.inputs, train.rows.labels, one), 0, 1, 1) for _ in range(2))

    assert np.array_equal(first, second)
    assert engine.made == 2 * 2 + 2


@pytest.mark.slow
def test_stored_views_are_embedded_once_and_a_pass_takes_different_ones(
    frozen_bundle: Bundle, photos: Path, cache: FeatureCache
) -> None:
    engine = Counting(frozen_bundle)
    train = prepared(photos, engine, cache).train
    made = engine.made
    again = prepared(photos, engine, cache)
    assert train.stored_views is not None

    rows = train.training_rows(engine, SEED)

    assert train.stored_views.shape == (16, STORED, 12)
    assert made == engine.made == 16 * STORED
    assert again.test.stored_views is None
    digest, _ = train.entries[9]
    choice = keyed_hash.view_choice(SEED, digest, STORED, 2)
    assert np.array_equal(seen(rows, 9)[0], train.stored_views[9, choice])
    assert np.array_equal(rows.inputs, train.rows.inputs)


def test_a_stored_view_is_the_features_of_an_augmented_photo(
    frozen_bundle: Bundle, photos: Path, cache: FeatureCache
) -> None:
    engine = TorchEngine(frozen_bundle)
    train = prepared(photos, engine, cache).train
    path = next(photo.path for photo in FolderAlbum(photos).photos(1).photos if photo.digest == train.entries[0][0])
    pixels = as_input(load(path, 8, 8))[np.newaxis]
    uniforms = torch.from_numpy(keyed_hash.view_uniforms(bytes(32), train.entries[0][0], 3, 11)).unsqueeze(0)

    expected = engine.embed(augmented(torch.from_numpy(pixels), uniforms).numpy())

    assert train.stored_views is not None
    np.testing.assert_allclose(train.stored_views[0, 3], expected, atol=1e-5)


def test_a_photo_that_disappears_while_it_is_augmented_is_left_out(
    frozen_bundle: Bundle, photos: Path, cache: FeatureCache, tmp_path: Path
) -> None:
    engine = TorchEngine(frozen_bundle)
    snapshot = FolderAlbum(photos).photos(1)
    gone = next(photo for photo in snapshot.photos if not photo.is_test)
    with_features = photo_set.prepare(snapshot, engine, cache)
    name = features.space(frozen_bundle.manifest, engine.program_format)
    gone.path.unlink()

    with closing(FeatureCache(tmp_path / "without-views.sqlite3", 1 << 30)) as fresh:
        fresh.put(name, cache.get(name, [photo.digest for photo in snapshot.photos]))
        found = photo_set.prepare(snapshot, engine, fresh)

    assert len(found.train) == len(with_features.train) - 1
    assert found.skipped == {photo_set.CHANGED: (f"{gone.label}/{gone.path.name}",)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["whole_bundle", "frozen_bundle"])
async def test_a_client_learns_from_views_in_a_child_as_in_process(
    kind: str, request: pytest.FixtureRequest, federation: Federation, tmp_path: Path
) -> None:
    plan = fedavg_plan(4)
    train_of(plan).bindings.append(REFERENCE)

    arguments: dict[str, Any] = {"rounds": 2, "bundle": request.getfixturevalue(kind), "engine_factory": None}
    server = await federation.run(plan, **arguments)
    own = await replace(federation, state=tmp_path / "in process").run(plan, in_process=True, **arguments)

    assert own.updates == server.updates
    first, second = (server.header(number).evaluations for number in (1, 2))
    assert server.blob(1) != server.blob(2)
    assert second[1].loss < first[0].loss
    assert second[1].correct == second[1].count == 4


def test_steps_over_views_refuse_rows_without_and_others_refuse_rows_with(whole_bundle: Bundle) -> None:
    engine = TorchEngine(whole_bundle)
    rows = Rows(np.zeros((4, 3, SIDE, SIDE), np.float32), np.zeros(4, np.int64))
    weights = dict(whole_bundle.initial())

    with pytest.raises(BadInput, match="step takes 2 views of each photo"):
        engine.train("step", weights, rows, [np.arange(4)], {}, {"global": weights})


def test_uniforms_of_another_number_are_named(whole_bundle: Bundle) -> None:
    with pytest.raises(BadInput, match=r"the uniforms: found float32\[2, 10\], the bundle takes float32\[2, 11\]"):
        TorchEngine(whole_bundle).view(np.zeros((2, 3, SIDE, SIDE), np.float32), np.zeros((2, 10), np.float32))


def test_a_bundle_without_views_makes_none(whole_bundle: Bundle) -> None:
    bundle = Bundle(manifest=type(whole_bundle.manifest)(), raw=b"", folder=whole_bundle.folder)

    with pytest.raises(BadInput, match="the bundle has no views of photos"):
        TorchEngine(bundle).view(np.zeros((1, 3, 8, 8), np.float32), np.zeros((1, 11), np.float32))
