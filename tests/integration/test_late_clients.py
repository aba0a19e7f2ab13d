"""A client that enrols when a task is under way, over HTTP, for the methods whose phases differ."""

import asyncio
import json
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from fedlens.admin_client import AdminClient
from fedlens_edge_client.client.events import Enrolled
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.training.label_distribution import private_generator
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import admin_pb2, update_pb2
from tests.integration import two_drivers
from tests.integration.conftest import NewBundle
from tests.integration.processes import ServerProcess

CLIENTS, LATE = 8, 7
TASK = "with a late client"


class Doors:
    """Lets the last client in after the first upload of the others, and them on when it has enrolled."""

    def __init__(self) -> None:
        self.uploaded = asyncio.Event()
        self.enrolled = asyncio.Event()


class HeldTransport(HttpTransport):
    """Sends nothing of a second round before the late client is there."""

    doors: Doors

    async def put_update(
        self, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        """As `HttpTransport.put_update`."""
        if round_number > 1:
            await self.doors.enrolled.wait()
        receipt = await super().put_update(task, round_number, header, blob)
        self.doors.uploaded.set()
        return receipt


async def take_part_with_a_late_client(
    server: ServerProcess, folder: Path, photos: Path, settings: dict[str, Any], bundles: list[Path]
) -> list[admin_pb2.RoundResult]:
    """The task's rounds once it has finished."""
    fleet = two_drivers.fleet(folder, photos, CLIENTS)
    opened = {bundle.id: bundle for bundle in map(Bundle.open, bundles)}
    engines = {digest: TorchEngine(bundle) for digest, bundle in opened.items()}
    admin = AdminClient(server.profile)
    whole = {"population": LATE, "epochs": 1, "deadline_s": 60, "seed": sha256(TASK.encode()).hexdigest(), **settings}
    await asyncio.to_thread(admin.create_task, TASK, list(opened.values()), json.dumps(whole))
    doors = Doors()

    async def take_part(index: int) -> None:
        if index == LATE:
            await doors.uploaded.wait()
        secret = fleet.secret(index)
        transport = HeldTransport(server.url, secret, ssl_context=trust(server.ca), backoff=two_drivers.BACKOFF)
        transport.doors = doors
        async with two_drivers.member(
            server.url,
            server.token("trainer"),
            fleet,
            index,
            transport,
            lambda bundle: engines[bundle.id],
            private=partial(private_generator, secret),
            on_event=lambda event: doors.enrolled.set() if index == LATE and isinstance(event, Enrolled) else None,
        ) as client:
            await client.run()

    await asyncio.gather(*(take_part(index) for index in range(CLIENTS)))
    shown = await asyncio.to_thread(admin.show, TASK)
    assert shown.task.state == admin_pb2.TASK_STATE_FINISHED
    return list(shown.rounds)


def reported(result: admin_pb2.RoundResult) -> int:
    return [member.state for member in result.members].count(admin_pb2.MEMBER_STATE_REPORTED)


@pytest.mark.slow
async def test_in_pfedsim_a_late_client_trains_from_the_next_round_and_is_evaluated(
    tmp_path: Path, photos: Path, exported: NewBundle, server: ServerProcess
) -> None:
    settings = {
        "method": "pfedsim",
        "rounds": 4,
        "options": {"warm_up": 0.25},
        "hyper": {"lr_extractor": 0.05, "lr_classifier": 0.05},
        "personal_evaluation": True,
    }

    rounds = await take_part_with_a_late_client(
        server, tmp_path, photos, settings, [exported("small", "cross_entropy")]
    )

    assert [result.phase for result in rounds] == [0, 1, 1, 1, 2]
    assert (reported(rounds[0]), reported(rounds[-1])) == (LATE, CLIENTS)
    assert all(reported(result) == CLIENTS for result in rounds[2:])


@pytest.mark.slow
async def test_in_fedconcat_a_late_client_has_no_cluster_and_joins_the_classifier(
    tmp_path: Path, photos: Path, concatenating: list[Path], server: ServerProcess
) -> None:
    settings = {
        "method": "fedconcat",
        "rounds": 5,
        "options": {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 2},
        "hyper": {"lr_extractor": 0.1, "lr_classifier": 0.1},
    }

    rounds = await take_part_with_a_late_client(server, tmp_path, photos, settings, concatenating)

    assert [result.phase for result in rounds] == [0, 1, 1, 2, 2]
    assert [reported(result) for result in rounds] == [LATE, LATE, LATE, CLIENTS, CLIENTS]
