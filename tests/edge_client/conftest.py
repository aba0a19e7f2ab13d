from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client import EdgeClient, FolderAlbum
from fedlens_edge_client.client.events import Event
from fedlens_proto.manifest import Bundle
from tests.edge_client.fakes import TOKEN
from tests.edge_client.linear import LinearEngine, make_bundle
from tests.edge_client.photo_folders import make_album


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("linear") / "bundle")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten cats and ten dogs, of which 16 are train photos and 4 test photos by their digests."""
    return make_album(tmp_path / "photos")


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def client_of(tmp_path: Path, photos: Path, events: list[Event]) -> Callable[..., EdgeClient]:
    """Makes a client on `photos` with its state in `tmp_path / "state"`; other arguments as `EdgeClient`."""

    def make(server: str, **arguments: Any) -> EdgeClient:
        settings: dict[str, Any] = {
            "state": tmp_path / "state",
            "album": FolderAlbum(photos),
            "enrolment_token": TOKEN,
            "on_event": events.append,
            "engine_factory": LinearEngine,
        }
        return EdgeClient(server, **(settings | arguments))

    return make
