"""The interface of transports: the calls of the protocol. `http_transport.py` implements it over HTTP."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, update_pb2

Blobs = Sequence[bytes | Path]
"""The blobs of an update, in the order of its header; large ones are files."""


class Transport(Protocol):
    """Calls one server as one client, and repeats calls that the server says may succeed later.

    Every call raises `Refused` for a final error, and `BadResponse` for a response that violates the protocol.
    """

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        """Make this client known to the server; repetition is harmless."""
        ...

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """Ask for work; takes up to `request.hold_ms` longer than other calls."""
        ...

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        """Append the missing bytes of a part or blob to the file `into`, which is empty, absent or incomplete.

        The caller checks the digest.

        Raises:
            BadResponse: For example more than `max_bytes` in all. Bytes received before stay, unless resuming from them
                would cause the same error again.
        """
        ...

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        """Send a result; return when the server has it on its disk.

        Args:
            task: Of the assignment.
            round_number: Of the assignment.
            header: As `wire.frame_update` returns it.
            blobs: The body after the header.
        """
        ...

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        """Send an evaluator's result, as `put_update`."""
        ...

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        """Give up an assignment, for good."""
        ...

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        """Make the server delete everything about this client."""
        ...

    async def close(self) -> None:
        """Close connections; do not use the transport afterwards."""
        ...
