"""A client's calls, answered by the round engine in the same process: no sockets, the same checks.

`DirectTransport` is the `Transport` of a study's client. `PatientTransport`, around it and what faults a plan has for
the client, holds a check-in for which there is no work until something has changed: in a study nobody asks in vain.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from hashlib import sha256
from pathlib import Path
from shutil import copyfile
from typing import TypeVar

from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.errors import BadAnswer, Refused
from fedlens_proto import keyed_hash
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, error_pb2, update_pb2
from fedlens_proto.wire import LENGTH, decode_request
from fedlens_server.engine.rounds import Rounds, TokenGrant
from fedlens_server.errors import ServerError
from fedlens_server.http.uploads import take_update
from fedlens_server.store import Location, Store, encoding

T = TypeVar("T")
_BRIEF_BYTES = 1 << 20


class DirectTransport:
    """A `Transport` to a round engine."""

    def __init__(self, rounds: Rounds, store: Store, grants: Mapping[str, TokenGrant], secret: bytes) -> None:
        """`store` is that of `rounds`; `grants` are by enrolment token."""
        self._rounds = rounds
        self._store = store
        self._grants = grants
        self._id = keyed_hash.client_id(secret)

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        """Make this client known."""

        async def enrolled() -> enrolment_pb2.EnrolResponse:
            role = await asyncio.wrap_future(self._rounds.enrol(self._id, self._grants[token], capabilities))
            return enrolment_pb2.EnrolResponse(role=role)

        return await _refusing(enrolled())

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """What to do now; never holds."""

        async def answer() -> check_in_pb2.CheckInResponse:
            response = check_in_pb2.CheckInResponse()
            # A copy, as a wire makes one: the engine's own messages stay its own.
            response.CopyFrom(self._rounds.check_in(self._id, request))
            return response

        return await _refusing(answer())

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        """Write a part or blob to the file `into`, anew if it is a beginning."""

        async def fetched() -> int:
            found = self._rounds.readable(self._id, sha256)
            if found.size > max_bytes:
                raise BadAnswer(f"blob {sha256.hex()}: more than the {max_bytes} bytes that were announced")
            if found.size <= _BRIEF_BYTES:
                _copy(found, into)
            else:
                await asyncio.to_thread(_copy, found, into)
            return found.size

        self._rounds.count_sent(self._id, sha256, await _refusing(fetched()))

    async def put_update(
        self, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        """Send a result."""
        return await _refusing(take_update(self._rounds, self._store, self._id, task, round_number, header, blob))

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        """Send an evaluator's result."""

        async def accepted() -> update_pb2.Receipt:
            message = decode_request(update_pb2.UpdateHeader, header[LENGTH.size :])
            receipt = self._rounds.accept_evaluation(self._id, task, round_number, message, sha256(header).digest())
            return await asyncio.wrap_future(receipt)

        return await _refusing(accepted())

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        """Give up an assignment, for good."""

        async def accepted() -> None:
            failure = self._rounds.accept_failure(self._id, task, round_number, request.reason, request.detail)
            await asyncio.wrap_future(failure)

        await _refusing(accepted())

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        """Have the round engine delete everything about this client."""

        async def forgotten() -> enrolment_pb2.ForgetResponse:
            aggregating = await asyncio.wrap_future(self._rounds.forget(self._id))
            return enrolment_pb2.ForgetResponse(aggregating=aggregating)

        return await _refusing(forgotten())

    async def close(self) -> None:
        """Nothing is held."""


class WaitingRoom:
    """Where clients wait that have nothing to do."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._changed = asyncio.Event()
        self.waiting: set[int] = set()
        self.moved = asyncio.Event()

    def call(self) -> None:
        """Let everybody ask again."""
        self.waiting.clear()
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, index: int) -> None:
        """Return after the next `call`."""
        changed = self._changed
        self.waiting.add(index)
        self.moved.set()
        await changed.wait()


class CheckInTransport:
    """A `Transport` in front of another, for classes that change how clients check in."""

    def __init__(self, inner: Transport) -> None:
        """Everything but `check_in` is as the inner transport has it."""
        self._inner = inner
        self.enrol = inner.enrol
        self.fetch = inner.fetch
        self.put_update = inner.put_update
        self.put_evaluation = inner.put_evaluation
        self.report_failure = inner.report_failure
        self.forget = inner.forget
        self.close = inner.close


class PatientTransport(CheckInTransport):
    """A `Transport` that holds a check-in in a waiting room until there is work or all is over."""

    def __init__(self, inner: Transport, room: WaitingRoom, index: int) -> None:
        """`index` is the client's in the waiting room."""
        super().__init__(inner)
        self._room = room
        self._index = index

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """As the inner transport, once it says something else than to wait."""
        while True:
            response = await self._inner.check_in(request)
            if response.WhichOneof("result") != "wait":
                return response
            await self._room.wait(self._index)


def _copy(found: Location, into: Path) -> None:
    if found.raw is not None:
        into.write_bytes(found.raw)
    elif found.computed is not None:
        with into.open("wb") as file:
            file.writelines(encoding.pieces(found.computed))
    else:
        assert found.path is not None  # one of the three is set
        copyfile(found.path, into)


async def _refusing(call: Awaitable[T]) -> T:
    """What `call` gives; what a server would refuse for good is `Refused`, as over HTTP."""
    try:
        return await call
    except ServerError as error:
        if error.retry == error_pb2.RETRY_NEVER:
            raise Refused(error.code, str(error)) from error
        raise
