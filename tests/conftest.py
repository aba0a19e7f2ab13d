"""Settings and fixtures of every test."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from fedlens_proto.manifest import Bundle
from tests.once import once
from tests.plugin_packages import look_again

# An example may take long on a busy machine; where `CI` is set, Hypothesis itself has no limit.
settings.register_profile("unhurried", settings(), deadline=None)
settings.load_profile("unhurried")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first: one that began last would keep a single worker busy to the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow") or item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heeded() -> Iterator[None]:
    """Whoever runs the tests in the background of a script has SIGINT ignored, and child processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of packages, in which Python looks first; what is imported from it is forgotten at the end."""
    folder = tmp_path / "site"
    folder.mkdir()
    with monkeypatch.context() as patched:
        patched.syspath_prepend(folder)
        look_again()
        yield folder
    look_again()
    for name, module in list(sys.modules.items()):
        if folder in Path(getattr(module, "__file__", None) or "/").parents:
            del sys.modules[name]


@pytest.fixture(scope="session")
def phone(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of `phone_bundles.linear_bundle`, for any test that runs programs for phones: it takes seconds."""
    from tests.phone_bundles import linear_bundle

    return once(tmp_path_factory, "phone", linear_bundle)
