"""Credentials: from the Authorization header to a client's id, or to an operator.

The server keeps ids and hashes, never a secret or a token, and none is ever part of an error text.
"""

import base64
import hmac
import re
from collections.abc import Mapping

from aiohttp import hdrs, web

from fedlens_proto import keyed_hash
from fedlens_server.engine.operators.access import ADMIN, Operator
from fedlens_server.errors import Unauthorised
from fedlens_server.telemetry import events

_SECRET = re.compile("[A-Za-z0-9_-]{43}=?")


def client_id(request: web.Request) -> bytes:
    """The id, 32 bytes, of the client whose secret this request carries.

    Raises:
        Unauthorised: No bearer credential, or one that is no base64url of 32 bytes.
    """
    found = bearer(request)
    if not _SECRET.fullmatch(found):
        raise Unauthorised("the bearer credential must be the base64url form of 32 bytes")
    client = keyed_hash.client_id(base64.urlsafe_b64decode(found.rstrip("=") + "="))
    if (seen := events.REQUEST.get()) is not None:
        seen.client = client
    return client


def operator(found: str, configured_sha256: str, known: Mapping[str, Operator], now: float) -> Operator:
    """The operator who has a token.

    Args:
        found: SHA-256 of the token, in hexadecimal.
        configured_sha256: SHA-256 of the config's token, in hexadecimal.
        known: Operators by the SHA-256 of their tokens.
        now: Seconds since the epoch.

    Raises:
        Unauthorised: It is no operator's, was revoked, or has expired.
    """
    if hmac.compare_digest(found, configured_sha256):
        return ADMIN
    if found not in known:
        raise Unauthorised(
            "this is no operator's token of this server, or it was revoked; "
            "this address is for operators, clients have another"
        )
    if (expires_at := known[found].expires_at) is not None and now >= expires_at:
        raise Unauthorised(f"operator's token {known[found].name!r} has expired")
    return known[found]


def bearer(request: web.Request) -> str:
    """The credential that a request carries.

    Raises:
        Unauthorised: There is none.
    """
    scheme, _, value = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() != "bearer" or not value.strip():
        raise Unauthorised("the request needs an Authorization header: Bearer, a space, the credential")
    return value.strip()
