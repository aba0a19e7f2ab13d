"""A server without sockets whose task takes the clients that come."""

import json
import threading
from typing import Any, Self

from fedlens_proto.v1 import admin_pb2, check_in_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.arrivals.places import Places
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.fakes import SEED, Bench

SETTINGS = {
    **{"method": "fedavg", "rounds": 3, "seed": SEED},
    **{"selection": "arrivals", "goal": 2, "over_selection": 1, "canary": 0},
}


class Arrivals(Bench):
    """Clients check in as over HTTP: whoever finds no work asks for a place."""

    def _open(self) -> None:
        super()._open()
        self.federation.generator.seed(0)
        self.places = Places(self.federation)

    def close(self) -> None:
        self.places.close()
        super().close()

    def take(self, *bundles: TinyBundle, name: str = "task", **settings: Any) -> Self:
        """A task with `SETTINGS`, but for these; it starts at once."""
        self.create(json.dumps(SETTINGS | settings), bundles or [tiny_bundle()], name)
        self.settle()
        return self

    def request(self, **fields: Any) -> check_in_pb2.CheckInRequest:
        """A check-in with ten photos, but for these fields."""
        return check_in_pb2.CheckInRequest(**{"protocol": 1, "num_examples": 10, **fields})

    def settle_places(self) -> None:
        """Return when the places that are free by now have been given."""
        self.places.close()
        self.places = Places(self.federation)

    def come(self, *clients: bytes, **fields: Any) -> list[check_in_pb2.CheckInResponse]:
        """Check-ins of all these clients at the same moment; `fields` are those of their requests."""
        request = self.request(**fields)
        # The thread that gives places waits, else it may give them all to those who were first.
        all_ask = threading.Event()
        self.places._pool.submit(all_ask.wait)
        decided = [self.places.ask(client, request) for client in clients]
        all_ask.set()
        for each in decided:
            if each is not None:
                each.result()
        return [assignments.check_in(self.federation, client, request) for client in clients]

    def check_in(self, client: bytes, task: int = 0) -> check_in_pb2.CheckInResponse:
        (response,) = self.come(client, task=task)
        return response

    def reason(self, client: bytes, **fields: Any) -> str:
        """Why a client waits."""
        (response,) = self.come(client, **fields)
        assert response.HasField("wait"), response
        return check_in_pb2.WaitReason.Name(response.wait.reason).removeprefix("WAIT_REASON_").lower()

    def has_place(self, client: bytes) -> bool:
        return self.check_in(client).HasField("assignment")

    def state(self, client: bytes, number: int = 1) -> str:
        """The state of a member, as operators see it."""
        return admin_pb2.MemberState.Name(self.members(number)[client].state).removeprefix("MEMBER_STATE_").lower()

    @property
    def ends(self) -> list[str]:
        """The states of all rounds."""
        return [
            admin_pb2.RoundState.Name(found.state).removeprefix("ROUND_STATE_").lower() for found in self.show().rounds
        ]
