"""States of each kind: in a folder, and elsewhere."""

from pathlib import Path

import pytest

from fedlens_server.store import StateAddress, lead
from tests.server.elsewhere import elsewhere


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a state that does not exist yet."""
    return tmp_path / "state"


@pytest.fixture
def quick_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lead that expires within two seconds, for most of which a machine that stands still loses none."""
    for name, seconds in {"EXPIRES_S": 2.0, "CERTAIN_S": 1.9, "RENEW_EVERY_S": 0.1, "LOOK_EVERY_S": 0.1}.items():
        monkeypatch.setattr(lead, name, seconds)


@pytest.fixture(params=["files", "postgres", "elsewhere"])
def address(request: pytest.FixtureRequest, folder: Path) -> StateAddress:
    """The address of a state that does not exist yet."""
    if request.param == "files":
        return StateAddress(folder=folder)
    gateway = request.getfixturevalue("gateway") if request.param == "elsewhere" else None
    return elsewhere(folder, request.getfixturevalue("cluster"), gateway)
