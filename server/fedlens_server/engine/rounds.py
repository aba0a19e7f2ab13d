"""The round engine: everything the server decides, without sockets and without a running loop.

Calls that change something return a `concurrent.futures.Future`, resolved once the change is on disk
(`asyncio.wrap_future` awaits one, `.result()` waits without a loop); the others answer at once from memory. Errors a
client or operator can cause are `ServerError`s, raised by the call or held by its future.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from fedlens_proto.v1 import admin_pb2, check_in_pb2, enrolment_pb2, update_pb2
from fedlens_server.clock import Clock
from fedlens_server.engine import (
    aggregation,
    assignments,
    clients,
    evaluation,
    lifecycle,
    recovery,
    results,
    tasks,
    updates,
)
from fedlens_server.engine.clients import TokenGrant
from fedlens_server.engine.updates import Expectation, ReceivedUpdate
from fedlens_server.engine.view import Change, RoundKey, fetchable
from fedlens_server.store import Location, Store, StoredBlob, Transaction

__all__ = ["Change", "Expectation", "ReceivedUpdate", "RoundKey", "Rounds", "TokenGrant"]

A = TypeVar("A")
B = TypeVar("B")
PART_GRACE_S = 24 * 3600.0  # how long a part waits for the task that names it


class Rounds:
    """Tasks, rounds and clients over one store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Take up where the store's last process left off; an open round gets its full deadline again."""
        self._store = store
        self._clock = clock
        self._federation = recovery.load(store, clock)
        self._norms = ThreadPoolExecutor(1, thread_name_prefix="fedlens-norm")
        self._counting = threading.Lock()

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Have `listener` called after each commit that matters, on the writing thread; gives what ends it.

        It must return quickly (`loop.call_soon_threadsafe`) and not raise.
        """
        return self._federation.subscribe(listener)

    def enrol(
        self, client: bytes, grant: TokenGrant, capabilities: enrolment_pb2.Capabilities
    ) -> Future[enrolment_pb2.ClientRole]:
        """The client's role; the same for a client that has enrolled before, which uses nothing of the token.

        Raises:
            Malformed: The capabilities are empty.
            Forbidden: Revoked or forgotten; or the token has expired or is used up.
        """
        clients.check_capabilities(capabilities)
        return self._store.submit(
            lambda transaction: clients.enrol(self._federation, transaction, client, grant, capabilities), [client]
        )

    def authenticate(self, client: bytes) -> enrolment_pb2.ClientRole:
        """The role of an enrolled client.

        Raises:
            Unauthorised: Nobody enrolled with this id, or it was forgotten.
            Forbidden: It was revoked.
        """
        return clients.authenticate(self._federation, client).role

    def forget(self, client: bytes) -> Future[bool]:
        """Delete all that is kept for the client; True if an update of it is just being aggregated."""
        return self._store.submit(lambda transaction: clients.forget(self._federation, transaction, client))

    def revoke(self, client: bytes) -> Future[None]:
        """Shut a client out from the next request on.

        Raises:
            Unknown: No such client.
        """
        return self._store.submit(lambda transaction: clients.revoke(self._federation, transaction, client))

    def check_in(self, client: bytes, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        """What the client is to do now. Reads memory only and never holds: to hold, wait for a `Change` and ask again.

        Raises:
            Unknown: The task named is none that this client can run.
        """
        known = clients.authenticate(self._federation, client)
        return assignments.check_in(self._federation, known, request)

    def expect(self, client: bytes, task: int, round_number: int) -> Expectation:
        """What an update must look like, before its body is read; also for a member that has reported.

        Raises:
            Unknown: No such task or round.
            Forbidden: Not a member of that round.
            RoundClosed: A member that has not reported, and the round is over.
            AlreadyFailed: The member has reported a failure.
        """
        return updates.expect(self._federation, client, task, round_number)

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

        def accept(norm: float | None) -> Future[update_pb2.Receipt]:
            def operation(transaction: Transaction) -> update_pb2.Receipt:
                return updates.accept(self._federation, transaction, client, task, round_number, received, norm)

            return self._store.submit(operation, [client])

        found = updates.membership(self._federation, client, task, round_number)
        member, is_asked = found.member, found.task.settings.max_update_norm is not None or found.base is not None
        if not is_asked or received.blob is None or member is None or member.body_sha256 is not None:
            return accept(None)
        return _then(self._norms.submit(updates.update_norm, self._federation, found, member, received.blob), accept)

    def quarantine(
        self, client: bytes, task: int, round_number: int, reason: str, body_sha256: bytes | None = None
    ) -> Future[None]:
        """Leave a member out of the round whose blob was found bad; no effect on one that has reported or failed.

        Raises:
            UpdateDiffers: The member has reported, and the bad blob came in a body with this other digest.
        """
        return self._store.submit(
            lambda transaction: updates.quarantine(
                self._federation, transaction, client, task, round_number, reason, body_sha256
            ),
            [client],
        )

    def accept_failure(
        self, client: bytes, task: int, round_number: int, reason: update_pb2.FailureReason, detail: str
    ) -> Future[None]:
        """Note that a member gives up; final for the round. Again: no effect.

        Raises:
            Those of `expect`, and
            Malformed: The reason is unset or unknown, or the detail too long.
            UpdateDiffers: The member has reported an update.
        """
        return self._store.submit(
            lambda transaction: updates.accept_failure(
                self._federation, transaction, client, task, round_number, reason, detail
            ),
            [client],
        )

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
        return self._store.submit(
            lambda transaction: evaluation.accept(
                self._federation, transaction, client, task, round_number, header, body_sha256
            ),
            [client],
        )

    def readable(self, client: bytes, digest: bytes) -> Location:
        """Where a blob is that this client may fetch now.

        Raises:
            Unknown: There is none, or it is not for this client.
        """
        return assignments.readable(self._federation, clients.authenticate(self._federation, client), digest)

    def count_sent(self, client: bytes, digest: bytes, byte_count: int) -> None:
        """Count bytes of a blob sent to a client for the round that needs it there, if there is one."""
        for task in list(self._federation.tasks.values()):
            current = task.round
            member = current.members.get(client) if current is not None else None
            if current is None or member is None:
                continue
            bundle = member.bundle
            if digest == bundle.id or digest in bundle.parts or digest in fetchable(member.sets):
                with self._counting:
                    current.bytes_sent += byte_count
                return

    def put_part(self, blob: StoredBlob) -> Future[None]:
        """Store a part of a bundle."""
        until = self._clock.now() + PART_GRACE_S
        return self._store.submit(lambda transaction: transaction.place(blob, until), [blob.digest])

    def locate(self, digest: bytes) -> Location:
        """Where any stored bytes are: for operators.

        Raises:
            Unknown: They are not stored.
        """
        return self._store.blobs.locate(digest)

    def create_task(self, request: admin_pb2.CreateTaskRequest) -> Future[admin_pb2.Task]:
        """Make a task; the same name and content again: the same task.

        Raises:
            Malformed: A setting or manifest is not acceptable, or a part is missing; the text names it.
            TaskDiffers: There is a task of that name with other content.
        """
        return self._store.submit(lambda transaction: tasks.create(self._federation, transaction, request))

    def tasks(self) -> admin_pb2.ListTasksResponse:
        """All tasks."""
        tasks = sorted(self._federation.tasks.items())
        return admin_pb2.ListTasksResponse(tasks=[results.summary(task) for _, task in tasks])

    def show(self, task: str) -> admin_pb2.ShowTaskResponse:
        """A task, by name or decimal id, with its rounds; reads the database.

        Raises:
            Unknown: No such task.
        """
        return results.show(self._federation, results.find(self._federation, task))

    def stop(self, task: str) -> Future[admin_pb2.Task]:
        """End a task; an open round is abandoned. Again: no effect.

        Raises:
            Unknown: No such task.
        """
        found = results.find(self._federation, task)
        stopping = self._store.submit(lambda transaction: lifecycle.stop(self._federation, transaction, found))
        return _then(stopping, lambda _: self._store.submit(lambda _: results.summary(found), []))

    def model(self, task: str) -> admin_pb2.TaskModelResponse:
        """The current global model of a task; reads the database.

        Raises:
            Unknown: No such task, or its method has no global model.
        """
        return results.model(self._federation, results.find(self._federation, task))

    def due(self) -> list[RoundKey]:
        """Rounds that can be closed and aggregated now, ascending."""
        return aggregation.due(self._federation)

    def next_deadline(self) -> float | None:
        """When `due()` will next change by time alone, in seconds since the epoch; None: not before a `Change`."""
        return aggregation.next_deadline(self._federation)

    def advance(self, key: RoundKey) -> None:
        """Close a round, aggregate it, commit or abandon it, and open the next one.

        Heavy: call it off the event loop, one call a round at a time. Safe to repeat; does nothing for a round that
        is not due. When the disk is full the round stays closing and is due again some seconds later.
        """
        aggregation.advance(self._federation, key)

    def close(self) -> None:
        """Finish what was accepted; call it before the store's `close`."""
        self._norms.shutdown()


def _then(first: Future[A], follow: Callable[[A], Future[B]]) -> Future[B]:
    """What comes of `follow`, which is called with the result of `first`; no thread waits for either."""
    last: Future[B] = Future()

    def end(done: Future[B]) -> None:
        error = done.exception()
        if error is not None:
            last.set_exception(error)
        else:
            last.set_result(done.result())

    def go_on(done: Future[A]) -> None:
        try:
            following = follow(done.result())
        except Exception as error:
            last.set_exception(error)
        else:
            following.add_done_callback(end)

    first.add_done_callback(go_on)
    return last
