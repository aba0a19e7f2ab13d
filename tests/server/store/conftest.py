"""States of each kind: in a folder, and elsewhere."""

from pathlib import Path

import pytest

from fedlens_server.store import StateAddress
from tests.server.elsewhere import elsewhere


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a state that does not exist yet."""
    return tmp_path / "state"


@pytest.fixture(params=["files", "postgres", "elsewhere"])
def address(request: pytest.FixtureRequest, folder: Path) -> StateAddress:
    """The address of a state that does not exist yet."""
    if request.param == "files":
        return StateAddress(folder=folder)
    gateway = request.getfixturevalue("gateway") if request.param == "elsewhere" else None
    return elsewhere(folder, request.getfixturevalue("cluster"), gateway)
