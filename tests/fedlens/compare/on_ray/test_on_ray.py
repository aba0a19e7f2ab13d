"""A study on several nodes, of which some are killed: the bytes of a study without Ray."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.fedlens.compare.conftest import FEDLENS, fedlens
from tests.fedlens.compare.test_command import results_in, study_in

# Starting Ray and a worker takes seconds, on busy cores many. Ray must not be imported before its settings are made.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'fedlens[ray]'"),
]

# Each client keeps its classifier, which only it has.
KEPT = ["[methods.kept]", 'method = "fedper"', "rounds = 60"]
T = TypeVar("T")
OTHER_VERSION = "import ray; ray.__version__ = '2.0.0'; from fedlens.cli import main; main()"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each, and the head, which has none."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }.items():
            patched.setenv(name, value)
        from ray.cluster_utils import Cluster

        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
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


def worker_of(run: str) -> int:
    """The process that carries out a run, by the title that Ray gives it; 0 if there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(f"ray::{run}".encode()):
                return int(folder.name)
        except OSError:
            continue
    return 0


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_with_driver_worker_and_node_killed_a_study_has_the_bytes_of_one_without_ray(
    cluster: Any, tmp_path: Path
) -> None:
    chosen = ["--method", "kept", "--seed", "1", "--seed", "2"]
    calm, killed = ([*study_in(tmp_path / name, *KEPT), *chosen] for name in ("calm", "killed"))
    assert fedlens(*calm).returncode == 0
    out = tmp_path / "killed" / "out"
    command = [FEDLENS, *killed, "--ray", cluster.address]

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def has(rounds: int) -> bool:
        """Whether the command has this many rounds of the first run."""
        times = out / "runs" / "kept" / "seed-1" / "times.jsonl"
        return times.is_file() and len(times.read_text().splitlines()) >= rounds

    def worker() -> int:
        return until(lambda: worker_of("kept, seed 1"), driver)

    driver = begin()
    until(lambda: has(5), driver)
    driver.kill()
    driver.communicate()
    driver = begin()
    until(lambda: has(12), driver)
    os.kill(worker(), signal.SIGKILL)
    until(lambda: has(20), driver)
    raylet = parent_of(worker())
    (node,) = [each for each in cluster.list_all_nodes() if each.all_processes["raylet"][0].process.pid == raylet]
    cluster.remove_node(node, allow_graceful=False)
    printed, _ = driver.communicate(timeout=300)

    assert driver.returncode == 0, printed
    results = [results_in(tmp_path / name / "out") for name in ("calm", "killed")]
    for found in results:
        for run in found["runs"]:
            assert len(run["rounds"]) == 61
            assert run.pop("made")["processor"]
            for entry in run["rounds"]:
                del entry["bytes_down"]  # clients of an interrupted round fetch some again
    assert results[0] == results[1]
    for seed in (1, 2):
        model = Path("out", "runs", "kept", f"seed-{seed}")
        assert sorted(path.name for path in (tmp_path / "killed" / model).iterdir()) == ["fingerprint", "result.json"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "400")
        refused = fedlens(*killed, "--seed", "3", "--ray", cluster.address, "--run-cpus", "9")
        assert refused.returncode == 1
        assert refused.stderr == (
            "fedlens: --run-cpus: a run needs 9 CPU, but the largest node has 1; ask for less, or add a node\n"
        )
        line = [sys.executable, "-c", OTHER_VERSION, *killed, "--seed", "3", "--ray", cluster.address]
        other = subprocess.run(line, capture_output=True, text=True)
        assert other.returncode == 1
        assert other.stderr.startswith(f"fedlens: --ray: Ray at {cluster.address} cannot be used: Version mismatch")
        assert other.stderr.count("\n") == 1
