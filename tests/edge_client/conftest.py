from pathlib import Path

import pytest

from fedlens_proto.manifest import Bundle
from tests.edge_client.federation import Federation, Heard
from tests.edge_client.linear import make_bundle
from tests.edge_client.photo_folders import add_photos, make_album


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("linear") / "bundle")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten cats and ten dogs, of which 16 are train photos and 4 test photos by their digests."""
    return make_album(tmp_path / "photos")


@pytest.fixture
def federation(bundle: Bundle, photos: Path, tmp_path: Path) -> Federation:
    return Federation(bundle, photos, tmp_path / "state")


@pytest.fixture
def events(federation: Federation) -> Heard:
    return federation.events


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    """A photo that is in no album."""
    return add_photos(tmp_path / "new", "cat", 1, seed=9)[0]
