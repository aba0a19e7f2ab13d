"""What members of a round send: what is expected of them, and what has come."""

import json
from dataclasses import dataclass
from math import inf, isfinite, prod, sqrt

import numpy as np
from sqlalchemy import bindparam, select, update

from fedlens_proto.blob import TensorSpec
from fedlens_proto.v1 import admin_pb2, blob_pb2, update_pb2
from fedlens_server.engine import client_statistics, downloads, local_plans
from fedlens_server.engine.view import BlobSets, Federation, Member, Round, Task, TaskBundle
from fedlens_server.errors import (
    AlreadyFailed,
    Forbidden,
    Malformed,
    RoundClosed,
    Unknown,
    UpdateDiffers,
    UpdateInvalid,
)
from fedlens_server.planning.method import span
from fedlens_server.store import Location, RestoredTensors, StoredBlob, StoredTensors, Transaction, schema

MAX_DETAIL = 1000
_SPAN = 1 << 16
_members = schema.members.c
_END_MEMBER = (
    update(schema.members)
    .where(_members.task == bindparam("t"), _members.round == bindparam("r"), _members.client == bindparam("c"))
    .values(
        {
            name: bindparam(f"new_{name}")
            for name in (
                *("state", "reason", "body_sha256", "bytes_received"),
                *("num_examples", "class_counts", "label_distribution", "evaluations", "blob"),
            )
        }
    )
)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a member's update must look like; known before its body is read."""

    specs: tuple[TensorSpec, ...] | None  # for `blob.Checker`; None: no blob is uploaded
    blob_size: int  # exact bytes of the blob; 0 where none is uploaded
    bundle: bytes
    phase: int
    base: bytes | None = None  # for `blob.Checker`


@dataclass(frozen=True, kw_only=True)
class ReceivedUpdate:
    """An update whose body has been read and whose blob, where there is one, is well-formed and expected."""

    header: update_pb2.UpdateHeader
    body_sha256: bytes
    body_size: int  # bytes of the whole body
    blob: StoredBlob | None = None


@dataclass(frozen=True)
class Membership:
    """A client in a round, whether it has ended or not."""

    task: Task
    bundle: TaskBundle
    phase: int
    member: Member | None  # None: the round has ended, what follows is from the database
    state: admin_pb2.MemberState
    reason: str
    body_sha256: bytes | None
    open: bool
    base: bytes | None = None  # digest of the blob to which it sends the difference; None: it sends tensors


def membership(federation: Federation, client: bytes, task_id: int, number: int) -> Membership:
    """A client's part in a round; asks the database only for one that has ended.

    Raises:
        Unknown: No such task or round.
        Forbidden: The client is no member of it, or has left it.
    """
    task = federation.tasks.get(task_id)
    if task is None:
        raise Unknown(f"there is no task {task_id}")
    current = task.round
    if current is not None and current.number == number:
        member = current.members.get(client)
        if member is None:
            raise Forbidden(f"this client is not a member of round {number} of task {task_id}")
        is_open = current.state == admin_pb2.ROUND_STATE_OPEN
        found = Membership(
            task, member.bundle, current.phase, member, member.state, member.reason, member.body_sha256, is_open,
            _base(task, current.phase, member.sets),
        )  # fmt: skip
    else:
        found = _ended_membership(federation, client, task, number)
    if found.state == admin_pb2.MEMBER_STATE_LEFT:
        raise Forbidden(f"this client has left round {number} of task {task_id}")
    return found


def expect(federation: Federation, client: bytes, task_id: int, number: int) -> Expectation:
    """See `Rounds.expect`."""
    found = membership(federation, client, task_id, number)
    if found.state != admin_pb2.MEMBER_STATE_REPORTED:
        _check_open(found, number)
    layouts, key = found.task.upload_layouts, (found.phase, found.bundle.id)
    if key not in layouts:
        layouts[key] = local_plans.upload_layout(found.task.phases[found.phase].local_plan, found.bundle.manifest)
    layout = layouts[key]
    return Expectation(
        specs=layout.specs if layout is not None else None,
        blob_size=layout.size if layout is not None else 0,
        bundle=found.bundle.id,
        phase=found.phase,
        base=found.base,
    )


