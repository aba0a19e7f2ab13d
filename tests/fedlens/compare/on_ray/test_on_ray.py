"""A study on several nodes, of which some are killed: the bytes of a study without Ray."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import copytree
from typing import Any, TypeVar

import pytest

from fedlens.compare.on_ray.cluster import RayConfig, RayUnusable, alone, connected
from tests.fedlens.compare.conftest import FEDLENS, fedlens
from tests.fedlens.compare.test_command import results_in, study_in

# Starting Ray and a worker takes seconds, on busy cores many. Ray must not be imported before its settings are made.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'fedlens[ray]'"),
]

# Each client keeps its classifier, which only it has.
KEPT = ["[methods.kept]", 'method = "fedper"']
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each, and the head, which has none."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in alone().items():
            patched.setenv(name, value)
        started = import_module("ray.cluster_utils").Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )
        for _ in range(2):
            started.add_node(num_cpus=1)
        yield started
        started.shutdown()


def until(what: Callable[[], T], running: subprocess.Popen[str]) -> T:
    """The first true value, awaited while a command runs."""
    end = time.monotonic() + 300
    while not (found := what()):
        assert time.monotonic() < end and running.poll() is None, running.communicate()
        time.sleep(0.02)
    return found


def workers_of(task: str) -> list[int]:
    """The processes that carry out a task, by the title that Ray gives them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(f"ray::{task}".encode()):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def results_of(study: Path, rounds: int) -> Any:
    """Results but for what differs: who made them, and what clients of interrupted rounds fetch again."""
    found = results_in(study / "out")
    for run in found["runs"]:
        assert len(run["rounds"]) == rounds + 1
        assert run.pop("made")["processor"]
        for entry in run["rounds"]:
            del entry["bytes_down"]
    return found


def test_a_study_on_ray_has_the_bytes_of_one_without(cluster: Any, tmp_path: Path) -> None:
    calm, on_ray = (study_in(tmp_path / name, *KEPT, "rounds = 3") for name in ("calm", "ray"))
    chosen = ["--method", "kept", "--seed", "1", "--seed", "2"]

    assert fedlens(*calm, *chosen).returncode == 0
    done = fedlens(*on_ray, *chosen, "--ray", cluster.address)

    assert done.returncode == 0, done.stdout + done.stderr
    assert results_of(tmp_path / "ray", 3) == results_of(tmp_path / "calm", 3)


@pytest.mark.long
def test_clients_of_a_run_alone_are_trained_side_by_side_and_one_that_is_killed_again(
    cluster: Any, tmp_path: Path
) -> None:
    rounds = 30
    calm, on_ray = (study_in(tmp_path / name, *KEPT, f"rounds = {rounds}") for name in ("calm", "ray"))
    chosen = ["--method", "kept", "--seed", "1"]
    assert fedlens(*calm, *chosen).returncode == 0
    copytree(tmp_path / "calm" / "out" / "bundles", tmp_path / "ray" / "out" / "bundles")
    running = subprocess.Popen(
        [FEDLENS, *on_ray, *chosen, "--ray", cluster.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def two() -> list[int]:
        found = workers_of("a client of kept, seed 1")
        return found if len(found) > 1 else []

    os.kill(until(two, running)[0], signal.SIGKILL)
    printed, _ = running.communicate(timeout=300)

    assert running.returncode == 0, printed
    assert results_of(tmp_path / "ray", rounds) == results_of(tmp_path / "calm", rounds)


@pytest.mark.long
def test_a_study_says_that_it_waits_for_a_node_and_goes_on_with_a_new_one(cluster: Any, tmp_path: Path) -> None:
    study = [
        *study_in(tmp_path / "waits", *KEPT, "rounds = 20"),
        "--method",
        "kept",
        "--seed",
        "1",
        "--ray",
        cluster.address,
    ]
    running = subprocess.Popen([FEDLENS, *study], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None
    until(lambda: workers_of("a client of kept, seed 1"), running)
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)

    assert any("waits for a node: --run-cpus: a run needs 1 CPU" in line for line in running.stdout)
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    printed, _ = running.communicate(timeout=300)
    assert running.returncode == 0, printed


# Three starts of a command, a worker and a node take minutes; the rounds are enough for the last kill to come in time.
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_with_driver_worker_and_node_killed_a_study_has_the_bytes_of_one_without_ray(
    cluster: Any, tmp_path: Path
) -> None:
    rounds = 120
    chosen = ["--method", "kept", "--seed", "1", "--seed", "2"]
    calm, killed = ([*study_in(tmp_path / name, *KEPT, f"rounds = {rounds}"), *chosen] for name in ("calm", "killed"))
    assert fedlens(*calm).returncode == 0
    out = tmp_path / "killed" / "out"
    copytree(tmp_path / "calm" / "out" / "bundles", out / "bundles")
    command = [FEDLENS, *killed, "--ray", cluster.address]

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def has(rounds: int) -> bool:
        """Whether the command has this many rounds of the first run."""
        times = out / "runs" / "kept" / "seed-1" / "times.jsonl"
        return times.is_file() and len(times.read_text().splitlines()) >= rounds

    def worker() -> int:
        return until(lambda: workers_of("kept, seed 1"), driver)[0]

    driver = begin()
    until(lambda: has(5), driver)
    driver.kill()
    driver.communicate()
    driver = begin()
    until(lambda: has(10), driver)
    os.kill(worker(), signal.SIGKILL)
    until(lambda: has(16), driver)
    raylet = parent_of(worker())
    (node,) = [each for each in cluster.list_all_nodes() if each.all_processes["raylet"][0].process.pid == raylet]
    cluster.remove_node(node, allow_graceful=False)
    printed, _ = driver.communicate(timeout=300)

    assert driver.returncode == 0, printed
    assert results_of(tmp_path / "killed", rounds) == results_of(tmp_path / "calm", rounds)
    for seed in (1, 2):
        model = Path("out", "runs", "kept", f"seed-{seed}")
        assert sorted(path.name for path in (tmp_path / "killed" / model).iterdir()) == ["fingerprint", "result.json"]


def refusal(config: RayConfig) -> str:
    with pytest.raises(RayUnusable) as refused, connected(config, 1):
        pass
    return str(refused.value)


def test_more_than_a_node_has_and_another_version_are_refused_in_a_line(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(RayConfig(address=cluster.address, cpus=9)) == (
        "--run-cpus: a run needs 9 CPU, but the largest node has 1; ask for less, or add a node"
    )
    assert "--device cuda: a run needs 1 GPU" in refusal(RayConfig(address=cluster.address, gpus=1))
    monkeypatch.setattr("ray.__version__", "2.0.0")

    told = refusal(RayConfig(address=cluster.address))

    assert told.startswith(f"--ray: Ray at {cluster.address} cannot be used: Version mismatch")
    assert "Ray: 2.0.0" in told and "\n" not in told
