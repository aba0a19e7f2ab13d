"""The rights that tokens give: to enrol as a client, or to operate the server."""

from dataclasses import dataclass

from fedlens_proto.v1 import admission_pb2, enrolment_pb2
from fedlens_server.errors import Forbidden


@dataclass(frozen=True, kw_only=True)
class TokenGrant:
    """The rights that an enrolment token gives."""

    name: str
    role: enrolment_pb2.ClientRole
    max_uses: int | None = None  # None: any number
    per_minute: int | None = None  # clients; None: any number
    expires_at: float | None = None  # seconds since the epoch; None: never
    revoked: bool = False


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The address from which a client enrols, and how many may from there within a minute."""

    address: str
    per_minute: int


@dataclass(frozen=True, kw_only=True)
class Operator:
    """Somebody who operates the server, by the name of the token."""

    name: str
    role: admission_pb2.TokenRole
    expires_at: float | None = None  # seconds since the epoch; None: never

    def check_may(self, method: str) -> None:
        """Let an operator send a request: reading ones with either role, all others with `operate` alone.

        Raises:
            Forbidden: The role does not allow a request with this HTTP method.
        """
        if method not in ("GET", "HEAD") and self.role != admission_pb2.TOKEN_ROLE_OPERATE:
            found = f"operator {self.name!r} has the role read; this request needs the role operate"
            raise Forbidden(f"{found}; another operator makes a token with `fedlens token new NAME --role operate`")


ADMIN = Operator(name="admin", role=admission_pb2.TOKEN_ROLE_OPERATE)
"""Whoever has the token of the config."""