def accept(
    federation: Federation,
    transaction: Transaction,
    client: bytes,
    task_id: int,
    number: int,
    received: ReceivedUpdate,
    norm: float | None,
) -> update_pb2.Receipt:
    """See `Rounds.accept_update`; `norm` is what `update_norm` gives, None where nobody asks for it."""
    _still_here(federation, client)
    found = membership(federation, client, task_id, number)
    receipt = update_pb2.Receipt(body_sha256=received.body_sha256)
    if found.state == admin_pb2.MEMBER_STATE_REPORTED:
        if found.body_sha256 == received.body_sha256:
            return receipt
        raise UpdateDiffers(f"round {number}: an update with other bytes has been received; that one counts")
    member = _pending(found, number)
    reason = _fault(found, received, norm)
    if reason is not None:
        transaction.refuse(UpdateInvalid(reason))
        _end(
            federation, transaction, found, client, number, member,
            state=admin_pb2.MEMBER_STATE_QUARANTINED, reason=reason, body_sha256=received.body_sha256,
        )  # fmt: skip
        return receipt
    if received.blob is not None:
        transaction.place(received.blob)
    header = received.header
    _end(
        federation, transaction, found, client, number, member,
        state=admin_pb2.MEMBER_STATE_REPORTED,
        body_sha256=received.body_sha256,
        bytes_received=received.body_size,
        num_examples=header.num_examples,
        class_counts=tuple(header.class_counts) if header.class_counts else None,
        label_distribution=tuple(header.label_distribution) if header.label_distribution else None,
        evaluations=client_statistics.sums_json(header),
        blob=received.blob.digest if received.blob is not None else None,
    )  # fmt: skip
    return receipt


def quarantine(
    federation: Federation,
    transaction: Transaction,
    client: bytes,
    task_id: int,
    number: int,
    reason: str,
    body_sha256: bytes | None,
) -> None:
    """See `Rounds.quarantine`."""
    found = membership(federation, client, task_id, number)
    if found.state == admin_pb2.MEMBER_STATE_REPORTED and body_sha256 not in (None, found.body_sha256):
        raise UpdateDiffers(f"round {number}: an update with other bytes has been received; that one counts")
    if found.member is not None and found.open and found.state == admin_pb2.MEMBER_STATE_PENDING:
        _end(
            federation, transaction, found, client, number, found.member,
            state=admin_pb2.MEMBER_STATE_QUARANTINED, reason=reason[:MAX_DETAIL], body_sha256=body_sha256,
        )  # fmt: skip


def accept_failure(
    federation: Federation,
    transaction: Transaction,
    client: bytes,
    task_id: int,
    number: int,
    reason: update_pb2.FailureReason,
    detail: str,
) -> None:
    """See `Rounds.accept_failure`."""
    if reason not in update_pb2.FailureReason.values() or reason == update_pb2.FAILURE_REASON_UNSPECIFIED:
        raise Malformed(f"failure.reason: found {reason}, must be a known reason")
    if len(detail) > MAX_DETAIL:
        raise Malformed(f"failure.detail: {len(detail)} characters, at most {MAX_DETAIL} are allowed")
    _still_here(federation, client)
    found = membership(federation, client, task_id, number)
    if found.state in (admin_pb2.MEMBER_STATE_FAILED, admin_pb2.MEMBER_STATE_QUARANTINED):
        return
    if found.state == admin_pb2.MEMBER_STATE_REPORTED:
        raise UpdateDiffers(f"round {number}: an update of this client has been received; it counts")
    member = _pending(found, number)
    name = update_pb2.FailureReason.Name(reason).removeprefix("FAILURE_REASON_").lower().replace("_", "-")
    # It is shown on the operator's terminal, which must not take it for commands.
    readable = "".join(character if character.isprintable() else " " for character in detail)
    text = f"{name}: {readable}" if detail else name
    _end(
        federation, transaction, found, client, number, member, state=admin_pb2.MEMBER_STATE_FAILED, reason=text
    )  # fmt: skip


def update_norm(federation: Federation, found: Membership, member: Member, blob: StoredBlob) -> float:
    """The L2 norm, in float64, of an upload's difference to what was downloaded, over all its float tensors.

    Tensors that start from a kept set alone are left out: the server does not know what they started from. Infinite if
    the upload is a difference that with its base gives an infinity.
    """
    location = Location(blob.size, raw=blob.raw, path=blob.path)
    sent = StoredTensors(blob.digest, blob.size, lambda _: location)
    uploaded = sent if found.base is None else RestoredTensors(federation.store.tensors(found.base), sent)
    sets = {item.name: federation.store.tensors(item.sha256) for item in member.sets}
    total = 0.0
    bases = local_plans.base_sets(found.task.phases[found.phase].local_plan, found.bundle.manifest)
    for spec in sent.layout.specs:
        base = sets.get(bases.get(spec.name, ""))
        if spec.dtype == blob_pb2.DTYPE_INT64:
            continue
        size = prod(spec.shape)
        for a in range(0, size, _SPAN):
            b = min(a + _SPAN, size)
            values = span(uploaded, spec.name, a, b)
            if not np.isfinite(values).all():
                return inf
            if base is not None and spec.name in base:
                difference = np.subtract(values, span(base, spec.name, a, b), dtype=np.float64)
                total += float(difference @ difference)
    return sqrt(total)


