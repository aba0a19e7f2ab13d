from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedlens.cli import app
from tests.edge_client.photo_folders import write_files

PHOTOS = {"cat": 40, "dog": 40}


def fleet(tmp_path: Path, *options: str, photos: str | None = None) -> Result:
    folder = photos or str(write_files(tmp_path / "photos", PHOTOS))
    command = ["fleet", "--server", "https://127.0.0.1:1", "--state", str(tmp_path / "state"), "--photos", folder]
    return CliRunner().invoke(app, [*command, *options], env={"COLUMNS": "300"})


def test_an_option_of_another_regime_is_refused_with_what_this_one_has(tmp_path: Path) -> None:
    result = fleet(tmp_path, "--regime", "dirichlet", "--sigma", "0.1")

    assert result.exit_code == 2
    assert "--sigma" in result.stderr
    assert "regime dirichlet has no such option; it has --beta, --min-photos, --test-photos" in result.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--regime", "dirichlet", "--beta", "0"], "beta of regime dirichlet is 0.0; allowed is more than 0"),
        (["--regime", "dirichlet", "--clients", "50"], "photos are too few for 50 clients with at least 10 each"),
        (["--regime", "classes", "--classes-per-client", "3"], "3 classes per client where there are 2"),
        (["--per-class", "30"], "class 'cat' has 32 train photos"),
    ],
)
def test_a_regime_that_cannot_be_served_is_refused_before_anything_starts(
    tmp_path: Path, options: list[str], told: str
) -> None:
    result = fleet(tmp_path, *options)

    assert result.exit_code == 1
    assert told in result.stderr


def test_a_source_that_is_not_there_is_told_with_what_there_is(tmp_path: Path) -> None:
    result = fleet(tmp_path, photos="cifar11")

    assert result.exit_code == 1
    assert "cifar11 is no folder" in result.stderr
    assert "fashion-mnist" in result.stderr


@pytest.mark.parametrize("models", ["", "resnet18,", "a,,b"])
def test_models_without_a_name_are_refused(tmp_path: Path, models: str) -> None:
    result = fleet(tmp_path, "--models", models)

    assert result.exit_code == 2
    assert "must be names with commas between" in result.stderr


@pytest.mark.parametrize("engines", ["", "onnx", "torch,"])
def test_engines_that_there_are_not_are_refused(tmp_path: Path, engines: str) -> None:
    result = fleet(tmp_path, "--engine", engines)

    assert result.exit_code == 2
    assert "must be torch or executorch, or several of them with commas between" in result.stderr
