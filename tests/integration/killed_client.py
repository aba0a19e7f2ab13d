"""A member of a fleet in a process of its own, which is killed at given moments and started again."""

import asyncio
import multiprocessing
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from fedlens_edge_client.client import client as client_module
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.storage.client_state import ClientState
from fedlens_edge_client.storage.outbox import Outbox, Result
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.storage.tensor_files import EncodedTensors, TensorFiles
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, update_pb2
from tests.integration import two_drivers
from tests.integration.deaths import Death, Fate
from tests.integration.processes import ServerProcess


class MortalTransport(TransportWrapper):
    """Tells of each call, before and after."""

    def __init__(self, inner: Transport, fate: Fate) -> None:
        super().__init__(inner)
        self._fate = fate
        self.fetch = self._fetch

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        self._fate.step("check in")
        response = await super().check_in(request)
        self._fate.step("checked in")
        return response

    async def _fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        self._fate.step("fetch")
        await self._inner.fetch(sha256, into, max_bytes)
        self._fate.step("fetched")

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        self._fate.step("upload")
        receipt = await super().put_update(task, round_number, header, blobs)
        self._fate.step("uploaded")
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
        uploads: Sequence[EncodedTensors],
        keeps: Mapping[str, EncodedTensors],
    ) -> Result:
        self._fate.step("store")
        result = super().put(assignment, header, uploads, keeps)
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
        arguments = (server.folder, server.url, fleet, index, tuple(bundles), life, death)
        process = context.Process(target=_live, args=arguments, daemon=True)
        process.start()
        await asyncio.to_thread(process.join)
        statuses.append(process.exitcode)
    return statuses


def _live(
    folder: Path, url: str, fleet: FleetConfig, index: int, bundles: tuple[Path, ...], life: int, death: Death | None
) -> None:
    fate = Fate(death)
    opened = {bundle.id: bundle for bundle in map(Bundle.open, bundles)}
    server = ServerProcess(folder)
    server.url = url
    # What one life has answered the next ones could not make again.
    again: dict[str, Any] = {"private_generator": lambda names: Random(life)} if life else {}

    async def live() -> None:
        http = HttpTransport(url, fleet.secret(index), ssl_context=trust(server.ca), backoff=two_drivers.BACKOFF)
        async with two_drivers.member(
            server,
            fleet,
            index,
            transport=MortalTransport(http, fate),
            engine_factory=lambda bundle: TorchEngine(opened[bundle.id]),
            **again,
        ) as member:
            await member.run()

    with patch.object(client_module, "Outbox", partial(MortalOutbox, fate)):
        asyncio.run(live())
