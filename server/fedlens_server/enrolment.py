"""Who takes part: enrolment by token, revoking, forgetting."""

from dataclasses import dataclass

from fedlens_proto.v1 import enrolment_pb2


@dataclass(frozen=True, kw_only=True)
class TokenGrant:
    """What an enrolment token of the configuration allows."""

    name: str
    role: enrolment_pb2.ClientRole
    max_uses: int | None = None  # None: any number
    expires_at: float | None = None  # seconds since the epoch; None: never
