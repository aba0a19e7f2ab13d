"""Tokens, which operators give to clients so that they can enrol, and to other operators.

A token's secret is made here, told once, and kept as a hash. The config's own token is none of these.
"""

import secrets
from hashlib import sha256
from typing import Any

from sqlalchemy import Engine, Row, insert, select, update

from fedlens_proto import wire
from fedlens_proto.v1 import admission_pb2, enrolment_pb2
from fedlens_server.engine.operators import audit
from fedlens_server.engine.operators.access import ADMIN, Operator, TokenGrant
from fedlens_server.engine.view import Federation, operation
from fedlens_server.errors import Malformed, TokenExists, Unknown
from fedlens_server.store import Transaction, schema
from fedlens_server.store.dialects import reading

DEFAULT_USES = DEFAULT_PER_MINUTE = 100
MAX_NAME = 100
MAX_TOKENS = 10_000
MAX_USES = 1_000_000_000
MAX_PER_MINUTE = 1_000_000
MAX_LIFE_S = 100 * 365 * 86_400.0
_CLIENT_ROLES = {
    admission_pb2.TOKEN_ROLE_TRAINER: enrolment_pb2.CLIENT_ROLE_TRAINER,
    admission_pb2.TOKEN_ROLE_EVALUATOR: enrolment_pb2.CLIENT_ROLE_EVALUATOR,
}
# HTTP clients drop "." and ".." from an address, so no request could revoke a token of such a name.
_RESERVED = (ADMIN.name, ".", "..")
_OPERATOR_ROLES = (admission_pb2.TOKEN_ROLE_READ, admission_pb2.TOKEN_ROLE_OPERATE)
_columns, _uses = schema.tokens.c, schema.token_uses.c
_ALL = select(schema.tokens, _uses.uses).outerjoin(schema.token_uses, _uses.token == _columns.name)


def hashed(secret: str) -> str:
    """A token as the server keeps it: SHA-256 in hexadecimal."""
    return sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def write(
    transaction: Transaction,
    secret: str,
    *,
    name: str,
    role: admission_pb2.TokenRole,
    now: float,
    max_uses: int | None = DEFAULT_USES,
    per_minute: int | None = DEFAULT_PER_MINUTE,
    expires_at: float | None = None,
) -> None:
    """Write the row of a token that is known to be acceptable; an operator's has no `max_uses` and no `per_minute`."""
    row = {"name": name, "role": role, "sha256": hashed(secret), "max_uses": max_uses, "per_minute": per_minute}
    transaction.execute(insert(schema.tokens), row | {"created_at": now, "expires_at": expires_at})


def load(federation: Federation) -> None:
    """Bring the rights that tokens give into memory."""
    for row in federation.store.read(_ALL):
        _take_up(federation, row)


def operators(engine: Engine) -> dict[str, Operator]:
    """Operators by the hash of their token, for a server that has no view of the database.

    Raises:
        Unavailable: The database cannot be reached.
    """
    rights = select(schema.tokens).where(_columns.role.in_(_OPERATOR_ROLES), _columns.revoked_at.is_(None))
    with reading(), engine.connect() as connection:
        return {row.sha256: _operator(row) for row in connection.execute(rights)}


@operation()
def create(
    federation: Federation, transaction: Transaction, request: admission_pb2.CreateTokenRequest, by: Operator
) -> admission_pb2.CreateTokenResponse:
    """Make a token; the only time that its secret is told.

    Raises:
        Malformed: A value is not acceptable; the text names it.
        TokenExists: There is or was a token of that name.
    """
    values = _checked(request)
    name, now = request.name, federation.clock.now()
    known = transaction.execute(select(_columns.name)).scalars().all()
    if name in known:
        raise TokenExists(f"there is or was a token {name!r}; choose another name")
    if len(known) >= MAX_TOKENS:
        raise Malformed(f"there are {MAX_TOKENS} tokens, which is the most that a server keeps")
    secret = secrets.token_urlsafe(32)
    expires_at = now + request.expires_in_s if request.expires_in_s else None
    write(transaction, secret, name=name, role=request.role, now=now, expires_at=expires_at, **values)
    audit.record(federation, transaction, by, "token new", name, wire.word(admission_pb2.TokenRole, request.role))
    row = transaction.execute(_ALL.where(_columns.name == name)).one()
    transaction.after_commit(lambda: _take_up(federation, row))
    return admission_pb2.CreateTokenResponse(token=_shown(row), secret=secret)


