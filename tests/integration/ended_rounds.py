"""Rounds with clients that vanish, over HTTP: they end when everybody else has answered, however long that takes."""

import asyncio
from collections import defaultdict

from fedlens.admin_client import AdminClient
from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.faults import FaultKind, FaultPlan
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_proto.v1 import admin_pb2, check_in_pb2, update_pb2


class EndedRounds:
    """Ends a round of a task as an operator does, once it waits for nobody but clients that have vanished.

    The deadline of a round would end it too: so late that no client is ever too slow for it, or so early that some are.
    """

    def __init__(self, admin: AdminClient, task: str) -> None:
        self._admin = admin
        self._task = task
        self._vanished: defaultdict[int, set[bytes]] = defaultdict(set)  # clients, by round
        self._ended: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._looking = asyncio.Lock()

    async def vanish(self, number: int, client: bytes) -> None:
        """Return when this round has ended, in which a client has vanished."""
        self._vanished[number].add(client)
        await self.look(number)
        await self._ended[number].wait()

    async def look(self, number: int) -> None:
        """Somebody has answered in this round, or vanished: end it, if all others have."""
        async with self._looking:
            if not self._vanished[number] or self._ended[number].is_set():
                return
            shown = await asyncio.to_thread(self._admin.show, self._task)
            members = next(found.members for found in shown.rounds if found.round == number)
            if {each.client_id for each in members if each.state == admin_pb2.MEMBER_STATE_PENDING} == (
                self._vanished[number]
            ):
                await asyncio.to_thread(self._admin.control, self._task, "deadline")
                self._ended[number].set()


class EndingTransport(TransportWrapper):
    """The way of one client, inside of its `FaultyTransport`, which tells when it has answered or vanished."""

    def __init__(self, inner: Transport, rounds: EndedRounds, plan: FaultPlan, index: int, client: bytes) -> None:
        super().__init__(inner)
        self._rounds, self._plan, self._index, self._client = rounds, plan, index, client

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        response = await super().check_in(request)
        if response.WhichOneof("result") == "assignment":
            number = response.assignment.round
            fault = self._plan.of(self._index, number)
            if fault is not None and fault.kind is FaultKind.VANISH:
                await self._rounds.vanish(number, self._client)
                response.assignment.time_left_ms = 0
        return response

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        try:
            return await super().put_update(task, round_number, header, blobs)
        finally:
            await self._rounds.look(round_number)
