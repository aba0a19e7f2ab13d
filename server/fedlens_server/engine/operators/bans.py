"""Bans: operators shut clients out, one or all that enrolled with a token, and let them in again."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from sqlalchemy import select, update

from fedlens_server.engine import rounds
from fedlens_server.engine.arrivals import participation
from fedlens_server.engine.clients import leave_open_rounds
from fedlens_server.engine.operators import audit, tokens
from fedlens_server.engine.operators.access import Operator
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import Malformed, Unknown
from fedlens_server.store import Transaction, schema

MAX_REASON = 500
_clients = schema.clients.c


@operation()
def ban(federation: Federation, transaction: Transaction, client: bytes, reason: str, by: Operator) -> bool:
    """Shut a client out from its next request on; it leaves open rounds. False: it was banned, and nothing changes.

    Raises:
        Unknown: No such client.
        Malformed: The reason is too long.
    """
    if _known(federation, client):
        return False
    audit.record(federation, transaction, by, "client ban", client.hex(), _checked(reason))
    _shut_out(federation, transaction, [client], reason)
    return True


@operation()
def unban(federation: Federation, transaction: Transaction, client: bytes, by: Operator) -> bool:
    """Let a client in again. False: it was not banned, and nothing changes.

    Raises:
        Unknown: No such client.
    """
    if not _known(federation, client):
        return False
    audit.record(federation, transaction, by, "client unban", client.hex())
    _let_in(federation, transaction, [client])
    return True


@operation()
def ban_token(federation: Federation, transaction: Transaction, token: str, reason: str, by: Operator) -> int:
    """Revoke a token and shut out all that enrolled with it; the number of those that were not yet.

    Raises:
        Unknown: No such token.
        Malformed: The reason is too long.
    """
    tokens.revoke_in(federation, transaction, token, by)
    found = _of_token(federation, transaction, token, banned=False)
    audit.record(federation, transaction, by, "client ban --token", token, _checked(reason))
    _shut_out(federation, transaction, found, reason)
    return len(found)


@operation()
def unban_token(federation: Federation, transaction: Transaction, token: str, by: Operator) -> int:
    """Let in again all clients that enrolled with a token, which stays revoked; their number.

    Raises:
        Unknown: No such token.
    """
    tokens.check_known(transaction, token)
    found = _of_token(federation, transaction, token, banned=True)
    audit.record(federation, transaction, by, "client unban --token", token)
    _let_in(federation, transaction, found)
    return len(found)


def _known(federation: Federation, client: bytes) -> bool:
    """Tell whether a client is banned now."""
    found = federation.clients.get(client)
    if found is None:
        raise Unknown(f"there is no client {client.hex()}")
    return found.profile.revoked


def _checked(reason: str) -> str:
    if len(reason) > MAX_REASON:
        raise Malformed(f"reason: found {len(reason)} characters, must be at most {MAX_REASON}")
    return reason


def _of_token(federation: Federation, transaction: Transaction, token: str, *, banned: bool) -> list[bytes]:
    ids = transaction.execute(select(_clients.id).where(_clients.token == token)).scalars()
    return [client for client in ids if federation.clients[client].profile.revoked == banned]


def _shut_out(federation: Federation, transaction: Transaction, clients: list[bytes], reason: str) -> None:
    now = federation.clock.now()
    _write(transaction, clients, banned_at=now, ban_reason=reason)
    for client in clients:
        leave_open_rounds(federation, transaction, client)
    transaction.after_commit(partial(_follow, federation, clients, True))


def _let_in(federation: Federation, transaction: Transaction, clients: list[bytes]) -> None:
    _write(transaction, clients, banned_at=None, ban_reason=None)
    transaction.after_commit(partial(_follow, federation, clients, False))
    transaction.after_commit(partial(rounds.start_ready, federation))


def _write(transaction: Transaction, clients: list[bytes], **values: float | str | None) -> None:
    for start in range(0, len(clients), 500):
        some = clients[start : start + 500]
        transaction.execute(update(schema.clients).where(_clients.id.in_(some)).values(**values))


def _follow(federation: Federation, clients: Iterable[bytes], banned: bool) -> None:
    for client in clients:
        profile = replace(federation.clients[client].profile, revoked=banned)
        federation.clients.put(client, profile)
        participation.profile_changed(federation, client, profile)
    federation.changed(clients=clients)