def _fault(found: Membership, received: ReceivedUpdate, norm: float | None) -> str | None:
    """Why an update is not acceptable; None: it is."""
    header, settings = received.header, found.task.settings
    local_plan = found.task.phases[found.phase].local_plan
    if header.phase != found.phase:
        return f"phase: found {header.phase}, the round is of phase {found.phase}"
    if header.bundle != found.bundle.id:
        return f"bundle: found {header.bundle.hex()[:80] or 'none'}, the assignment has {found.bundle.id.hex()}"
    if local_plan.HasField("upload") != (received.blob is not None):
        return "a blob was expected, none came" if received.blob is None else "a blob came where none was asked for"
    if header.num_examples > settings.max_photos_per_client:
        return f"num_examples: found {header.num_examples}, at most {settings.max_photos_per_client} are allowed"
    asked = client_statistics.Asked.by(local_plan, len(found.bundle.manifest.class_names))
    if reason := client_statistics.fault(header, asked):
        return reason
    if norm is not None and not isfinite(norm):
        return "the difference and what it is added to give an infinity"
    if settings.max_update_norm is not None and norm is not None and not norm <= settings.max_update_norm:
        return f"the update's difference has norm {norm:g}, at most {settings.max_update_norm:g} is allowed"
    return None


def _check_open(found: Membership, number: int) -> None:
    """See that the member can still report; errors say why it cannot."""
    if found.state == admin_pb2.MEMBER_STATE_FAILED:
        raise AlreadyFailed(f"this client has reported a failure in round {number}, which is final: {found.reason}")
    if found.state == admin_pb2.MEMBER_STATE_QUARANTINED:
        raise UpdateInvalid(found.reason)
    if not found.open:
        raise RoundClosed(f"round {number} of task {found.task.id} is over")


def _pending(found: Membership, number: int) -> Member:
    """The member of an open round that can still report."""
    _check_open(found, number)
    assert found.member is not None  # of every open round
    return found.member


def _still_here(federation: Federation, client: bytes) -> None:
    known = federation.clients.get(client)
    if known is None or known.revoked:
        raise Forbidden("this client was revoked or forgotten while its request was under way")


def _end(
    federation: Federation,
    transaction: Transaction,
    found: Membership,
    client: bytes,
    number: int,
    member: Member,
    *,
    state: admin_pb2.MemberState,
    reason: str = "",
    body_sha256: bytes | None = None,
    bytes_received: int = 0,
    num_examples: int = 0,
    class_counts: tuple[int, ...] | None = None,
    label_distribution: tuple[float, ...] | None = None,
    evaluations: str = "[]",
    blob: bytes | None = None,
) -> None:
    """Write how a pending member ended, and have the view follow."""
    task, current = found.task, found.task.round
    assert isinstance(current, Round)
    row = {
        "t": task.id,
        "r": number,
        "c": client,
        "new_state": state,
        "new_reason": reason,
        "new_body_sha256": body_sha256,
        "new_bytes_received": bytes_received,
        "new_num_examples": num_examples,
        "new_class_counts": None if class_counts is None else json.dumps(class_counts),
        "new_label_distribution": None if label_distribution is None else json.dumps(label_distribution),
        "new_evaluations": evaluations,
        "new_blob": blob,
    }
    transaction.later(_END_MEMBER, row)

    def follow() -> None:
        member.state, member.reason, member.body_sha256 = state, reason, body_sha256
        member.num_examples, member.class_counts, member.blob = num_examples, class_counts, blob
        member.label_distribution = label_distribution
        current.pending -= 1
        if current.pending == 0:
            federation.changed(due=True)

    transaction.after_commit(follow)


def _ended_membership(federation: Federation, client: bytes, task: Task, number: int) -> Membership:
    if not 1 <= number < task.next_round:
        raise Unknown(f"task {task.id} has no round {number}")
    rounds = schema.rounds.c
    joined = schema.members.join(schema.rounds)
    rows = federation.store.read(
        select(_members.state, _members.reason, _members.body_sha256, _members.bundle, _members.sets, rounds.phase)
        .select_from(joined)
        .where(_members.task == task.id, _members.round == number, _members.client == client)
    )
    if not rows:
        raise Forbidden(f"this client was not a member of round {number} of task {task.id}")
    row = rows[0]
    bundle = next(bundle for bundle in task.bundles if bundle.id == row.bundle)
    sets = downloads.from_json(row.sets, lambda _: 0)  # their blobs may be gone
    base = _base(task, row.phase, sets)
    return Membership(task, bundle, row.phase, None, row.state, row.reason, row.body_sha256, open=False, base=base)


def _base(task: Task, phase: int, sets: BlobSets) -> bytes | None:
    name = task.phases[phase].local_plan.upload.base_set
    return next((item.sha256 for item in sets if name and item.name == name), None)
