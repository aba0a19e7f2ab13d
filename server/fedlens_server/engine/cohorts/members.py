"""Rounds and their members: rows of the database, as requests are answered from them."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self

from sqlalchemy import Row, bindparam, update

from fedlens_proto.v1 import admin_pb2, assignment_pb2
from fedlens_server.engine.cohorts.held_places import HeldPlaces
from fedlens_server.planning.method import Norms
from fedlens_server.store import columns, schema
from fedlens_server.store.columns import BlobSets
from fedlens_server.store.dialects import insert

_LISTS = ("class_counts", "label_distribution", "norms")  # columns of JSON


class RoundKey(NamedTuple):
    """One round of one task."""

    task: int
    round: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One client in a round: a row of the table `members`, each field the column of its name."""

    bundle: bytes  # digest
    phase: int = 0  # whose local plan it carries out: the round's, or an earlier one that it has missed
    sets: BlobSets = ()
    state: admin_pb2.MemberState = admin_pb2.MEMBER_STATE_PENDING
    reason: str = ""
    body_sha256: bytes | None = None
    bytes_received: int = 0
    num_examples: int = 0
    class_counts: tuple[int, ...] | None = None
    label_distribution: tuple[float, ...] | None = None
    norms: Norms | None = None  # of the uploaded weights
    evaluations: str = "[]"  # JSON, as `evaluation.to_json` writes it; in the view always empty
    blobs: Mapping[str, bytes] = field(default_factory=dict)  # digest by upload, in the local plan's order

    @property
    def is_stored(self) -> bool:
        """True if its update was stored, whether or not a rule then left it out of the round."""
        return self.state in (admin_pb2.MEMBER_STATE_REPORTED, admin_pb2.MEMBER_STATE_EXCLUDED)

    def columns(self) -> dict[str, Any]:
        """The values for the database."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        lists = {name: json.dumps(values[name]) for name in _LISTS if values[name] is not None}
        blobs = columns.digests_to_json(self.blobs)
        return values | lists | {"sets": columns.sets_to_json(self.sets), "blobs": blobs}

    @classmethod
    def of_row(cls, row: Row[Any], size: Callable[[bytes], int]) -> Self:
        """The member that `columns` described; `size` gives the bytes of a blob by digest."""
        values: dict[str, Any] = {each.name: getattr(row, each.name) for each in fields(cls)}
        values |= {name: tuple(json.loads(values[name])) for name in _LISTS if values[name] is not None}
        values["norms"] = None if row.norms is None else Norms(*values["norms"])
        sets, blobs = columns.sets_from_json(row.sets, size), columns.digests_from_json(row.blobs)
        return cls(**values | {"sets": sets, "blobs": blobs, "evaluations": "[]"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Participation:
    """A client in the past rounds of a task that selects by arrival: a row of the table `participants`."""

    last_round: int = 0  # in which it reported; 0: none
    times: int = 0
    misses: int = 0  # places in a row without a report
    quarantines: int = 0
    sits_out_until: float = 0.0  # seconds since the epoch


@dataclass(kw_only=True)
class Round:
    """A round that has not ended.

    Attributes:
        task: Its id.
        number: From 1.
        phase: Index of the phase.
        state: Open or closing.
        deadline: When it may end without all it waits for, by `Clock.elapsed`; infinite before the first place is
            given.
        started: When it opened, or its first place was given, by `Clock.elapsed`; None: it waits for that.
        members: By client id, ascending; of a round that takes arrivals, in the order of their places.
        sitting_out: Clients to whom the method gives nothing in this phase.
        population: Eligible clients when it opened, ascending by id; empty if it takes arrivals.
        bytes_sent: Of blobs, to members.
        held: The members that hold a place; None: members were drawn, and have until `deadline`.
        free_since: The time since which it has had a free place; None: it has none.
        ended_by: The operator who ended it early; empty: nobody.
        late: Members whose updates came when it was closing.
        returned: Members that were not reached with their place, and so have not left it unused.
        fault: Why the method could give nobody a place; the round is abandoned for it. Empty: it could.
        report_s: Seconds from place to report, of each member that had its place until then.
        encoded: Downloads by the digest of the stored set that they were made from.
    """

    task: int
    number: int
    phase: int
    state: admin_pb2.RoundState
    deadline: float
    started: float | None
    members: dict[bytes, Member]
    sitting_out: frozenset[bytes]
    population: tuple[bytes, ...]
    bytes_sent: int = 0
    held: HeldPlaces | None = None
    free_since: float | None = None
    ended_by: str = ""
    late: set[bytes] = field(default_factory=set)
    returned: set[bytes] = field(default_factory=set)
    fault: str = ""
    report_s: list[float] = field(default_factory=list)
    encoded: dict[bytes, assignment_pb2.BlobSet] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count the members by state, but for those that catch up with an earlier phase."""
        self.counts = Counter(member.state for member in self.members.values() if member.phase == self.phase)

    @property
    def pending(self) -> int:
        """The number of members that have neither reported nor failed nor left."""
        return self.counts[admin_pb2.MEMBER_STATE_PENDING]

    @property
    def reported(self) -> int:
        """The number of members whose updates are stored."""
        return self.counts[admin_pb2.MEMBER_STATE_REPORTED]

    @property
    def failures(self) -> int:
        """The number of members that have failed or are quarantined."""
        return self.counts[admin_pb2.MEMBER_STATE_FAILED] + self.counts[admin_pb2.MEMBER_STATE_QUARANTINED]

    def holds_place(self, client: bytes, now: float) -> bool:
        """Tell whether a client is a member that may still report and holds its place."""
        member = self.members.get(client)
        if member is None or member.state != admin_pb2.MEMBER_STATE_PENDING:
            return False
        return now < self.until(client)

    def until(self, client: bytes) -> float:
        """The time until which a member holds its place, by `Clock.elapsed`."""
        return self.deadline if self.held is None else self.held.until(client)

    @property
    def key(self) -> RoundKey:
        """The round's name."""
        return RoundKey(self.task, self.number)

    @property
    def closing(self) -> bool:
        """True once its updates are frozen."""
        return self.state == admin_pb2.ROUND_STATE_CLOSING


_insert = insert(schema.members)
WRITE_MEMBER = _insert.on_conflict_do_update(
    index_elements=["task", "round", "client"],
    set_={each.name: _insert.excluded[each.name] for each in fields(Member)},
)
_members = schema.members.c
_absent = Member(bundle=b"", state=admin_pb2.MEMBER_STATE_LEFT).columns()
UPDATE_MEMBER = update(schema.members).where(
    _members.task == bindparam("t"), _members.round == bindparam("r"), _members.client == bindparam("c")
)
# The row alone knows bundle and phase.
LEAVE_ENDED_ROUND = UPDATE_MEMBER.values(
    {name: value for name, value in _absent.items() if name not in ("bundle", "phase")}
)
EXCLUDE_MEMBER = UPDATE_MEMBER.values(state=bindparam("state"), reason=bindparam("reason"))


def member_row(current: Round, client: bytes, member: Member) -> dict[str, Any]:
    """The values for `WRITE_MEMBER`."""
    return {"task": current.task, "round": current.number, "client": client, **member.columns()}
