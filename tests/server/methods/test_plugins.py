from pathlib import Path

import numpy as np
import pytest

from fedlens_server.errors import Malformed
from fedlens_server.methods import METHODS as METHODS_BY_NAME
from fedlens_server.methods import bundle_settings, fedavg
from fedlens_server.planning import options
from fedlens_server.planning.bundle_settings import ByOptions
from fedlens_server.planning.method import MethodDefinition
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
        (
            "broken",
            {},
            r"found 'broken', which failed: KeyError: 'nothing' \(half_way.py, line 24\), must be one",
        ),
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


@pytest.mark.parametrize(
    ("bundle_settings_of", "words"),
    [
        (lambda options: options["nothing"], "whose bundle_settings failed: KeyError: 'nothing'"),
        (lambda options: None, "whose bundle_settings failed: TypeError: a NoneType is no BundleSettings"),
    ],
)
def test_a_method_that_does_not_say_it_is_named(
    monkeypatch: pytest.MonkeyPatch, bundle_settings_of: ByOptions, words: str
) -> None:
    monkeypatch.setitem(METHODS_BY_NAME, "silent", MethodDefinition(fedavg.for_task, bundle_settings_of))

    with pytest.raises(SettingsError, match=f"method: found 'silent', {words}"):
        bundle_settings(TaskSettings(method="silent", rounds=1, population=1))


def test_options_that_are_none_or_forbid_their_default_are_found_when_the_module_is_imported() -> None:
    with pytest.raises(TypeError, match=r"options: found 1.0 for 'q', must be an Option, as options.number\(0, 1\)"):
        MethodDefinition(fedavg.for_task, options={"q": 1.0})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="default 2 of an option must be a number, 0 to 1"):
        options.number(0, 1, default=2)


def test_modules_are_imported_only_where_the_server_allows_it(bench: Bench) -> None:
    bench.federation.method_modules = False

    with pytest.raises(SettingsError, match=r"found 'half_way:METHOD', must be .* server.allow_method_modules = true"):
        bench.make(method="half_way:METHOD")

    bench.make(method="half")
