"""The server is killed and comes back in every phase of a method, and the bytes are those of a calm study."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_proto.v1 import update_pb2
from fedlens_proto.wire import LENGTH
from tests.integration import two_drivers
from tests.integration.conftest import FittingBundles
from tests.integration.processes import ServerProcess

CONCAT = {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 1, "clustering": "ifca"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("kt_pfl", {}),
    ("fedmd", {}),
    ("fedap", {"options": {"warm_up": 0.4}}),
    ("pfedsim", {"options": {"warm_up": 0.4}}),
    ("fedfomo", {"options": {"share_models": True, "others": 2}}),
    ("scaffold", {}),
    ("fedconcat", {"options": CONCAT}),
    *((method, {}) for method in ("fedavgm", "feddyn", "fedgen", "fedproto", "fesem")),
    ("fedsoft", {"options": {"start": "best"}}),
    ("kt_pfl", {"options": {"weight": True}}),
]
NAMES = [method + ("-weight" if more.get("options", {}).get("weight") else "") for method, more in CASES]


class RestartingTransport(TransportWrapper):
    """Restarts the server when clients have the first, and again the last, update of a phase's first round to send."""

    def __init__(
        self, inner: Transport, server: ServerProcess, updates: dict[int, int], restarting: asyncio.Lock
    ) -> None:
        super().__init__(inner)
        self._server = server
        self._updates = updates  # by phase; of all clients
        self._restarting = restarting  # of all clients: the last update may be ready before the first restart is over

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        phase = update_pb2.UpdateHeader.FromString(header[LENGTH.size :]).phase
        self._updates[phase] = self._updates.get(phase, 0) + 1
        if self._updates[phase] in (1, two_drivers.CLIENTS):
            async with self._restarting:
                await asyncio.to_thread(self._server.kill)
                await asyncio.to_thread(self._server.start)
        return await super().put_update(task, round_number, header, blobs)


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "more"),
    CASES,
    ids=[f"{method}{'-' * bool(more)}{'-'.join(more.get('options', {}))}" for method, more in CASES],
)
async def test_a_server_killed_in_each_phase_ends_with_the_same_bytes(
    tmp_path: Path, photos: Path, fitting: FittingBundles, server: ServerProcess, method: str, more: dict[str, Any]
) -> None:
    # Nobody vanishes: no round waits for its deadline.
    settings = two_drivers.settings(method, rounds=3, deadline_s=300, personal_evaluation=method != "fedconcat", **more)
    fleet = two_drivers.fleet(tmp_path / "http", photos)
    updates: dict[int, int] = {}
    restarting = asyncio.Lock()

    study = await two_drivers.both(
        server,
        fleet,
        settings,
        fitting(method, more.get("options", {})),
        wrapped=lambda transport, index: RestartingTransport(transport, server, updates, restarting),
    )

    assert updates.keys() == {found.phase for found in study.shown.rounds}
    assert min(updates.values()) >= two_drivers.CLIENTS
