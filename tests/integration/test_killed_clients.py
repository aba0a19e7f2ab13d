"""Methods that leave something on the client: who is killed again and again takes part as if nothing had happened."""

import json
import random
import signal
import sqlite3
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedlens_proto.v1 import admin_pb2
from tests.integration import two_drivers
from tests.integration.conftest import NewBundle
from tests.integration.killed_client import Death, live_and_die
from tests.integration.processes import ServerProcess

CLIENTS = 4
KILLED = 0
# Trained and nothing stored; stored and not sent; the server has it, and the kept sets are not current yet.
FIRST_DEATHS = [Death("store"), Death("stored"), Death("uploaded")]
RANDOM_DEATHS = 3
CASES = [
    pytest.param("fedrep", ["small"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("fedclassavg", ["small", "wide"], "classifier_proximal", {}, marks=pytest.mark.slow),
    pytest.param("local_only", ["small", "wide"], "cross_entropy", {}, marks=pytest.mark.slow),
    pytest.param("pfedsim", ["small"], "cross_entropy", {"options": {"warm_up": 0.25}}, marks=pytest.mark.slow),
]


def settings(method: str, **more: Any) -> str:
    rates = {"lr_extractor": 0.05, "lr_classifier": 0.05}
    plain = {"method": method, "rounds": 6, "population": CLIENTS, "epochs": 1, "deadline_s": 100, "hyper": rates}
    return json.dumps({**plain, "seed": sha256(method.encode()).hexdigest(), **more})


def deaths(seed: str) -> list[Death]:
    """Some at known steps, and some at random moments between two steps."""
    generator = random.Random(seed)
    later = [Death(None, generator.randint(2, 9), generator.uniform(0, 0.03)) for _ in range(RANDOM_DEATHS)]
    return [*FIRST_DEATHS, *later]


def received(data: Path) -> list[tuple[Any, ...]]:
    """The server's record of each client and round: the digest of the update and the noisy shares."""
    columns = "round, client, state, body_sha256, label_distribution"
    with closing(sqlite3.connect(data / "server.sqlite3")) as database:
        return database.execute(f"SELECT {columns} FROM members ORDER BY round, client").fetchall()


async def assert_undisturbed(
    folder: Path, photos: Path, server: ServerProcess, task: str, bundles: list[Path], models: list[str]
) -> two_drivers.RunResult:
    """Run the task with a client that is killed, and in a study in which nothing happens; gives what both say."""
    disturbed = two_drivers.fleet(folder / "http", photos, CLIENTS, models=tuple(models) if len(models) > 1 else ())
    statuses: list[int | None] = []

    async def killed() -> None:
        statuses.extend(await live_and_die(server, disturbed, KILLED, bundles, deaths(task)))

    http = await two_drivers.over_http(server, disturbed, task, bundles, {KILLED: killed})
    calm = await two_drivers.in_a_study(replace(disturbed, state=folder / "study"), task, bundles)

    assert statuses == [-signal.SIGKILL] * (len(FIRST_DEATHS) + RANDOM_DEATHS) + [0]
    assert http.shown.task.state == admin_pb2.TASK_STATE_FINISHED
    two_drivers.assert_same(calm, http)
    assert received(server.folder / "data") == received(folder / "study" / "server")
    return http


@pytest.mark.parametrize(("method", "models", "objective", "more"), CASES)
async def test_kept_sets_survive_a_client_that_is_killed_again_and_again(
    tmp_path: Path,
    photos: Path,
    exported: NewBundle,
    server: ServerProcess,
    method: str,
    models: list[str],
    objective: str,
    more: dict[str, Any],
) -> None:
    bundles = [exported(name, objective) for name in models]
    task = settings(method, personal_evaluation=True, **more)

    both = await assert_undisturbed(tmp_path, photos, server, task, bundles, models)

    assert [len(found.members) for found in both.shown.rounds] == [CLIENTS] * 7


@pytest.mark.slow
async def test_a_noisy_answer_survives_a_client_that_is_killed_again_and_again(
    tmp_path: Path, photos: Path, concatenating: list[Path], server: ServerProcess
) -> None:
    options = {"labels": "noisy", "epsilon": 5, "clusters": 2, "extractor_rounds": 3, "classifier_rounds": 2}
    task = settings("fedconcat", options=options)

    both = await assert_undisturbed(tmp_path, photos, server, task, concatenating, [])

    assert [found.phase for found in both.shown.rounds] == [0, 1, 1, 1, 2, 2]
