"""Updates of members: their place in a round, and receipts for what has come."""

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from sqlalchemy import select, update

from fedlens_proto import plans, wire
from fedlens_proto.blob import Layout
from fedlens_proto.v1 import admin_pb2, assignment_pb2, update_pb2
from fedlens_server.engine import evaluation, vetting, view
from fedlens_server.engine.arrivals import canaries, participation
from fedlens_server.engine.cohorts.members import Member, Round
from fedlens_server.engine.task import Task, TaskBundle
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import (
    AlreadyFailed,
    Forbidden,
    Malformed,
    RoundClosed,
    Unavailable,
    Unknown,
    UpdateDiffers,
    UpdateInvalid,
)
from fedlens_server.planning.method import Norms
from fedlens_server.store import PendingBlob, StoredTensors, Transaction, schema

MAX_DETAIL = 1000
_members = schema.members.c
A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class ReceivedUpdate:
    """An update whose body has been read and whose blobs are well-formed and expected."""

    header: update_pb2.UpdateHeader
    body_sha256: bytes
    body_size: int  # bytes of the whole body
    blobs: tuple[PendingBlob, ...] = ()  # in the order of the local plan's uploads


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A client's place in a round: found before the body of its update is read, good until its receipt.

    Attributes:
        current: The round; None: it had ended when it was looked for.
        ended: The client in a round that had ended, from the database.
    """

    task: Task
    number: int
    client: bytes
    current: Round | None
    ended: Member | None = None

    @property
    def member(self) -> Member:
        """The client in that round, as it is now."""
        found = self.ended if self.current is None else self.current.members[self.client]
        assert found is not None  # one of both is set
        return found

    @property
    def bundle(self) -> TaskBundle:
        """The bundle of the assignment."""
        return self.task.bundle(self.member.bundle)

    @property
    def local_plan(self) -> assignment_pb2.LocalPlan:
        """The local plan of the assignment."""
        return self.task.phases[self.member.phase].plan

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """The layout of each uploaded blob, exact but for the digest of its base."""
        layouts, key = self.task.upload_layouts, (self.member.phase, self.member.bundle)
        if key not in layouts:
            plan, manifest = self.local_plan, self.bundle.manifest
            layouts[key] = tuple(plans.upload_layout(plan, upload, manifest) for upload in plan.uploads)
        return layouts[key]

    @property
    def bases(self) -> tuple[bytes | None, ...]:
        """For each upload the digest of the blob to which the client sends the difference; None: it sends tensors."""
        sets = {item.name: item.sha256 for item in self.member.sets}
        return tuple(sets.get(upload.base) for upload in self.local_plan.uploads)

    @property
    def is_open(self) -> bool:
        """True while updates enter the round."""
        current = self.current
        return current is not None and self.task.round is current and current.state == admin_pb2.ROUND_STATE_OPEN

    def require_present(self) -> Member:
        """The member.

        Raises:
            Forbidden: It has left the round.
        """
        if self.member.state == admin_pb2.MEMBER_STATE_LEFT:
            raise Forbidden(f"this client has left round {self.number} of task {self.task.id}")
        return self.member

    def require_open(self) -> Member:
        """The member, if it can still report.

        Raises:
            Forbidden: It has left the round.
            AlreadyFailed: It has reported a failure.
            UpdateInvalid: It is quarantined.
            RoundClosed: The round is over.
        """
        member, number = self.require_present(), self.number
        if member.state == admin_pb2.MEMBER_STATE_FAILED:
            raise AlreadyFailed(
                f"this client has reported a failure in round {number}, which is final: {member.reason}"
            )
        if member.state == admin_pb2.MEMBER_STATE_QUARANTINED:
            raise UpdateInvalid(member.reason)
        if not self.is_open:
            raise RoundClosed(f"round {number} of task {self.task.id} is over")
        return member


@operation(lambda client, *_: client)
def note_late(federation: Federation, transaction: Transaction, client: bytes, task_id: int, number: int) -> None:
    """Note that a member of a round that is closed has sent its update; no effect on one that has not missed it."""
    task = federation.tasks.get(task_id)  # None: deleted since the round was found closed
    current = None if task is None else task.round
    if current is not None and current.number == number:
        transaction.after_commit(lambda: current.late.add(client))
        return
    row = (_members.task == task_id, _members.round == number, _members.client == client)
    missed = _members.state == admin_pb2.MEMBER_STATE_MISSED
    transaction.execute(update(schema.members).where(*row, missed).values(state=admin_pb2.MEMBER_STATE_LATE))


def expect(federation: Federation, client: bytes, task_id: int, number: int) -> Membership:
    """The place of an update that a client is about to send, or sends again.

    Raises:
        Those of `_membership`, and
        RoundClosed: The round is over, and the member has not reported.
        AlreadyFailed: The member has reported a failure.
        UpdateInvalid: The member is quarantined.
    """
    found = _membership(federation, client, task_id, number)
    if not found.member.is_stored:
        found.require_open()
    return found


def accept(federation: Federation, membership: Membership, received: ReceivedUpdate) -> Future[update_pb2.Receipt]:
    """Store an update; the receipt, once it is durable. The same body again: the same receipt.

    Raises:
        Forbidden: The client has left the round, was banned or forgotten.
        RoundClosed, AlreadyFailed: As in `expect`.
        UpdateDiffers: The member has reported with other bytes.
        UpdateInvalid: Header or norm are not acceptable; the member is now quarantined.
        StorageFull: Nothing was stored.
        Unavailable: A limit of norms was set meanwhile.
    """
    member, blobs = membership.member, received.blobs
    settings = membership.task.settings
    needed = settings.max_update_norm is not None or settings.looks_at_norms or any(membership.bases)
    can_report = membership.is_open and member.state == admin_pb2.MEMBER_STATE_PENDING
    if not blobs or not needed or not can_report:
        return _store(federation, membership, received, ())
    uploads = [StoredTensors.of_pending(blob) for blob in blobs]
    given = federation.store, membership.local_plan, membership.bundle, member.sets, uploads
    if federation.store.address.is_here and all(blob.raw is not None for blob in blobs):
        # Computed in less time than it takes to hand it to another thread; from elsewhere downloads may come slowly.
        return _store(federation, membership, received, vetting.upload_norms(*given))
    computing = federation.norms.submit(vetting.upload_norms, *given)
    return _then(computing, lambda norms: _store(federation, membership, received, norms))


@operation(lambda membership, *_: membership.client)
def _store(
    federation: Federation,
    transaction: Transaction,
    membership: Membership,
    received: ReceivedUpdate,
    norms: tuple[Norms, ...],
) -> update_pb2.Receipt:
    """Store an update; `norms` are those of its uploads, none: not needed."""
    _check_enrolled(federation, membership.client)
    receipt = update_pb2.Receipt(body_sha256=received.body_sha256)
    if membership.member.is_stored:
        if membership.member.body_sha256 == received.body_sha256:
            return receipt
        raise _differs(membership.number)
    membership.require_open()
    header, blobs = received.header, received.blobs
    if blobs and not norms and membership.task.settings.max_update_norm is not None:
        raise Unavailable("the task's settings were changed while this update was on its way; send it again")
    fault = vetting.update_fault(membership.task, membership.member.phase, membership.bundle, header, norms)
    if fault is not None:
        transaction.refuse(UpdateInvalid(fault))
        state = admin_pb2.MEMBER_STATE_QUARANTINED
        _write(federation, transaction, membership, state=state, reason=fault, body_sha256=received.body_sha256)
        return receipt
    for blob in blobs:
        transaction.place(blob)
    is_counted = membership.task.settings.dp is None
    _write(
        federation,
        transaction,
        membership,
        state=admin_pb2.MEMBER_STATE_REPORTED,
        body_sha256=received.body_sha256,
        # With privacy the size of the header would tell how many digits its numbers have.
        bytes_received=received.body_size if is_counted else sum(blob.size for blob in blobs),
        num_examples=header.num_examples if is_counted and plans.counts_photos(membership.local_plan) else 0,
        class_counts=tuple(header.class_counts) or None,
        label_distribution=tuple(header.label_distribution) or None,
        norms=vetting.norms_for_rules([upload.name for upload in header.uploads], norms) if is_counted else None,
        evaluations=evaluation.to_json(header.evaluations),
        blobs={upload.name: blob.digest for upload, blob in zip(header.uploads, blobs, strict=True)},
    )
    return receipt


@operation(lambda membership, *_: membership.client)
def quarantine(
    federation: Federation, transaction: Transaction, membership: Membership, reason: str, body_sha256: bytes | None
) -> None:
    """Leave a member out of the round whose blob was found bad; no effect on one that has reported or failed.

    Raises:
        Forbidden: The client has left the round.
        UpdateDiffers: The member has reported, and the bad blob came in a body with this other digest.
    """
    member = membership.require_present()
    if member.is_stored and body_sha256 not in (None, member.body_sha256):
        raise _differs(membership.number)
    if member.state == admin_pb2.MEMBER_STATE_PENDING and membership.is_open:
        state = admin_pb2.MEMBER_STATE_QUARANTINED
        _write(federation, transaction, membership, state=state, reason=reason[:MAX_DETAIL], body_sha256=body_sha256)


@operation(lambda client, *_: client)
def accept_failure(
    federation: Federation,
    transaction: Transaction,
    client: bytes,
    task_id: int,
    number: int,
    reason: update_pb2.FailureReason,
    detail: str,
) -> None:
    """Note that a member gives up; final for the round. Again: no effect.

    Raises:
        Those of `expect`, and
        Malformed: The reason is unset or unknown, or the detail too long.
        UpdateDiffers: The member has reported an update.
    """
    if reason not in update_pb2.FailureReason.values() or reason == update_pb2.FAILURE_REASON_UNSPECIFIED:
        raise Malformed(f"failure.reason: found {reason}, must be a known reason")
    if len(detail) > MAX_DETAIL:
        raise Malformed(f"failure.detail: {len(detail)} characters, at most {MAX_DETAIL} are allowed")
    _check_enrolled(federation, client)
    found = _membership(federation, client, task_id, number)
    if found.member.state in (admin_pb2.MEMBER_STATE_FAILED, admin_pb2.MEMBER_STATE_QUARANTINED):
        return
    if found.member.is_stored:
        raise UpdateDiffers(f"round {number}: an update of this client has been received; it counts")
    found.require_open()
    name = wire.word(update_pb2.FailureReason, reason).replace("_", "-")
    # It is shown on the operator's terminal, which must not take it for commands.
    readable = "".join(character if character.isprintable() else " " for character in detail)
    text = f"{name}: {readable}" if detail else name
    _write(federation, transaction, found, state=admin_pb2.MEMBER_STATE_FAILED, reason=text)
    if found.task.settings.by_arrival and client in found.task.participations:
        participation.left_place(transaction, found.task, client)


def _membership(federation: Federation, client: bytes, task_id: int, number: int) -> Membership:
    """A client's place in a round; asks the database only for a round that has ended.

    Raises:
        Those of `Federation.task`, and
        Unknown: No such round.
        Forbidden: The client is no member of it, or has left it.
        RoundClosed: Its receipts are deleted.
    """
    task = federation.task(task_id)
    current = task.round
    if current is not None and current.number == number:
        if client not in current.members:
            raise Forbidden(f"this client is not a member of round {number} of task {task_id}")
        found = Membership(task=task, number=number, client=client, current=current)
    else:
        found = _ended_membership(federation, client, task, number)
    found.require_present()
    return found


def _ended_membership(federation: Federation, client: bytes, task: Task, number: int) -> Membership:
    if not 1 <= number < task.next_round:
        raise Unknown(f"task {task.id} has no round {number}")
    rows = federation.store.read(
        select(schema.members).where(_members.task == task.id, _members.round == number, _members.client == client)
    )
    if not rows:
        ended = schema.rounds.c
        found = federation.store.read(select(ended.unlisted).where(ended.task == task.id, ended.number == number))
        if any(row.unlisted is not None for row in found):
            raise RoundClosed(f"round {number} of task {task.id} has long been over; its receipts are deleted")
        raise Forbidden(f"this client was not a member of round {number} of task {task.id}")
    member = Member.of_row(rows[0], lambda _: 0)  # blobs of its sets may be gone
    return Membership(task=task, number=number, client=client, current=None, ended=member)


def _check_enrolled(federation: Federation, client: bytes) -> None:
    known = federation.clients.get(client)
    if known is None or known.profile.revoked:
        raise Forbidden("this client was banned or forgotten while its request was under way")


def _differs(number: int) -> UpdateDiffers:
    return UpdateDiffers(f"round {number}: an update with other bytes has been received; that one counts")


def _write(federation: Federation, transaction: Transaction, membership: Membership, **changes: Any) -> None:
    """Write how a pending member of an open round has ended."""
    task, current, client = membership.task, membership.current, membership.client
    assert current is not None  # it is open
    ended = replace(membership.member, **changes)
    counts = ended.state == admin_pb2.MEMBER_STATE_REPORTED and ended.phase == current.phase
    if counts:
        canaries.reported(transaction, task, ended.bundle)  # before its place is free, as `canaries.room` expects
    view.write_member(federation, transaction, current, client, ended)
    if counts and participation.counts(task.settings):
        participation.reported(transaction, task, client, current.number)
    elif task.settings.by_arrival and ended.state == admin_pb2.MEMBER_STATE_QUARANTINED:
        participation.quarantined(transaction, task, client, federation.clock.now())


def _then(first: Future[A], follow: Callable[[A], Future[B]]) -> Future[B]:
    """The outcome of `follow`, which is called with the result of `first`; no thread waits for either."""
    last: Future[B] = Future()
    context = copy_context()

    def end(done: Future[B]) -> None:
        try:
            last.set_result(done.result())
        except Exception as error:
            last.set_exception(error)

    def go_on(done: Future[A]) -> None:
        try:
            context.run(follow, done.result()).add_done_callback(end)
        except Exception as error:
            last.set_exception(error)

    first.add_done_callback(go_on)
    return last
