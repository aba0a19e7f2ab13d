"""int8 and differences in both directions, over real HTTP, against the same federation in float32."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlens_edge_client.client.events import Downloaded, Event, RoundReported, RoundStarted
from fedlens_proto.blob import Blob
from tests.integration import federation
from tests.integration.processes import ServerProcess

CLIENTS = 4
ROUNDS = 6
CODECS = ("--codec", "int8", "--difference", "--download-codec", "int8", "--download-difference")


class Traffic:
    """The bytes that the clients of one federation have moved, by round."""

    def __init__(self) -> None:
        self.up: dict[int, list[int]] = defaultdict(list)
        self.down: dict[int, int] = defaultdict(int)
        self._fetched: dict[int, int] = defaultdict(int)

    def note(self, index: int, event: Event) -> None:
        if isinstance(event, Downloaded):
            self._fetched[index] += event.size
        elif isinstance(event, RoundStarted):
            self.down[event.round_number] += self._fetched.pop(index, 0)
        elif isinstance(event, RoundReported):
            self.up[event.round_number].append(event.upload_bytes)


async def test_int8_differences_both_ways_end_close_to_float32_in_a_quarter_of_the_bytes(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess
) -> None:
    plain, coded = Traffic(), Traffic()
    federation.create_task(server, bundle, rounds=ROUNDS, clients=CLIENTS, name="plain")
    await federation.run_clients(server, tmp_path / "plain", photos, CLIENTS, plain.note)
    federation.create_task(server, bundle, *CODECS, rounds=ROUNDS, clients=CLIENTS, name="coded")
    await federation.run_clients(server, tmp_path / "coded", photos, CLIENTS, coded.note)

    exact = Blob.from_bytes(federation.final_blob(server, tmp_path, "plain"))
    close = Blob.from_bytes(federation.final_blob(server, tmp_path, "coded"))
    for name in exact:
        assert np.abs(close[name] - exact[name]).max() < 0.05 * np.abs(exact[name]).max()
    accuracies = []
    for name in ("plain", "coded"):
        shown: Any = server.task("show", name)
        accuracies.append(shown["rounds"][-1]["personal"]["after"]["mean_accuracy"])
    # 48 of the 240 photos are test photos, so one of them is 2 points.
    assert abs(accuracies[0] - accuracies[1]) <= 0.05
    # One byte for four, and headers of 200 bytes beside 1,930.
    assert sum(coded.up[ROUNDS]) < 0.4 * sum(plain.up[ROUNDS])
    assert [len(sizes) for sizes in coded.up.values()] == [CLIENTS] * ROUNDS
    assert 0 < coded.down[ROUNDS] < 0.4 * plain.down[ROUNDS]


@pytest.mark.slow
async def test_a_server_that_dies_in_between_changes_no_bit_of_it(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess
) -> None:
    federation.create_task(server, bundle, *CODECS, rounds=ROUNDS, clients=CLIENTS, name="calm")
    await federation.run_clients(server, tmp_path / "calm", photos, CLIENTS)
    due = [(3, 1), (5, CLIENTS)]  # after so many reports of that round
    reports: list[int] = []
    wake = asyncio.Event()
    loop = asyncio.get_running_loop()

    def note(_: int, event: Event) -> None:
        if isinstance(event, RoundReported):
            reports.append(event.round_number)
            if due and reports.count(due[0][0]) >= due[0][1]:
                loop.call_soon_threadsafe(wake.set)

    async def kill() -> None:
        while due:
            await wake.wait()
            wake.clear()
            due.pop(0)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)

    federation.create_task(server, bundle, *CODECS, rounds=ROUNDS, clients=CLIENTS, name="stormy")
    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        await federation.run_clients(server, tmp_path / "stormy", photos, CLIENTS, note)

    assert not due
    assert federation.final_blob(server, tmp_path, "stormy") == federation.final_blob(server, tmp_path, "calm")
