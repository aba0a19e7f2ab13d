"""A client that enrols when a task is under way, over HTTP, for the methods whose phases differ."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_proto.v1 import admin_pb2, enrolment_pb2, update_pb2
from tests.integration import two_drivers
from tests.integration.conftest import NewBundle
from tests.integration.processes import ServerProcess

LATE = two_drivers.CLIENTS - 1


class HeldTransport(TransportWrapper):
    """Lets the late client enrol after the first upload of the others, and nobody upload in round 2 before that."""

    def __init__(self, inner: Transport, index: int, uploaded: asyncio.Event, enrolled: asyncio.Event) -> None:
        super().__init__(inner)
        self._uploaded, self._enrolled = uploaded, enrolled
        if index == LATE:
            self.enrol = self._enrol_late

    async def _enrol_late(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        await self._uploaded.wait()
        response = await self._inner.enrol(token, capabilities)
        self._enrolled.set()
        return response

    async def put_update(
        self, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        if round_number > 1:
            await self._enrolled.wait()
        receipt = await super().put_update(task, round_number, header, blob)
        self._uploaded.set()
        return receipt


# In pFedSim it trains from the next round and is evaluated; in FedConcat it has no cluster and joins the classifier.
CONCAT = {"clusters": 2, "extractor_rounds": 2, "classifier_rounds": 2}
CASES: list[tuple[str, dict[str, Any], list[int], list[Any]]] = [
    (
        "pfedsim",
        {"rounds": 4, "options": {"warm_up": 0.25}, "personal_evaluation": True},
        [0, 1, 1, 1, 2],
        [LATE, ANY, *[LATE + 1] * 3],
    ),
    ("fedconcat", {"rounds": 5, "options": CONCAT}, [0, 1, 1, 2, 2], [LATE, LATE, LATE, LATE + 1, LATE + 1]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "more", "phases", "reported"), CASES)
async def test_a_late_client_takes_part_as_soon_as_its_method_can_use_it(
    tmp_path: Path,
    photos: Path,
    exported: NewBundle,
    concatenating: list[Path],
    server: ServerProcess,
    method: str,
    more: dict[str, Any],
    phases: list[int],
    reported: list[Any],
) -> None:
    settings = two_drivers.settings(method, population=LATE, **more)
    bundles = concatenating if method == "fedconcat" else [exported("small", "cross_entropy")]
    uploaded, enrolled = asyncio.Event(), asyncio.Event()

    def held(transport: Transport, index: int) -> Transport:
        return HeldTransport(transport, index, uploaded, enrolled)

    http = await two_drivers.over_http(server, two_drivers.fleet(tmp_path, photos), settings, bundles, wrapped=held)

    assert http.shown.task.state == admin_pb2.TASK_STATE_FINISHED
    assert [result.phase for result in http.shown.rounds] == phases
    counts = [two_drivers.states(result).count(admin_pb2.MEMBER_STATE_REPORTED) for result in http.shown.rounds]
    assert counts == reported
