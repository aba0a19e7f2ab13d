"""The calls of the protocol: what a transport promises. `http_transport.py` has the real one."""

from pathlib import Path
from typing import Protocol

from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, update_pb2


class Transport(Protocol):
    """Speaks to one server as one client; tries again by itself where the server says that it may help.

    Every call raises `Refused` for an answer that is final, `BadAnswer` for one that is not the protocol.
    """

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        """Make this client known; repeating it is harmless."""
        ...

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """Ask for work; takes up to `request.hold_ms` longer than other calls."""
        ...

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        """Append the missing bytes of a part or blob to the file `into`, which is empty, absent or a beginning.

        Its digest is checked by the caller.

        Raises:
            BadAnswer: Such as more than `max_bytes` in all. What came before stays, unless going on from there would
                bring the same error again.
        """
        ...

    async def put_update(
        self, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        """Send a result; returns when the server has it on its disk.

        Args:
            task: Of the assignment.
            round_number: Of the assignment.
            header: As `wire.frame_update` gives it.
            blob: What stands behind the header: bytes, a file, or nothing.
        """
        ...

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        """Send an evaluator's result; otherwise as `put_update`."""
        ...

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        """Give up an assignment, for good."""
        ...

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        """Have the server delete everything about this client."""
        ...

    async def close(self) -> None:
        """Give back connections; the transport is not used afterwards."""
        ...
