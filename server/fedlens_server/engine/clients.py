"""Who takes part: enrolment by token, revoking, forgetting."""

from dataclasses import dataclass, replace

from sqlalchemy import bindparam, delete, insert, select, update
from sqlalchemy.dialects.sqlite import insert as insert_or

from fedlens_proto.v1 import admin_pb2, enrolment_pb2, manifest_pb2
from fedlens_server.engine import garbage, lifecycle
from fedlens_server.engine.view import Client, Federation, Member, Round, Task
from fedlens_server.errors import Forbidden, Malformed, Unauthorised, Unknown
from fedlens_server.store import Transaction, method_state, schema

_clients, _members = schema.clients.c, schema.members.c
_INSERT = insert(schema.clients)
_USES = select(schema.token_uses.c.uses).where(schema.token_uses.c.token == bindparam("grant"))
_USE = insert_or(schema.token_uses).on_conflict_do_update(
    index_elements=["token"], set_={"uses": schema.token_uses.c.uses + 1}
)
_UPDATE_CAPABILITIES = (
    update(schema.clients).where(_clients.id == bindparam("client")).values(capabilities=bindparam("found"))
)


@dataclass(frozen=True, kw_only=True)
class TokenGrant:
    """What an enrolment token of the configuration allows."""

    name: str
    role: enrolment_pb2.ClientRole
    max_uses: int | None = None  # None: any number
    expires_at: float | None = None  # seconds since the epoch; None: never


def capable(
    client: bytes, role: enrolment_pb2.ClientRole, capabilities: enrolment_pb2.Capabilities, *, revoked: bool = False
) -> Client:
    """A client by its role and what it can run."""
    return Client(
        id=client,
        role=role,
        formats=frozenset(capabilities.formats),
        bundle_classes=frozenset(capabilities.bundle_classes),
        models=frozenset(capabilities.models),
        revoked=revoked,
    )


def check_capabilities(capabilities: enrolment_pb2.Capabilities) -> None:
    """See that a client can run anything at all.

    Raises:
        Malformed: It cannot, or says so in terms that are unknown here.
    """
    formats, classes = set(capabilities.formats), set(capabilities.bundle_classes)
    if not formats or not formats <= set(manifest_pb2.ProgramFormat.values()) - {0}:
        raise Malformed(f"capabilities.formats: found {sorted(formats)}, must be one or more known formats")
    if not classes or not classes <= set(manifest_pb2.BundleClass.values()) - {0}:
        raise Malformed(f"capabilities.bundle_classes: found {sorted(classes)}, must be one or more known classes")


def authenticate(federation: Federation, client: bytes) -> Client:
    """An enrolled client.

    Raises:
        Unauthorised: Nobody enrolled with this id, or it was forgotten.
        Forbidden: It was revoked.
    """
    found = federation.clients.get(client)
    if found is None:
        raise Unauthorised("no client is enrolled with this credential; enrol first")
    if found.revoked:
        raise Forbidden("this client was revoked by the operator")
    return found


def enrol(
    federation: Federation,
    transaction: Transaction,
    client: bytes,
    grant: TokenGrant,
    capabilities: enrolment_pb2.Capabilities,
) -> enrolment_pb2.ClientRole:
    """See `Rounds.enrol`."""
    if client in federation.forgotten:
        raise Forbidden("this client was forgotten; its id cannot enrol again")
    raw = capabilities.SerializeToString(deterministic=True)
    known = federation.clients.get(client)
    if known is not None:
        enrolled = capable(client, authenticate(federation, client).role, capabilities)
        if enrolled == known:
            return known.role
        transaction.later(_UPDATE_CAPABILITIES, {"client": client, "found": raw})
    else:
        _use_grant(federation, transaction, grant)
        enrolled = capable(client, grant.role, capabilities)
        row = {"id": client, "role": grant.role, "token": grant.name, "capabilities": raw, "revoked": False}
        transaction.later(_INSERT, {**row, "enrolled_at": federation.clock.now()})

    def follow() -> None:
        federation.clients[client] = enrolled
        for task in federation.tasks.values():
            federation.note_eligible(task, enrolled)
            task.current_sets.pop(client, None)
        lifecycle.start_ready(federation)

    transaction.after_commit(follow)
    return enrolled.role


