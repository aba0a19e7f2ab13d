from pathlib import Path

import numpy as np
import pytest

from fedlens_server.errors import Malformed
from fedlens_server.methods import bundle_settings
from fedlens_server.planning.task_settings import SettingsError, TaskSettings
from tests.plugin_packages import HALF, METHODS, install
from tests.server.fakes import Bench


@pytest.fixture(autouse=True)
def package(site: Path) -> None:
    """A package outside the tree with a method."""
    install(site, "half-way", METHODS, half_way=HALF)


@pytest.mark.parametrize("name", ["half", "half_way:METHOD"])
def test_a_task_runs_a_method_of_another_package_with_its_options(bench: Bench, name: str) -> None:
    bench.start(method=name, options={"part": 0.25})

    bench.commit(2.0, 2.0)

    # A quarter of the way from 0 to 2
    np.testing.assert_array_equal(bench.model()["fc.bias"], [0.5, 0.5])


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("half", {"part": 2}, "options.part: found 2, must be a number, 0 to 1"),
        ("half", {"speed": 2}, "options.speed: found set, must be left out: the options of half are part"),
        ("halves", {}, "found 'halves', must be one of ditto, .*, broken, half; or install the package that has it"),
        ("fedpr", {}, r"found 'fedpr' \(did you mean fedper\?\), must be one of ditto, "),
        ("broken", {}, "found 'broken', which failed with KeyError: 'nothing', must be one that can plan this task"),
        ("half_way:HALF", {}, "the module has no 'HALF'; its objects of that class are METHOD, BROKEN"),
        ("half_way:OPTIONS", {}, "'half_way:OPTIONS' is no MethodDefinition: the module has a dict 'OPTIONS'"),
    ],
)
def test_a_task_that_a_method_of_another_package_does_not_fit_is_refused(
    bench: Bench, method: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(Malformed, match=words):
        bench.make(method=method, options=options)

    assert bench.federation.tasks == {}


def test_no_package_takes_the_place_of_a_built_in_method(bench: Bench, site: Path) -> None:
    install(site, "other-average", {"fedlens.methods": {"fedavg": "half_way:METHOD"}})

    with pytest.raises(Malformed, match="method: found 'fedavg' in FedLens and in package other-average; uninstall"):
        bench.make(method="fedavg")


def test_a_method_of_another_package_says_what_its_bundles_are_exported_with() -> None:
    wanted = {"half": "proximal", "half_way:BROKEN": "cross_entropy"}
    found = {name: bundle_settings(TaskSettings(method=name, rounds=1, population=1)).objective for name in wanted}

    assert found == wanted


def test_modules_are_imported_only_where_the_server_allows_it(bench: Bench) -> None:
    bench.federation.method_modules = False

    with pytest.raises(SettingsError, match=r"found 'half_way:METHOD', must be .* server.allow_method_modules = true"):
        bench.make(method="half_way:METHOD")

    bench.make(method="half")
