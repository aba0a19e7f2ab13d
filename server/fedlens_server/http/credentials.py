"""Credentials: from the Authorization header to a client's id, or to an operator.

The server keeps ids and hashes, never a secret or a token, and none is ever part of an error text.
"""

import base64
import hmac
import re
from hashlib import sha256

from aiohttp import hdrs, web

from fedlens_proto import keyed_hash
from fedlens_server.errors import Unauthorised

_SECRET = re.compile("[A-Za-z0-9_-]{43}=?")


def client_id(request: web.Request) -> bytes:
    """The id, 32 bytes, of the client whose secret this request carries.

    Raises:
        Unauthorised: No bearer credential, or one that is no base64url of 32 bytes.
    """
    bearer = _bearer(request)
    if not _SECRET.fullmatch(bearer):
        raise Unauthorised("the bearer credential must be the base64url form of 32 bytes")
    return keyed_hash.client_id(base64.urlsafe_b64decode(bearer.rstrip("=") + "="))


def require_operator(request: web.Request, token_sha256: str) -> None:
    """Let an operator through.

    Raises:
        Unauthorised: No bearer credential, or not the operators' token.
    """
    if not hmac.compare_digest(token_hash(_bearer(request)), token_sha256):
        raise Unauthorised("this is not the operators' token of this server")


def token_hash(token: str) -> str:
    """A token as the config holds it: SHA-256 in hexadecimal."""
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _bearer(request: web.Request) -> str:
    scheme, _, value = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() != "bearer" or not value.strip():
        raise Unauthorised("the request needs an Authorization header: Bearer, a space, the credential")
    return value.strip()