@operation()
def revoke(federation: Federation, transaction: Transaction, name: str, by: Operator) -> None:
    """Let nobody else in by a token; clients that have enrolled with it stay. Again: no effect.

    Raises:
        Unknown: No such token.
    """
    revoke_in(federation, transaction, name, by)


def revoke_in(federation: Federation, transaction: Transaction, name: str, by: Operator) -> None:
    """As `revoke`, in a transaction that does more."""
    row = check_known(transaction, name)
    if row.revoked_at is not None:
        return
    transaction.execute(update(schema.tokens).where(_columns.id == row.id).values(revoked_at=federation.clock.now()))
    audit.record(federation, transaction, by, "token revoke", name)
    changed = transaction.execute(_ALL.where(_columns.id == row.id)).one()
    transaction.after_commit(lambda: _take_up(federation, changed))


def check_known(transaction: Transaction, name: str) -> Row[Any]:
    """The row of a token; raises `Unknown` if there is none."""
    row = transaction.execute(_ALL.where(_columns.name == name)).one_or_none()
    if row is None:
        raise Unknown(f"there is no token {name[:MAX_NAME]!r}")
    return row


def listed(federation: Federation) -> admission_pb2.ListTokensResponse:
    """All tokens; reads the database."""
    return admission_pb2.ListTokensResponse(tokens=map(_shown, federation.store.read(_ALL.order_by(_columns.id))))


def _checked(request: admission_pb2.CreateTokenRequest) -> dict[str, int | None]:
    """The numbers of clients that a new token lets in, after a look at everything that can be wrong with it."""
    name = request.name
    if not name or len(name) > MAX_NAME or not name.isprintable() or name != name.strip() or name in _RESERVED:
        raise Malformed(
            f"name: found {name[:MAX_NAME]!r}, must be 1 to {MAX_NAME} printable characters, not '.' or '..', and not "
            f"{ADMIN.name!r}, the config's own token"
        )
    if not 0 <= request.expires_in_s <= MAX_LIFE_S:
        raise Malformed(f"expires_in_s: found {request.expires_in_s:g}, must be 0 to {MAX_LIFE_S:.0f}")
    if request.role in _OPERATOR_ROLES:
        if request.max_uses or request.per_minute:
            raise Malformed(
                "max_uses, per_minute: leave both out for the roles read and operate, which do not enrol (no --uses)"
            )
        return {"max_uses": None, "per_minute": None}
    if request.role not in _CLIENT_ROLES:
        raise Malformed(f"role: found {request.role}, must be trainer, evaluator, read or operate")
    for key, most in (("max_uses", MAX_USES), ("per_minute", MAX_PER_MINUTE)):
        if getattr(request, key) > most:
            raise Malformed(f"{key}: found {getattr(request, key)}, must be 1 to {most}")
    return {
        "max_uses": request.max_uses or DEFAULT_USES,
        "per_minute": request.per_minute or DEFAULT_PER_MINUTE,
    }


def _take_up(federation: Federation, row: Row[Any]) -> None:
    """Make the view say of a token what its row does."""
    revoked = row.revoked_at is not None
    if row.role in _CLIENT_ROLES:
        federation.grants[row.sha256] = TokenGrant(
            name=row.name,
            role=_CLIENT_ROLES[row.role],
            max_uses=row.max_uses,
            per_minute=row.per_minute,
            expires_at=row.expires_at,
            revoked=revoked,
        )
    elif revoked:
        federation.operators.pop(row.sha256, None)
    else:
        federation.operators[row.sha256] = _operator(row)


def _operator(row: Row[Any]) -> Operator:
    return Operator(name=row.name, role=row.role, expires_at=row.expires_at)


def _shown(row: Row[Any]) -> admission_pb2.Token:
    kept = ("name", "role", "max_uses", "uses", "per_minute", "created_at", "expires_at", "revoked_at")
    values = {key: getattr(row, key) for key in kept}
    return admission_pb2.Token(**{key: value for key, value in values.items() if value is not None})
