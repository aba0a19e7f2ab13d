"""Samples and tables in the docs say what the program does."""

import configparser
import re
from pathlib import Path

import pytest

from fedlens.admin_client import Profile
from fedlens_server.config import load

REPOSITORY = Path(__file__).parent.parent
DOCS = REPOSITORY / "docs"


def test_every_link_of_a_page_leads_to_a_file() -> None:
    pages = [*DOCS.rglob("*.md"), REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"]
    links = [
        (page, target)
        for page in pages
        for target in re.findall(r"\]\((?!http|#)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    ]

    assert links
    assert [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()] == []


def test_every_page_is_linked_from_the_readme_or_the_guide_for_contributors() -> None:
    texts = [(REPOSITORY / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")]

    assert [page.name for page in DOCS.glob("*.md") if not any(f"](docs/{page.name})" in text for text in texts)] == []


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
    (tmp_path / "fedlens.toml").write_text((REPOSITORY / "deploy" / "fedlens.toml").read_text(encoding="utf-8"))
    for name in ("server.pem", "server.key"):
        (tmp_path / name).touch()

    data = load(tmp_path / "fedlens.toml").server.data

    assert unit["Service"]["ProtectSystem"] == "strict"
    assert data == Path("/var/lib") / unit["Service"]["StateDirectory"]
    assert f'`server.data = "{data}"`' in (DOCS / "operate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_table_of_hyper_parameters_is_the_programs(optimiser: str) -> None:
    from fedlens_export import objectives, optimisers

    page = (DOCS / "bundle.md").read_text(encoding="utf-8")
    of_all = [
        *optimisers.OPTIMISERS[optimiser].hyper,
        *(hyper for objective in objectives.OBJECTIVES.values() for hyper in objective.hyper),
    ]

    for hyper in of_all:
        (row,) = [line for line in page.splitlines() if line.startswith("| `") and f"`{hyper.name}`" in line]
        numbers = [float(found) for found in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?", row)]
        assert {hyper.default, hyper.minimum, hyper.maximum} <= set(numbers), row


def test_the_page_on_bundles_names_every_model_and_objective() -> None:
    from fedlens_export import exporting, objectives

    page = (DOCS / "bundle.md").read_text(encoding="utf-8")

    assert [name for name in (*exporting.MODELS, *objectives.OBJECTIVES) if f"`{name}`" not in page] == []
