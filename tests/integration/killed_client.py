"""A member of a fleet in a process of its own, which is killed at given moments and started again."""

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

from fedlens_edge_client.client import client as client_module
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.storage.client_state import ClientState
from fedlens_edge_client.storage.outbox import Outbox, Result
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.storage.tensor_files import EncodedTensors, TensorFiles
from fedlens_edge_client.training.label_distribution import private_generator
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, update_pb2
from tests.integration import two_drivers
from tests.integration.processes import ServerProcess


@dataclass(frozen=True)
class Death:
    """The moment at which a life ends.

    Attributes:
        step: What the client was about to do, or had just done; None: anything.
        count: The how-manieth time.
        later_s: So many seconds after that.
    """

    step: str | None = None
    count: int = 1
    later_s: float = 0.0


class Fate:
    """Kills this process when its time has come."""

    def __init__(self, death: Death | None) -> None:
        """None: it lives."""
        self._death = death
        self._left = 0 if death is None else death.count

    def step(self, name: str) -> None:
        """Another step; may not return."""
        if self._death is None or self._death.step not in (None, name):
            return
        self._left -= 1
        if self._left:
            return
        if not self._death.later_s:
            _die()
        timer = threading.Timer(self._death.later_s, _die)
        timer.daemon = True
        timer.start()


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class MortalTransport(HttpTransport):
    """Tells of each call, before and after."""

    fate: Fate

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        self.fate.step("check in")
        response = await super().check_in(request)
        self.fate.step("checked in")
        return response

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        self.fate.step("fetch")
        await super().fetch(sha256, into, max_bytes)
        self.fate.step("fetched")

    async def put_update(
        self, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        self.fate.step("upload")
        receipt = await super().put_update(task, round_number, header, blob)
        self.fate.step("uploaded")
        return receipt


class MortalOutbox(Outbox):
    """Tells of each change, before and after."""

    def __init__(self, fate: Fate, state: StateFolder, files: TensorFiles, kept: ClientState) -> None:
        super().__init__(state, files, kept)
        self._fate = fate

    def put(
        self,
        assignment: assignment_pb2.Assignment,
        header: update_pb2.UpdateHeader,
        upload: EncodedTensors | None,
        keep: Mapping[str, EncodedTensors],
    ) -> Result:
        self._fate.step("store")
        result = super().put(assignment, header, upload, keep)
        self._fate.step("stored")
        return result

    def delivered(self, result: Result) -> None:
        self._fate.step("forget")
        super().delivered(result)
        self._fate.step("forgotten")


async def live_and_die(
    server: ServerProcess, fleet: FleetConfig, index: int, bundles: Sequence[Path], deaths: Sequence[Death]
) -> list[int | None]:
    """One life for each death and a last one until the task has ended; gives their exit statuses."""
    # Processes are forked from one that has imported torch, which would take a second in each life.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    statuses: list[int | None] = []
    for life, death in enumerate([*deaths, None]):
        arguments = (server.url, server.ca, server.token("trainer"), fleet, index, tuple(bundles), life, death)
        process = context.Process(target=_live, args=arguments, daemon=True)
        process.start()
        await asyncio.to_thread(process.join)
        statuses.append(process.exitcode)
    return statuses


def _live(
    url: str,
    ca: Path,
    token: str,
    fleet: FleetConfig,
    index: int,
    bundles: tuple[Path, ...],
    life: int,
    death: Death | None,
) -> None:
    fate = Fate(death)
    opened = {bundle.id: bundle for bundle in map(Bundle.open, bundles)}
    secret = fleet.secret(index)

    async def live() -> None:
        transport = MortalTransport(url, secret, ssl_context=trust(ca), backoff=two_drivers.BACKOFF)
        transport.fate = fate
        member = two_drivers.member(
            url,
            token,
            fleet,
            index,
            transport,
            lambda bundle: TorchEngine(opened[bundle.id]),
            # What one life has answered the next ones could not make again.
            private=(lambda names: Random(life)) if life else partial(private_generator, secret),
        )
        async with member:
            await member.run()

    with patch.object(client_module, "Outbox", partial(MortalOutbox, fate)):
        asyncio.run(live())
