"""Enrolled clients in memory: of each its id, and a profile that it shares with all clients like it.

A server knows many clients and few kinds of them. Whether a task suits a client follows from the profile alone, so it
is decided once a profile, and clients are counted without looking at each.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from fedlens_proto.v1 import enrolment_pb2

ANY_TABLE = "*"
"""As one of a client's tables: it sends any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The properties that clients have in common; `raw` is the canonical message of their capabilities."""

    role: enrolment_pb2.ClientRole
    raw: bytes
    revoked: bool = False  # banned by an operator
    # By number of a task whether it suits these clients; known once asked, and gone with the last of them.
    suits: dict[int, bool] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def capabilities(self) -> enrolment_pb2.Capabilities:
        """The capabilities that the clients enrolled with; not to be changed."""
        return _capabilities(self.raw)

    @property
    def is_trainer(self) -> bool:
        """True for trainers, false for evaluators."""
        return self.role == enrolment_pb2.CLIENT_ROLE_TRAINER

    def sends(self, asked: Collection[str]) -> bool:
        """Tell whether the client lets all that has these names leave the device."""
        allowed = self.capabilities.tables
        return ANY_TABLE in allowed or all(name in allowed for name in asked)


# Strangers can enrol with as many kinds of capabilities as there are clients, and a message is large beside its bytes.
@lru_cache(1024)
def _capabilities(raw: bytes) -> enrolment_pb2.Capabilities:
    return enrolment_pb2.Capabilities.FromString(raw)


@dataclass(frozen=True, slots=True)
class Client:
    """An enrolled client."""

    id: bytes
    profile: Profile

    @property
    def role(self) -> enrolment_pb2.ClientRole:
        """The role of its enrolment token."""
        return self.profile.role


class Enrolled(Mapping[bytes, Client]):
    """The enrolled clients by id. It changes on the writing thread alone; others read it at any time."""

    def __init__(self) -> None:
        """Nobody has enrolled."""
        self._kinds: dict[bytes, _Kind] = {}
        self._by_profile: dict[Profile, _Kind] = {}

    def __getitem__(self, client: bytes) -> Client:
        """A client by its id."""
        return Client(client, self._kinds[client].profile)

    def __iter__(self) -> Iterator[bytes]:
        """The ids as they are now, in the order of enrolment."""
        return iter(list(self._kinds))

    def __len__(self) -> int:
        """The number of clients."""
        return len(self._kinds)

    def put(self, client: bytes, profile: Profile) -> None:
        """Add a client, or replace its profile."""
        self._leave_kind(client)
        kind = self._by_profile.get(profile)
        if kind is None:
            kind = self._by_profile[profile] = _Kind(profile)
        self._kinds[client] = kind
        kind.clients += 1

    def remove(self, client: bytes) -> None:
        """Take a client out."""
        self._leave_kind(client)
        del self._kinds[client]

    def count(self, suits: Callable[[Profile], bool]) -> int:
        """The number of clients whose profile suits."""
        return sum(kind.clients for kind in list(self._by_profile.values()) if suits(kind.profile))

    def has(self, suits: Callable[[Profile], bool], but_for: Collection[bytes]) -> bool:
        """Tell whether a client other than these has a profile that suits; takes a moment for each enrolled client."""
        return any(client not in but_for and suits(kind.profile) for client, kind in self._kinds.copy().items())

    def ids(self, suits: Callable[[Profile], bool]) -> list[bytes]:
        """The ids of the clients whose profile suits, ascending; takes a moment for each enrolled client."""
        return sorted(client for client, kind in self._kinds.copy().items() if suits(kind.profile))

    def _leave_kind(self, client: bytes) -> None:
        kind = self._kinds.get(client)
        if kind is None:
            return
        kind.clients -= 1
        if kind.clients == 0:
            del self._by_profile[kind.profile]


@dataclass(slots=True)
class _Kind:
    profile: Profile
    clients: int = 0
