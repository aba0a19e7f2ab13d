"""The round engine: everything the server decides, without sockets and without a running loop.

Calls that change something return a `concurrent.futures.Future`, resolved once the change is on disk
(`asyncio.wrap_future` awaits one, `.result()` waits without a loop); the others answer at once from memory. Errors a
client or operator can cause are `ServerError`s, raised by the call or held by its future.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from fedlens_proto.v1 import admin_pb2, check_in_pb2, enrolment_pb2, update_pb2
from fedlens_server.clock import Clock
from fedlens_server.enrolment import TokenGrant
from fedlens_server.store import Location, Store, StoredBlob
from fedlens_server.updates import Expectation, ReceivedUpdate


class RoundKey(NamedTuple):
    """One round of one task."""

    task: int
    round: int


@dataclass(frozen=True)
class Change:
    """What a commit changed."""

    tasks: frozenset[int]  # check-ins concerning these tasks may now be answered differently; empty: none
    due: bool  # `due()` or `next_deadline()` may have changed


class Rounds:
    """Tasks, rounds and clients over one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Take up where the store's last process left off; an open round gets its full deadline again."""
        raise NotImplementedError

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Have `listener` called after each commit that matters, on the writing thread; gives what ends it.

        It must return quickly (`loop.call_soon_threadsafe`) and not raise.
        """
        raise NotImplementedError

    def enrol(
        self, client: bytes, grant: TokenGrant, capabilities: enrolment_pb2.Capabilities
    ) -> Future[enrolment_pb2.ClientRole]:
        """The client's role; the same for a client that has enrolled before, which uses nothing of the token.

        Raises:
            Malformed: The capabilities are empty.
            Forbidden: Revoked or forgotten; or the token has expired or is used up.
        """
        raise NotImplementedError

    def authenticate(self, client: bytes) -> enrolment_pb2.ClientRole:
        """The role of an enrolled client.

        Raises:
            Unauthorised: Nobody enrolled with this id, or it was forgotten.
            Forbidden: It was revoked.
        """
        raise NotImplementedError

    def forget(self, client: bytes) -> Future[bool]:
        """Delete all that is kept for the client; True if an update of it is just being aggregated."""
        raise NotImplementedError

    def revoke(self, client: bytes) -> Future[None]:
        """Shut a client out from the next request on.

        Raises:
            Unknown: No such client.
        """
        raise NotImplementedError

    def check_in(self, client: bytes, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """What the client is to do now. Reads memory only and never holds: to hold, wait for a `Change` and ask again.

        Raises:
            Unknown: The task named is none that this client can run.
        """
        raise NotImplementedError

    def expect(self, client: bytes, task: int, round_number: int) -> Expectation:
        """What an update must look like, before its body is read; also for a member that has reported.

        Raises:
            Unknown: No such task or round.
            Forbidden: Not a member of that round.
            RoundClosed: A member that has not reported, and the round is over.
            AlreadyFailed: The member has reported a failure.
        """
        raise NotImplementedError

    def accept_update(
        self, client: bytes, task: int, round_number: int, received: ReceivedUpdate
    ) -> Future[update_pb2.Receipt]:
        """Store an update; the receipt, once it is durable. The same body again: the same receipt.

        Raises:
            Those of `expect`, and
            UpdateDiffers: The member has reported with other bytes.
            UpdateInvalid: Header or norm are not acceptable; the member is now quarantined.
            StorageFull: Nothing was stored.
        """
        raise NotImplementedError

    def quarantine(
        self, client: bytes, task: int, round_number: int, reason: str, body_sha256: bytes | None = None
    ) -> Future[None]:
        """Leave a member out of the round whose blob was found bad; no effect on one that has reported or failed."""
        raise NotImplementedError

    def accept_failure(
        self, client: bytes, task: int, round_number: int, reason: update_pb2.FailureReason, detail: str
    ) -> Future[None]:
        """Note that a member gives up; final for the round. Again: no effect.

        Raises:
            Those of `expect`, and
            Malformed: The reason is unset or unknown, or the detail too long.
            UpdateDiffers: The member has reported an update.
        """
        raise NotImplementedError

    def accept_evaluation(
        self, client: bytes, task: int, round_number: int, header: update_pb2.UpdateHeader, body_sha256: bytes
    ) -> Future[update_pb2.Receipt]:
        """Store what an evaluator found for a committed round. The same body again: the same receipt.

        Raises:
            Forbidden: The client is no evaluator.
            Unknown: No such task or round, or none to be evaluated.
            RoundClosed: Another round is evaluated by now.
            UpdateDiffers: It has answered with other bytes.
            UpdateInvalid: The sums are not acceptable.
        """
        raise NotImplementedError

    def readable(self, client: bytes, digest: bytes) -> Location:
        """Where a blob is that this client may fetch now.

        Raises:
            Unknown: There is none, or it is not for this client.
        """
        raise NotImplementedError

    def count_sent(self, client: bytes, byte_count: int) -> None:
        """Count bytes of blobs sent to a client for the round it is a member of, if there is one."""
        raise NotImplementedError

    def put_part(self, blob: StoredBlob) -> Future[None]:
        """Store a part of a bundle."""
        raise NotImplementedError

    def locate(self, digest: bytes) -> Location:
        """Where any stored bytes are: for operators.

        Raises:
            Unknown: They are not stored.
        """
        raise NotImplementedError

    def create_task(self, request: admin_pb2.CreateTaskRequest) -> Future[admin_pb2.Task]:
        """Make a task; the same name and content again: the same task.

        Raises:
            Malformed: A setting or manifest is not acceptable, or a part is missing; the text names it.
            TaskDiffers: There is a task of that name with other content.
        """
        raise NotImplementedError

    def tasks(self) -> admin_pb2.ListTasksResponse:
        """All tasks."""
        raise NotImplementedError

    def show(self, task: str) -> admin_pb2.ShowTaskResponse:
        """A task, by name or decimal id, with its rounds; reads the database.

        Raises:
            Unknown: No such task.
        """
        raise NotImplementedError

    def stop(self, task: str) -> Future[admin_pb2.Task]:
        """End a task; an open round is abandoned. Again: no effect.

        Raises:
            Unknown: No such task.
        """
        raise NotImplementedError

    def model(self, task: str) -> admin_pb2.TaskModelResponse:
        """The current global model of a task.

        Raises:
            Unknown: No such task, or its method has no global model.
        """
        raise NotImplementedError

    def due(self) -> list[RoundKey]:
        """Rounds that can be closed and aggregated now, ascending."""
        raise NotImplementedError

    def next_deadline(self) -> float | None:
        """When `due()` will next change by time alone, in seconds since the epoch; None: not before a `Change`."""
        raise NotImplementedError

    def advance(self, key: RoundKey) -> None:
        """Close a round, aggregate it, commit or abandon it, and open the next one.

        Heavy: call it off the event loop, one call a round at a time. Safe to repeat; does nothing for a round that
        is not due. When the disk is full the round stays closing and is due again some seconds later.
        """
        raise NotImplementedError
