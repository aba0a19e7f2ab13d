"""A client that is killed again and again takes part as if nothing had happened, whatever its method leaves on it."""

import random
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.integration import two_drivers
from tests.integration.conftest import FittingBundles, NewBundle
from tests.integration.deaths import Death
from tests.integration.killed_client import live_and_die
from tests.integration.processes import ServerProcess

CLIENTS, KILLED = 4, 0
# Trained and nothing stored; stored and not sent; about to send; the server has it, and the client state is old yet.
FIRST_DEATHS = [Death("store"), Death("stored"), Death("upload"), Death("uploaded")]
RANDOM_DEATHS = 3
NOISY = {"labels": "noisy", "epsilon": 5, "clusters": 2, "extractor_rounds": 3, "classifier_rounds": 2}
CASES: list[tuple[str, list[str], str, dict[str, Any]]] = [
    ("fedavg", ["small"], "cross_entropy", {}),
    ("fedrep", ["small"], "cross_entropy", {}),
    ("fedclassavg", ["small", "wide"], "classifier_proximal", {}),
    ("local_only", ["small", "wide"], "cross_entropy", {}),
    ("pfedsim", ["small"], "cross_entropy", {"options": {"warm_up": 0.25}}),
    ("fedconcat", [], "", {"options": NOISY}),
    # Two trainings and client state; tables beside weights; a table alone, and what the client keeps of it.
    ("ditto", [], "", {}),
    ("ifca", [], "", {"options": {"clusters": 2}}),
    ("fedproto", [], "", {}),
    ("feddyn", [], "", {"hyper": {"alpha": 0.1}, "options": {"dual": "client"}}),
]
# Others have all that their plans and their clients' state have.
LONG = {"ditto", "feddyn", "fedrep", "local_only"}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "models", "objective", "more"),
    [pytest.param(*case, id=case[0], marks=[pytest.mark.long] if case[0] in LONG else []) for case in CASES],
)
async def test_updates_state_and_noise_survive_a_client_that_is_killed_again_and_again(
    tmp_path: Path,
    photos: Path,
    exported: NewBundle,
    concatenating: list[Path],
    fitting: FittingBundles,
    server: ServerProcess,
    method: str,
    models: list[str],
    objective: str,
    more: dict[str, Any],
) -> None:
    personal = method != "fedconcat"
    bundles = [exported(name, objective) for name in models] or concatenating
    if personal and not models:
        bundles = fitting(method, more.get("options", {}))
    settings = two_drivers.settings(method, rounds=6, population=CLIENTS, personal_evaluation=personal, **more)
    fleet = two_drivers.fleet(tmp_path / "http", photos, CLIENTS, models=tuple(models))
    statuses: list[int | None] = []

    async def killed() -> None:
        statuses.extend(await live_and_die(server, fleet, KILLED, bundles, deaths(method)))

    calm = await two_drivers.both(server, fleet, settings, bundles, {KILLED: killed})

    assert statuses == [-signal.SIGKILL] * (len(FIRST_DEATHS) + RANDOM_DEATHS) + [0]
    assert received(server.folder / "data") == received(tmp_path / "study" / "server")
    assert [len(found.members) for found in calm.shown.rounds] == [CLIENTS] * (6 + personal)