def revoke(federation: Federation, transaction: Transaction, client: bytes) -> None:
    """See `Rounds.revoke`."""
    known = federation.clients.get(client)
    if known is None:
        raise Unknown(f"there is no client {client.hex()}")
    if known.revoked:
        return
    transaction.execute(update(schema.clients).where(_clients.id == client).values(revoked=True))
    left = _leave_open_rounds(federation, transaction, client)
    revoked = replace(known, revoked=True)

    def follow() -> None:
        federation.clients[client] = revoked
        for task in federation.tasks.values():
            task.eligible.discard(client)
        _left(federation, left)

    transaction.after_commit(follow)


def forget(federation: Federation, transaction: Transaction, client: bytes) -> bool:
    """See `Rounds.forget`."""
    if client not in federation.clients:
        return False
    closing = [task for task in federation.tasks.values() if _is_closing(task)]
    transaction.execute(delete(schema.clients).where(_clients.id == client))
    transaction.execute(insert_or(schema.forgotten).on_conflict_do_nothing(), {"id": client})
    transaction.execute(delete(schema.evaluations).where(schema.evaluations.c.client == client))
    for row in transaction.execute(select(_members.task, _members.round).where(_members.client == client)).all():
        if not any(task.id == row.task and task.round and task.round.number == row.round for task in closing):
            transaction.later(lifecycle.LEAVE_MEMBER, {"t": row.task, "r": row.round, "c": client})
    uploads = {member.blob for _, member in _memberships(federation, client) if member.blob is not None}
    left = _leave_open_rounds(federation, transaction, client)
    dropped = {
        task.id: method_state.of_clients(task.values, {client})
        for task in federation.tasks.values()
        if task not in closing
    }
    freed = set(uploads)
    instead: dict[int, garbage.Holding] = {}
    for task_id, names in dropped.items():
        task = federation.tasks[task_id]
        method_state.remove(transaction, task_id, names)
        freed.update(task.kept_blobs[name] for name in names if name in task.kept_blobs)
        kept = {name: digest for name, digest in task.kept_blobs.items() if name not in names}
        instead[task_id] = kept, _without(task.round, client), task.evaluation
    garbage.delete_now(federation, transaction, freed, instead)

    def follow() -> None:
        federation.forgotten.add(client)
        del federation.clients[client]
        for task in federation.tasks.values():
            task.eligible.discard(client)
            task.current_sets.pop(client, None)
            if names := dropped.get(task.id):
                task.values = {name: value for name, value in task.values.items() if name not in names}
                task.kept_blobs = {name: blob for name, blob in task.kept_blobs.items() if name not in names}
        _left(federation, left)

    transaction.after_commit(follow)
    return any(
        _is_closing(task) and member.state == admin_pb2.MEMBER_STATE_REPORTED
        for task, member in _memberships(federation, client)
    )


def _use_grant(federation: Federation, transaction: Transaction, grant: TokenGrant) -> None:
    if grant.expires_at is not None and federation.clock.now() >= grant.expires_at:
        raise Forbidden(f"enrolment token {grant.name!r} has expired")
    if grant.max_uses is not None:
        # From the database, which counts those that enrolled earlier in the same commit.
        uses = transaction.execute(_USES, {"grant": grant.name}).scalar() or 0
        if uses >= grant.max_uses:
            raise Forbidden(f"enrolment token {grant.name!r} has been used {uses} times, which is all it allows")
    transaction.execute(_USE, {"token": grant.name, "uses": 1})


def _memberships(federation: Federation, client: bytes) -> list[tuple[Task, Member]]:
    return [
        (task, task.round.members[client])
        for task in federation.tasks.values()
        if task.round is not None and client in task.round.members
    ]


def _is_closing(task: Task) -> bool:
    return task.round is not None and task.round.state == admin_pb2.ROUND_STATE_CLOSING


def _leave_open_rounds(federation: Federation, transaction: Transaction, client: bytes) -> list[tuple[Round, Member]]:
    left = []
    for task, member in _memberships(federation, client):
        if task.round is not None and not _is_closing(task):
            transaction.later(lifecycle.LEAVE_MEMBER, {"t": task.id, "r": task.round.number, "c": client})
            left.append((task.round, member))
    return left


def _left(federation: Federation, left: list[tuple[Round, Member]]) -> None:
    for current, member in left:
        current.pending -= member.state == admin_pb2.MEMBER_STATE_PENDING
        member.state, member.reason = admin_pb2.MEMBER_STATE_LEFT, ""
        member.sets = ()
        member.body_sha256 = member.blob = member.class_counts = None
        member.num_examples = 0
        federation.changed([current.task], due=True)


def _without(current: Round | None, client: bytes) -> Round | None:
    if current is None or client not in current.members:
        return current
    return replace(current, members={key: member for key, member in current.members.items() if key != client})
