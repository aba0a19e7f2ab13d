"""Samples and tables in the docs say what the program does."""

import configparser
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from bench.run import BEGIN, END, MEASURES
from fedlens.admin_client import Profile
from fedlens_export import exporting, objectives
from fedlens_export.programs import optimisers, steps
from fedlens_server.config import load
from tests import vetting_page

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"


def test_every_link_leads_to_a_file_and_to_a_heading_in_it() -> None:
    pages = [*DOCS.rglob("*.md"), *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
    link = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")
    links = [(page, *found) for page in pages for found in link.findall(page.read_text(encoding="utf-8"))]

    assert len(links) > 100
    assert [link for link in links if not _there(*link)] == []


def test_every_page_stands_in_the_index_once_with_a_line_about_it() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")

    listed = re.findall(r"^\d+\. \[[^]]+\]\(([\w-]+\.md)\): \S", index, re.MULTILINE)

    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md") if page.name != "README.md")


def test_the_page_of_benchmarks_says_how_each_is_taken_and_has_the_table_of_a_whole_run() -> None:
    how, _, rest = (DOCS / "benchmarks.md").read_text(encoding="utf-8").partition(BEGIN)
    measured, end, misses = rest.partition(END)

    assert how.count("\n- **") > 25
    assert measured.count("\n| ") > len(MEASURES)
    assert end and "## What misses" in misses


def test_every_page_of_results_stands_in_their_index() -> None:
    index = (DOCS / "results" / "README.md").read_text(encoding="utf-8")

    assert [page.name for page in (DOCS / "results").glob("*.md") if f"]({page.name})" not in index] == ["README.md"]


def test_the_page_on_installing_has_every_extra() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "install.md").read_text(encoding="utf-8")

    listed = re.findall(r"^\| `([a-z]+)` \|", page, re.MULTILINE)

    assert sorted(listed) == sorted(extras["optional-dependencies"])


def test_the_page_on_vetting_has_every_rule() -> None:
    page = vetting_page.PAGE.read_text(encoding="utf-8")

    assert vetting_page.written(page) == page, "run `make docs`"
    assert page.count("| operators |") == 2


def test_the_operators_profile_in_the_docs_can_be_read(tmp_path: Path) -> None:
    page = (DOCS / "operate.md").read_text(encoding="utf-8")
    (sample,) = re.findall(r"```toml\n(url = .*?)```", page, re.DOTALL)
    (tmp_path / "admin.toml").write_text(sample)
    (tmp_path / "ca.pem").touch()
    (tmp_path / "admin.token").write_text("secret\n")

    profile = Profile.read(tmp_path / "admin.toml")

    assert profile == Profile(url="https://127.0.0.1:8444", token="secret", ca=tmp_path / "ca.pem")


def test_the_unit_lets_the_server_write_where_the_sample_config_says(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's keys have capitals
    unit.read(REPOSITORY / "deploy" / "fedlens.service")
    sample = (REPOSITORY / "deploy" / "fedlens.toml").read_text(encoding="utf-8")
    (tmp_path / "fedlens.toml").write_text(sample.replace("0" * 64, "5" * 64))
    for name in ("server.pem", "server.key"):
        (tmp_path / name).touch()

    data = load(tmp_path / "fedlens.toml").server.data

    assert unit["Service"]["ProtectSystem"] == "strict"
    assert data == Path("/var/lib") / unit["Service"]["StateDirectory"]
    assert f'`server.data = "{data}"`' in (DOCS / "operate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_table_of_hyper_parameters_is_the_programs(optimiser: str) -> None:
    page = (DOCS / "bundle.md").read_text(encoding="utf-8")
    rule = optimisers.OPTIMISERS[optimiser]
    for hyper in chain.from_iterable(steps.hyper(each, rule).values() for each in objectives.OBJECTIVES.values()):
        (row,) = [line for line in page.splitlines() if line.startswith("| `") and f"`{hyper.name}`" in line]
        numbers = [float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", row)]
        assert {hyper.default, hyper.minimum, hyper.maximum} <= set(numbers), row


def test_the_page_on_bundles_names_every_model_and_objective() -> None:
    page = (DOCS / "bundle.md").read_text(encoding="utf-8")

    assert [name for name in (*exporting.MODELS, *objectives.OBJECTIVES) if f"`{name}`" not in page] == []


def _there(page: Path, path: str, anchor: str) -> bool:
    """Tell whether a link of a page has a target: a file, or a heading by the name that GitHub gives it."""
    target = page.parent / path if path else page
    if not anchor:
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
    return anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
