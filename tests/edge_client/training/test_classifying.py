"""Many photos at once, by the model that a client would use now: the classes that it predicts for one at a time."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedlens_edge_client import FolderAlbum
from fedlens_edge_client.client.events import Embedded
from fedlens_edge_client.storage.album import Photo
from fedlens_proto import blob
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import fedavg_plan, keep_all, start_of
from tests.edge_client.federation import Federation
from tests.edge_client.linear import make_bundle
from tests.edge_client.photo_folders import add_photos

# Maps a photo's three mean colours to two numbers.
EXTRACTOR = {"base.weight": np.array([[1, 0, 0], [0, 0, 2]], np.float32)}


@pytest.fixture
def new(tmp_path: Path) -> list[Photo]:
    """Four cats and four dogs that are in no album; the label plays no part."""
    paths = [path for label in ("cat", "dog") for path in add_photos(tmp_path / "new", label, 4, seed=9)]
    return [entry(path) for path in paths]


def entry(path: Path) -> Photo:
    return Photo(sha256(path.read_bytes()).digest(), 0, "of whatever class", path, is_test=False)


def keeping() -> assignment_pb2.LocalPlan:
    """A plan whose trained tensors stay with the client; the server's `global` stays all zeros."""
    plan = fedavg_plan(30)
    start_of(plan).state = "mine"
    keep_all(plan, "mine")
    plan.uploads[0].tensors.names.append("fc.bias")
    return plan


def concatenating() -> assignment_pb2.LocalPlan:
    plan = fedavg_plan(30)
    plan.extractors.extend(["cluster_0", "cluster_1"])
    return plan


@pytest.mark.parametrize(
    ("plan", "concatenated"), [(fedavg_plan(30), 0), (keeping(), 0), (concatenating(), 2)], ids=["global", "kept", "x2"]
)
async def test_many_photos_get_the_classes_that_are_predicted_one_by_one(
    federation: Federation, tmp_path: Path, new: list[Photo], plan: assignment_pb2.LocalPlan, concatenated: int
) -> None:
    made = make_bundle(tmp_path / "bundle", concatenated=concatenated)
    async with federation.joined(plan, bundle=made) as (server, client):
        server.sets["cluster_0"] = blob.encode(EXTRACTOR)
        await client.run()
        one_by_one = [await client.predict(photo.path) for photo in new]
        found = await client.classify(new)

    expected = [max((0, 1), key=list(probabilities.values()).__getitem__) for probabilities in one_by_one]
    assert [found[photo.digest] for photo in new] == expected == [0] * 4 + [1] * 4


async def test_photos_that_cannot_be_read_get_no_class(
    federation: Federation, tmp_path: Path, new: list[Photo]
) -> None:
    (tmp_path / "torn.png").write_bytes(new[0].path.read_bytes()[:40])
    torn, gone = entry(tmp_path / "torn.png"), new[1]
    gone.path.unlink()
    async with federation.joined() as (_, client):
        await client.run()
        found = await client.classify([torn, *new])
        nothing = await client.classify([torn])

    assert found.keys() == {photo.digest for photo in new} - {gone.digest}
    assert nothing == {}


async def test_a_photo_is_embedded_once_for_rounds_and_classes(federation: Federation, photos: Path) -> None:
    album = [entry(photo.path) for photo in FolderAlbum(photos).photos(1).photos]
    async with federation.joined() as (_, client):
        await client.run()
        for photo in album:
            photo.path.unlink()
        found = await client.classify(album)

    assert federation.events.of(Embedded)
    assert len(found) == len(album) == 20
