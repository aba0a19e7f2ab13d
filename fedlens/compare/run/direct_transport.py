"""Transports of a study's clients: calls of the round engine in the same process, with all checks, without sockets.

`DirectTransport` makes the calls. `LongPollTransport`, around it and around the client's planned faults, holds a
check-in without work until something has changed.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from shutil import copyfile

from fedlens_edge_client.client.transport import Blobs, Transport
from fedlens_edge_client.emulation.transport_wrapper import TransportWrapper
from fedlens_edge_client.errors import BadResponse, Refused
from fedlens_proto import keyed_hash
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, error_pb2, update_pb2
from fedlens_proto.wire import LENGTH, decode_request
from fedlens_server.engine import assignments, clients, evaluation, updates
from fedlens_server.engine.operators.access import TokenGrant
from fedlens_server.engine.view import Federation
from fedlens_server.errors import ServerError
from fedlens_server.http.uploads import take_update
from fedlens_server.store import Location, encoding

_BRIEF_BYTES = 1 << 20


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise `Refused` for a final refusal, as over HTTP."""
    try:
        yield
    except ServerError as error:
        if error.retry == error_pb2.RETRY_NEVER:
            raise Refused(error.code, str(error)) from error
        raise


class DirectTransport:
    """A `Transport` to a federation in this process."""

    def __init__(self, federation: Federation, grants: Mapping[str, TokenGrant], secret: bytes) -> None:
        """`grants` are by enrolment token."""
        self._federation = federation
        self._grants = grants
        self._id = keyed_hash.client_id(secret)

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        """Enrol this client."""
        with _refusals():
            enrolling = clients.enrol(self._federation, self._id, self._grants[token], capabilities)
            role = await asyncio.wrap_future(enrolling)
            return enrolment_pb2.EnrolResponse(role=role)

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """Check in; returns at once."""
        with _refusals():
            response = check_in_pb2.CheckInResponse()
            # The client gets a copy, as over a wire, and cannot change the engine's message.
            response.CopyFrom(assignments.check_in(self._federation, self._id, request))
            return response

    def locate(self, sha256: bytes, max_bytes: int) -> Location:
        """Where a part or blob is; it counts as sent."""
        with _refusals():
            found = assignments.readable(self._federation, self._id, sha256)
            if found.size > max_bytes:
                raise BadResponse(f"blob {sha256.hex()}: more than the {max_bytes} bytes that were announced")
            assignments.count_sent(self._federation, self._id, sha256, found.size)
            return found

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        """Write a part or blob to the file `into`, and replace what is there."""
        found = self.locate(sha256, max_bytes)
        if found.size <= _BRIEF_BYTES:
            _copy(found, into)
        else:
            await asyncio.to_thread(_copy, found, into)

    async def put_update(self, task: int, round_number: int, header: bytes, blobs: Blobs) -> update_pb2.Receipt:
        """Upload an update."""
        with _refusals():
            return await take_update(self._federation, self._id, task, round_number, header, blobs)

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        """Upload an evaluator's results."""
        with _refusals():
            message = decode_request(update_pb2.UpdateHeader, header[LENGTH.size :])
            digest = sha256(header).digest()
            receipt = evaluation.accept(self._federation, self._id, task, round_number, message, digest)
            return await asyncio.wrap_future(receipt)

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        """Give up an assignment for good."""
        with _refusals():
            reason, detail = request.reason, request.detail
            failure = updates.accept_failure(self._federation, self._id, task, round_number, reason, detail)
            await asyncio.wrap_future(failure)

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        """Delete everything about this client from the round engine."""
        with _refusals():
            aggregating = await asyncio.wrap_future(clients.forget(self._federation, self._id))
            return enrolment_pb2.ForgetResponse(aggregating=aggregating)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class IdleClients:
    """The clients without work, which check in again when something has changed."""

    def __init__(self) -> None:
        """All clients are busy."""
        self._woken = asyncio.Event()
        self.waiting: set[int] = set()
        self.activity = asyncio.Event()

    def wake(self) -> None:
        """Let all clients check in again."""
        self.waiting.clear()
        self._woken.set()
        self._woken = asyncio.Event()

    async def wait(self, index: int) -> None:
        """Return after the next `wake`."""
        woken = self._woken
        self.waiting.add(index)
        self.activity.set()
        await woken.wait()


class LongPollTransport(TransportWrapper):
    """A `Transport` that holds a check-in until there is work, or all tasks have ended."""

    def __init__(self, inner: Transport, idle: IdleClients, index: int) -> None:
        """`index` is the client's index in the fleet."""
        super().__init__(inner)
        self._idle = idle
        self._index = index

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As the inner transport, after waiting as often as it says so."""
        while True:
            response = await self._inner.check_in(request)
            if response.WhichOneof("result") != "wait":
                return response
            await self._idle.wait(self._index)


def _copy(found: Location, into: Path) -> None:
    if found.raw is not None:
        into.write_bytes(found.raw)
    elif found.computed is not None:
        with into.open("wb") as file:
            file.writelines(encoding.pieces(found.computed))
    else:
        assert found.path is not None  # one of the three is set
        copyfile(found.path, into)
