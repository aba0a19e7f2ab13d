"""int8 and differences in both directions, over real HTTP, against the same federation in float32."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlens_edge_client.client.events import Downloaded, Event, RoundReported, RoundStarted
from fedlens_proto.blob import Blob
from tests.integration import federation
from tests.integration.processes import ServerProcess

pytestmark = pytest.mark.slow

CLIENTS = 4
ROUNDS = 6


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


async def test_int8_differences_both_ways_learn_as_well_as_float32_in_a_quarter_of_the_bytes(
    tmp_path: Path, photos: Path, bundle: Path, server: ServerProcess
) -> None:
    plain, coded = Traffic(), Traffic()
    federation.create_task(server, bundle, rounds=ROUNDS, clients=CLIENTS, name="plain")
    await federation.run_clients(server, tmp_path / "plain", photos, CLIENTS, plain.note)
    federation.create_task(server, bundle, *federation.CODECS, rounds=ROUNDS, clients=CLIENTS, name="coded")
    await federation.run_clients(server, tmp_path / "coded", photos, CLIENTS, coded.note)

    exact = Blob.from_bytes(federation.final_blob(server, tmp_path, "plain"))
    close = Blob.from_bytes(federation.final_blob(server, tmp_path, "coded"))
    for name in exact:
        assert np.abs(close[name] - exact[name]).max() < 0.05 * np.abs(exact[name]).max()
    accuracies = []
    for name in ("plain", "coded"):
        shown: Any = server.task("show", name)
        first, last = (shown["rounds"][number]["personal"] for number in (0, -1))
        assert last["before"]["mean_accuracy"] > first["before"]["mean_accuracy"] + 0.2
        accuracies.append(last["after"]["mean_accuracy"])
    # 48 of the 240 photos are test photos, so one of them is 2 points.
    assert abs(accuracies[0] - accuracies[1]) <= 0.05
    # One byte for four, and headers of 200 bytes beside 1,930.
    assert sum(coded.up[ROUNDS]) < 0.4 * sum(plain.up[ROUNDS])
    assert [len(sizes) for sizes in coded.up.values()] == [CLIENTS] * ROUNDS
    assert 0 < coded.down[ROUNDS] < 0.4 * plain.down[ROUNDS]
