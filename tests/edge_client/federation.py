"""A client or several on one album, and the fake server that they take part with."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from fedlens_edge_client import EdgeClient, FolderAlbum
from fedlens_edge_client.client.client import Outcome
from fedlens_edge_client.client.events import Event
from fedlens_edge_client.policy import EMULATED
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2
from tests.edge_client.fakes import TOKEN, FakeServer, fedavg_plan
from tests.edge_client.linear import LinearEngine

E = TypeVar("E")


class Heard(list[Event]):
    """The events of all clients."""

    def of(self, kind: type[E]) -> list[E]:
        """Those of one kind."""
        return [event for event in self if isinstance(event, kind)]


@dataclass
class Federation:
    """Makes servers of `bundle`, and clients with the album `photos` and the state folder `state`."""

    bundle: Bundle
    photos: Path
    state: Path
    events: Heard = field(default_factory=Heard)

    def client(self, server: FakeServer, **others: Any) -> EdgeClient:
        """A client, with other arguments as `EdgeClient`."""
        usual: dict[str, Any] = {
            "state": self.state,
            "album": FolderAlbum(self.photos),
            "publishers": TRUST_SERVER,
            "policy": EMULATED,
            "enrolment_token": TOKEN,
            "on_event": self.events.append,
            "engine_factory": LinearEngine,
        }
        return EdgeClient(server.url, **(usual | others))

    def server(self, plan: assignment_pb2.LocalPlan | None = None, rounds: int = 1) -> FakeServer:
        """A server with this plan, or else one epoch of FedAvg."""
        return FakeServer(self.bundle, plan or fedavg_plan(), rounds)

    async def one_round(self, server: FakeServer, **others: Any) -> Outcome:
        """The outcome of a round for a client that is new in this process; arguments as `client`."""
        async with self.client(server, **others) as client:
            return await client.run_once()

    @asynccontextmanager
    async def joined(
        self,
        plan: assignment_pb2.LocalPlan | None = None,
        *,
        rounds: int = 1,
        bundle: Bundle | None = None,
        **others: Any,
    ) -> AsyncIterator[tuple[FakeServer, EdgeClient]]:
        """A server and a client of it, with other arguments as `EdgeClient`."""
        server = replace(self, bundle=bundle or self.bundle).server(plan, rounds)
        async with server, self.client(server, **others) as client:
            yield server, client

    async def run(self, plan: assignment_pb2.LocalPlan | None = None, **others: Any) -> FakeServer:
        """The server after all its rounds; arguments as `joined`."""
        async with self.joined(plan, **others) as (server, client):
            await client.run()
        return server
