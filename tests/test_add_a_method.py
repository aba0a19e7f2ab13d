"""`docs/add-a-method.md`: its package, outside the tree, gives studies, bundles and tasks a method and an objective."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedlens_proto.manifest import Bundle, objective
from fedlens_server.engine.phases import plan
from fedlens_server.engine.task import TaskBundle
from fedlens_server.init import initialise
from fedlens_server.planning.task_settings import parse
from tests.plugin_packages import install

PAGE = (Path(__file__).parent.parent / "docs" / "add-a-method.md").read_text(encoding="utf-8")
FEDLENS = str(Path(sys.executable).parent / "fedlens")
FILES = dict(re.findall(r"`([\w/.]+)`:\n\n```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = re.findall(r"^    fedlens (.+)$", PAGE, re.MULTILINE)


@pytest.fixture
def example(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the files of the page; the package in it is installed as `pip install -e` does."""
    folder = tmp_path / "fedlens-example"
    (folder / "fedlens_example").mkdir(parents=True)
    (folder / "fedlens_example" / "__init__.py").touch()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    install(site, project["name"], project["entry-points"])
    (site / "fedlens_example").symlink_to(folder / "fedlens_example")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(folder)
    return folder


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_shows_a_whole_package_and_three_commands() -> None:
    modules = [f"fedlens_example/{name}.py" for name in ("adagrad", "focal", "mean_loss", "fair")]

    assert list(FILES) == ["pyproject.toml", *modules, "test_example.py", "study.toml"]
    assert [command.split()[0] for command in COMMANDS] == ["compare", "export", "task"]


@pytest.mark.slow
def test_the_tests_of_the_page_pass(example: Path) -> None:
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(example), "test_example.py")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_study_of_the_page_runs_its_method_and_objective_by_both_names(example: Path) -> None:
    run(FEDLENS, *COMMANDS[0].split())

    runs = {run["label"]: run for run in json.loads(Path("example", "results.json").read_text())["runs"]}
    used = {label: run["bundles"][0]["objective"] for label, run in runs.items()}
    of_fedadagrad = {"fedadagrad": "focal", "by-module": "fedlens_example.focal:OBJECTIVE"}
    assert used == {"fedavg": "cross_entropy", "fair": "cross_entropy", **of_fedadagrad}
    assert runs["fedadagrad"]["rounds"][-2]["global"] == runs["by-module"]["rounds"][-2]["global"]
    assert runs["fedadagrad"]["rounds"][-2]["global"] != runs["fedavg"]["rounds"][-2]["global"]
    assert runs["fair"]["rounds"][-2]["global"] != runs["fedavg"]["rounds"][-2]["global"]


@pytest.mark.slow
def test_the_bundle_of_the_page_serves_the_task_of_the_page(example: Path) -> None:
    for name in ("cat", "dog"):
        (example / "photos" / name).mkdir(parents=True)
    initialise(example / "server", publisher=True)

    run(FEDLENS, *COMMANDS[1].split())
    bundle = Bundle.open(example / "bundle")
    method = re.findall(r"--method (\w+) --set options.(\w+)=(\S+)", COMMANDS[2])[0]
    settings = {"method": method[0], "rounds": 1, "population": 1, "options": {method[1]: float(method[2])}}
    _, phases, _ = plan(parse(json.dumps(settings)), (TaskBundle(bundle.raw, bundle.manifest),))

    assert objective(bundle.manifest) == "focal"
    assert [phase.name for phase in phases] == ["train"]
