"""Whose bundles a client runs: those that publishers signed whom its owner trusts, or whatever the server names."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from fedlens_edge_client.client.clock import Clock
from fedlens_edge_client.errors import AssignmentFailed
from fedlens_edge_client.storage.floors import Floors
from fedlens_proto.errors import StatementRefused
from fedlens_proto.programs import statements
from fedlens_proto.programs.statements import Publisher
from fedlens_proto.v1 import update_pb2


class TrustServer(Enum):
    """The type of `TRUST_SERVER`."""

    TRUST_SERVER = "trust-server"


TRUST_SERVER: Final = TrustServer.TRUST_SERVER
"""In place of publishers: run every bundle that the server names. Whoever has the server then has this client, too."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """Trust in publishers.

    Attributes:
        publishers: Their keys, read before each use of a bundle: a key that is left out is revoked.
        audience: Ids of the application and names of federations that this client answers to.
        floors: What publishers withdrew.
        clock: Tells when statements end.
    """

    publishers: Sequence[Publisher]
    audience: frozenset[str]
    floors: Floors
    clock: Clock

    def check(self, bundle: bytes, signed: bytes, *, trains: bool) -> None:
        """Check that a bundle may be used, and note what its publisher withdraws.

        Args:
            bundle: SHA-256 of the manifest.
            signed: The serialised `SignedStatement` that the server sent; empty: none.
            trains: The use is training or evaluation. A model whose statement has ended is still good for predictions,
                if this client has used the bundle before.

        Raises:
            AssignmentFailed: With reason `policy`; the bundle must not be used so.
            StateError: The floors cannot be read or written.
        """
        if not signed:
            raise _refused(f"nobody has signed bundle {bundle.hex()[:12]}; its publisher must, with `fedlens sign`")
        try:
            statement = statements.verified(signed, bundle, self.publishers)
            floor, used = self.floors.of(statement.publisher, statement.name), self.floors.has_used(bundle)
            statements.check(statement, self.audience, floor)
            # Most uses have nothing new to note.
            if statement.floor > floor:
                self.floors.raise_to(statement.publisher, statement.name, statement.floor)
            if trains or not used:
                statements.check_time(statement, self.clock.now())
            if not used:
                self.floors.note_use(bundle)
        except StatementRefused as error:
            raise _refused(str(error)) from error


def trust_in(
    publishers: Sequence[Publisher] | TrustServer, audience: frozenset[str], floors: Path, clock: Clock
) -> Trust | None:
    """The trust in these publishers, with the file of their floors; None: the server is trusted."""
    if publishers is TRUST_SERVER:
        return None
    return Trust(publishers=publishers, audience=audience, floors=Floors(floors), clock=clock)


def _refused(why: str) -> AssignmentFailed:
    return AssignmentFailed(update_pb2.FAILURE_REASON_POLICY, f"this client runs what its publishers signed: {why}")
