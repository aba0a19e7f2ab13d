from pathlib import Path

import pytest

from fedlens_proto import plugins
from fedlens_proto.errors import PluginError
from tests.plugin_packages import install

GROUP = "fedlens.numbers"
BUILT_IN = {"one": 1}


def find(name: str) -> int | None:
    return plugins.find(GROUP, name, int, BUILT_IN)


def numbers(**entry_points: str) -> dict[str, dict[str, str]]:
    return {GROUP: entry_points}


def test_a_built_in_name_needs_no_package() -> None:
    assert find("one") == 1
    assert find("two") is None


def test_an_entry_point_of_an_installed_package_is_found_and_listed(site: Path) -> None:
    install(site, "counting", numbers(two="counting:TWO"), counting="TWO = 2")

    assert find("two") == 2
    assert plugins.names(GROUP, BUILT_IN) == ["one", "two"]


def test_a_module_on_the_path_or_in_the_current_folder_is_found_by_its_name(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (site / "far").mkdir()
    (site / "far" / "away.py").write_text("THREE = 3")
    Path("nearby_numbers.py").write_text("FOUR = 4")

    assert (find("far.away:THREE"), find("nearby_numbers:FOUR")) == (3, 4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one", "found 'one' in FedLens and in package counting; uninstall one of the packages, or rename"),
        ("two", "found 'two' in package counting and in package more-counting; uninstall one"),
        (
            "three",
            r"entry point 'three' of package counting, counting:THREE, is no int: the module has no 'THREE'",
        ),
        (
            "four",
            "entry point 'four' of package counting, gone.away:FOUR, .* there is no module 'gone'",
        ),
        ("counting:WORD", "'counting:WORD' is no int: the module has a str 'WORD'; its objects of that class are TWO"),
        ("counting:", "'counting:' is no int: the module has no ''; its objects of that class are TWO"),
        ("counting.more:X", "there is no module 'counting.more'"),
        ("missing:X", "'missing:X' cannot be imported: there is no module 'missing'; install its package"),
        ("needy:X", "'needy:X' cannot be imported: ModuleNotFoundError: No module named 'torchaudio_of_another_age'"),
        ("failing:X", r"'failing:X' cannot be imported: ZeroDivisionError: division by zero \(failing.py, line 1\)"),
        (":X", "':X' cannot be imported: ValueError: Empty module name"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_named_with_the_reason(site: Path, name: str, words: str) -> None:
    entry_points = numbers(one="counting:TWO", two="counting:TWO", three="counting:THREE", four="gone.away:FOUR")
    modules = {"counting": "TWO = 2\nWORD = 'w'", "needy": "import torchaudio_of_another_age", "failing": "1 / 0"}
    install(site, "counting", entry_points, **modules)
    install(site, "more-counting", numbers(two="counting:TWO"))

    with pytest.raises(PluginError, match=words):
        find(name)
