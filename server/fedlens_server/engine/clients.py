"""Clients: enrolment by token, forgetting."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import ceil

from sqlalchemy import bindparam, delete, insert, select, update

from fedlens_proto import wire
from fedlens_proto.v1 import admin_pb2, enrolment_pb2, manifest_pb2
from fedlens_server.engine import garbage, rounds, view
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.cohorts.members import LEAVE_ENDED_ROUND, Member, Round
from fedlens_server.engine.enrolled import Profile
from fedlens_server.engine.garbage import Holding
from fedlens_server.engine.operators.access import Origin, TokenGrant
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import Forbidden, Malformed, SlowDown
from fedlens_server.store import Transaction, method_state, schema
from fedlens_server.store.dialects import insert as insert_or
from fedlens_server.store.method_state import Key
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

_clients, _members = schema.clients.c, schema.members.c
_INSERT = insert(schema.clients)
_USES = select(schema.token_uses.c.uses).where(schema.token_uses.c.token == bindparam("grant"))
_USE = insert_or(schema.token_uses).on_conflict_do_update(
    index_elements=["token"], set_={"uses": schema.token_uses.c.uses + 1}
)
_WAS_FORGOTTEN = select(schema.forgotten).where(schema.forgotten.c.id == bindparam("client"))
_SEEN = "last seen"  # as the key of an operation that no other one depends on
_SAW = update(schema.clients).where(_clients.id == bindparam("client")).values(last_seen=bindparam("at"))
_UPDATE_CAPABILITIES = (
    update(schema.clients).where(_clients.id == bindparam("client")).values(capabilities=bindparam("found"))
)


@operation(lambda client, *_: client)
def enrol(
    federation: Federation,
    transaction: Transaction,
    client: bytes,
    grant: TokenGrant,
    capabilities: enrolment_pb2.Capabilities,
    origin: Origin | None = None,
) -> enrolment_pb2.ClientRole:
    """Make a client known; its role. A client that has enrolled before keeps its role and uses nothing of the token.

    `origin` is None where no limit by address holds.

    Raises:
        Malformed: The capabilities are empty or unknown here.
        Forbidden: Banned or forgotten; or the token was revoked, has expired or is used up.
        SlowDown: Too many clients enrol with the token, or from the address.
    """
    _check_capabilities(capabilities)
    if transaction.execute(_WAS_FORGOTTEN, {"client": client}).first() is not None:
        raise Forbidden("this client was forgotten; its id cannot enrol again")
    raw = capabilities.SerializeToString(deterministic=True)
    if client in federation.clients:
        known = federation.authenticate(client).profile
        profile = replace(known, raw=raw)
        if profile == known:
            return known.role
        transaction.later(_UPDATE_CAPABILITIES, {"client": client, "found": raw})
    else:
        _use_grant(federation, transaction, grant, origin)
        profile = Profile(role=grant.role, raw=raw)
        row = {"id": client, "role": grant.role, "token": grant.name, "capabilities": raw}
        transaction.later(_INSERT, {**row, "enrolled_at": federation.clock.now()})
        role = wire.word(enrolment_pb2.ClientRole, grant.role)
        transaction.after_commit(partial(events.note, Event.ENROLLED, role=role, token=grant.name, client=client))

    def follow() -> None:
        federation.clients.put(client, profile)
        participation.profile_changed(federation, client, profile)
        for task in federation.tasks.values():
            task.current_models.pop(client, None)
        rounds.start_ready(federation)

    transaction.after_commit(follow)
    return profile.role


@operation(lambda seen: _SEEN)
def note_seen(federation: Federation, transaction: Transaction, seen: Mapping[bytes, float]) -> None:
    """Store when clients were last seen, by `Clock.elapsed`, for the count of those present after a restart."""
    started = federation.clock.now() - federation.clock.elapsed()
    for client, when in seen.items():
        transaction.later(_SAW, {"client": client, "at": started + when})


@operation()
def forget(federation: Federation, transaction: Transaction, client: bytes) -> bool:
    """Delete all data of a client; True if an update of it is just being aggregated."""
    if client not in federation.clients:
        return False
    transaction.execute(delete(schema.clients).where(_clients.id == client))
    transaction.execute(insert_or(schema.forgotten).on_conflict_do_nothing(), {"id": client})
    for table in (schema.evaluations, schema.participants):
        transaction.execute(delete(table).where(table.c.client == client))
    memberships = _memberships(federation, client)
    current_keys = {current.key for current, _ in memberships}
    for row in transaction.execute(select(_members.task, _members.round).where(_members.client == client)).all():
        if (row.task, row.round) not in current_keys:
            transaction.later(LEAVE_ENDED_ROUND, {"t": row.task, "r": row.round, "c": client})
    freed = {digest for _, member in memberships for digest in member.blobs.values()}
    dropped: dict[int, frozenset[Key]] = {}  # entries of the state by task
    instead: dict[int, Holding] = {}
    for task in federation.tasks.values():
        if task.round is not None and task.round.closing:
            continue  # from its state the client goes with the end of the round
        keys = dropped[task.id] = method_state.of_clients(task.values, {client})
        method_state.remove(transaction, task.id, keys)
        freed |= {task.state_blobs[key] for key in keys if key in task.state_blobs}
        kept = {key: digest for key, digest in task.state_blobs.items() if key not in keys}
        instead[task.id] = Holding(kept, _without(task.round, client), task.evaluation, task.copies)
    garbage.delete_now(federation, transaction, freed, instead)

    def follow() -> None:
        federation.forgotten.add(client)
        federation.clients.remove(client)
        federation.presence.forget(client)
        federation.answers.forget(client)
        for task in federation.tasks.values():
            task.current_models.pop(client, None)
            task.participations.pop(client, None)
            task.present.forget(client)
            if keys := dropped.get(task.id):
                task.values = method_state.without_clients(task.values, {client})
                task.state_blobs = {key: blob for key, blob in task.state_blobs.items() if key not in keys}
        federation.changed(clients=[client])
        events.note(Event.FORGOTTEN, client=client)

    transaction.after_commit(follow)
    leave_open_rounds(federation, transaction, client)
    return any(current.closing and member.state == admin_pb2.MEMBER_STATE_REPORTED for current, member in memberships)


def _check_capabilities(capabilities: enrolment_pb2.Capabilities) -> None:
    formats, classes = set(capabilities.formats), set(capabilities.bundle_classes)
    if not formats or not formats <= set(manifest_pb2.ProgramFormat.values()) - {0}:
        raise Malformed(f"capabilities.formats: found {sorted(formats)}, must be one or more known formats")
    if not classes or not classes <= set(manifest_pb2.BundleClass.values()) - {0}:
        raise Malformed(f"capabilities.bundle_classes: found {sorted(classes)}, must be one or more known classes")
    if capabilities.plan_format < 1:
        raise Malformed("capabilities.plan_format: found 0 or nothing, must be 1 or more")


def _use_grant(federation: Federation, transaction: Transaction, grant: TokenGrant, origin: Origin | None) -> None:
    if grant.revoked:
        raise Forbidden(f"enrolment token {grant.name!r} was revoked")
    if grant.expires_at is not None and federation.clock.now() >= grant.expires_at:
        raise Forbidden(f"enrolment token {grant.name!r} has expired")
    if grant.max_uses is not None:
        # From the database, which counts those that enrolled earlier in the same commit.
        uses = transaction.execute(_USES, {"grant": grant.name}).scalar() or 0
        if uses >= grant.max_uses:
            raise Forbidden(f"enrolment token {grant.name!r} has been used {uses} times, which is all it allows")
    paces = {}
    if grant.per_minute is not None:
        paces[f"with enrolment token {grant.name!r}"] = grant.per_minute
    if origin is not None:
        paces[f"from {origin.address}"] = origin.per_minute
    _keep_to_paces(federation, paces)
    transaction.execute(_USE, {"token": grant.name, "uses": 1})


def _keep_to_paces(federation: Federation, paces: Mapping[str, int]) -> None:
    """Let in one client an interval, or after a pause as many at once as fit into a minute, by each of these paces."""
    now, due_by_pace = federation.clock.elapsed(), federation.enrolments_due
    while due_by_pace and due_by_pace[oldest := next(iter(due_by_pace))] <= now:
        del due_by_pace[oldest]
    next_due = {}
    for pace, per_minute in paces.items():
        interval_s = 60.0 / per_minute
        due = max(due_by_pace.get(pace, now), now)  # when this client would come at an even pace
        early_s = due - now - (60.0 - interval_s)
        if early_s > 1e-6:
            raise SlowDown(
                f"at most {per_minute} clients a minute may enrol {pace}, and as many have; try again later",
                ceil(1000 * early_s),
            )
        next_due[pace] = due + interval_s
    for pace, due in next_due.items():
        due_by_pace.pop(pace, None)  # the latest ones stand last
        due_by_pace[pace] = due


def _memberships(federation: Federation, client: bytes) -> list[tuple[Round, Member]]:
    """The rounds that have not ended and that the client is a member of."""
    current = [task.round for task in federation.tasks.values() if task.round is not None]
    return [(each, each.members[client]) for each in current if client in each.members]


def leave_open_rounds(federation: Federation, transaction: Transaction, client: bytes) -> None:
    """Take a client and its update out of the rounds that are not closing yet."""
    for current, member in _memberships(federation, client):
        if not current.closing:
            left = Member(bundle=member.bundle, phase=member.phase, state=admin_pb2.MEMBER_STATE_LEFT)
            view.write_member(federation, transaction, current, client, left)


def _without(current: Round | None, client: bytes) -> Round | None:
    if current is None or client not in current.members:
        return current
    return replace(current, members={key: member for key, member in current.members.items() if key != client})
