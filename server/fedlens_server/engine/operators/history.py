"""The rounds of a task for people who look at them: the one under way, and past ones some at a time, with figures."""

import json
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, isqrt
from statistics import fmean

from sqlalchemy import cast, func, select

from fedlens_proto.v1 import admin_pb2, update_pb2
from fedlens_server.engine import evaluation
from fedlens_server.engine.arrivals.places import free_places
from fedlens_server.engine.task import Task
from fedlens_server.engine.view import Federation
from fedlens_server.store import schema
from fedlens_server.store.dialects import INTEGER

MAX_KEPT = 20_000  # rounds whose figures are kept in memory
MAX_AWAITED = 50
_LEFT_OUT = (admin_pb2.MEMBER_STATE_FAILED, admin_pb2.MEMBER_STATE_QUARANTINED, admin_pb2.MEMBER_STATE_EXCLUDED)
_rounds, _members, _evaluations = schema.rounds.c, schema.members.c, schema.evaluations.c
# A sum of PostgreSQL is a numeric.
_received = cast(func.sum(_members.bytes_received), INTEGER)


@dataclass(frozen=True, kw_only=True)
class RoundUnderWay:
    """A round that has not ended.

    Attributes:
        number: From 1.
        phase: The method's name of it; empty: the task is suspended.
        state: Open or closing.
        wanted: Updates that it waits for; None: those of all that come.
        free: Places that are free.
        counts: Members by state.
        ends_in_s: Seconds until its deadline; negative: it is overdue; None: nobody has a place yet.
        awaited: Some members that may still report, with the seconds that each has, least first.
        more: The number of further ones.
        paused: It gives no places.
    """

    number: int
    phase: str
    state: admin_pb2.RoundState
    wanted: int | None
    free: int
    counts: Counter[admin_pb2.MemberState]
    ends_in_s: float | None
    awaited: Sequence[tuple[bytes, float]]
    more: int
    paused: bool


@dataclass(frozen=True, kw_only=True)
class PastRound:
    """A round as the database has it, perhaps still under way.

    Attributes:
        number: From 1.
        phase: Its index.
        state: Its state.
        reason: Why it was abandoned or undone.
        opened_at: Seconds since the epoch.
        ended_at: Seconds since the epoch; None: it goes on.
        bytes_sent: Of blobs, to members.
        bytes_received: Of updates.
        counts: Members by state.
        accuracy: Of the committed model, by evaluators, 0 to 1; None: not measured.
        personal: Mean over clients of their accuracies, by label, 0 to 1.
    """

    number: int
    phase: int
    state: admin_pb2.RoundState
    reason: str
    opened_at: float
    ended_at: float | None
    bytes_sent: int
    bytes_received: int
    counts: Counter[admin_pb2.MemberState]
    accuracy: float | None
    personal: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A member that failed, or whose update was left out of its round."""

    round: int
    client: bytes
    state: admin_pb2.MemberState
    reason: str


@dataclass(frozen=True, kw_only=True)
class ClassAccuracy:
    """Test photos of one class, and those of them that a model recognised."""

    name: str
    photos: int
    correct: int


class History:
    """Figures of rounds, of which those that no longer change are computed once."""

    def __init__(self) -> None:
        """Nothing is kept yet."""
        self._personal: OrderedDict[tuple[int, int], dict[str, float]] = OrderedDict()

    def rounds(self, federation: Federation, task: Task, most: int, before: int | None = None) -> list[PastRound]:
        """The latest rounds, at most so many and before a number, the latest first; reads the database."""
        current = task.round  # before the rows, which hold what it has sent once it has ended
        query = select(schema.rounds).where(_rounds.task == task.id)
        if before is not None:
            query = query.where(_rounds.number < before)
        rows = federation.store.read(query.order_by(_rounds.number.desc()).limit(most))
        if not rows:
            return []
        first, last = rows[-1].number, rows[0].number
        of_members = (_members.task == task.id, _members.round.between(first, last))
        counted, measured = federation.store.read_together(
            select(
                *(_members.round, _members.state),
                *(func.count().label("members"), _received.label("received")),
            )
            .where(*of_members)
            .group_by(_members.round, _members.state),
            select(_evaluations.round, _evaluations.evaluations).where(
                _evaluations.task == task.id, _evaluations.round.between(first, last)
            ),
        )
        counts: dict[int, Counter[admin_pb2.MemberState]] = defaultdict(Counter)
        received: Counter[int] = Counter()
        listed = [(row.round, row.state, row.members, row.received) for row in counted]
        unlisted = [(row.number, *each) for row in rows for each in json.loads(row.unlisted or "[]")]
        for number, state, members, size in [*listed, *unlisted]:
            counts[number][state] += members
            received[number] += size
        sums: dict[int, list[update_pb2.EvaluationSums]] = defaultdict(list)
        for row in measured:
            sums[row.round] += evaluation.from_json(row.evaluations)
        personal = self._personal_of(
            federation, task, {row.number for row in rows}, {r.number for r in rows if r.ended_at}
        )
        return [
            PastRound(
                number=row.number,
                phase=row.phase,
                state=row.state,
                reason=row.reason,
                opened_at=row.opened_at,
                ended_at=row.ended_at,
                bytes_sent=current.bytes_sent if current and current.number == row.number else row.bytes_sent,
                bytes_received=received[row.number],
                counts=counts[row.number],
                accuracy=_accuracy(sums[row.number]),
                personal=personal.get(row.number, {}),
            )
            for row in rows
        ]

    def _personal_of(
        self, federation: Federation, task: Task, wanted: set[int], ended: set[int]
    ) -> dict[int, dict[str, float]]:
        # Each looked up once: another thread may drop it meanwhile.
        known = {n: found for n in wanted if (found := self._personal.get((task.id, n))) is not None}
        missing = sorted(wanted - known.keys())
        if not missing:
            return known
        accuracies: dict[int, dict[str, list[float]]] = {number: defaultdict(list) for number in missing}
        query = select(_members.round, _members.evaluations).where(
            _members.task == task.id, _members.round.between(missing[0], missing[-1]), _members.evaluations != "[]"
        )
        for row in federation.store.stream(query):
            for each in evaluation.from_json(row.evaluations) if row.round in accuracies else ():
                if each.count:
                    accuracies[row.round][each.label].append(each.correct / each.count)
        for number, by_label in accuracies.items():
            known[number] = {label: fmean(values) for label, values in by_label.items()}
            if number in ended:
                self._personal[task.id, number] = known[number]
        while len(self._personal) > MAX_KEPT:
            self._personal.popitem(last=False)
        return known


def under_way(federation: Federation, task: Task) -> RoundUnderWay | None:
    """The round of a task that has not ended; None: there is none."""
    current = task.round
    if current is None:
        return None
    now = federation.clock.elapsed()
    pending = admin_pb2.MEMBER_STATE_PENDING
    waits = [(current.until(c) - now, c) for c, member in list(current.members.items()) if member.state == pending]
    awaited = sorted((left, client) for left, client in waits if left > 0)
    by_arrival = task.settings.by_arrival
    # Without the method its phases are unknown.
    everyone = bool(task.fault) or task.takes_everyone(current.phase)
    return RoundUnderWay(
        number=current.number,
        phase="" if task.fault else task.phases[current.phase].name,
        state=current.state,
        wanted=None if by_arrival and everyone else task.settings.goal if by_arrival else len(current.members),
        free=free_places(task, current, now) if by_arrival and not everyone else 0,
        counts=current.counts.copy(),
        ends_in_s=current.deadline - now if current.deadline < inf else None,
        awaited=[(client, left) for left, client in awaited[:MAX_AWAITED]],
        more=max(0, len(awaited) - MAX_AWAITED),
        paused=bool(task.paused),
    )


def left_out(federation: Federation, task: Task, most: int, rounds: int = 50) -> list[LeftOut]:
    """Members of the last rounds without a part in them, the latest rounds first; reads the database."""
    rows = federation.store.read(
        select(_members.round, _members.client, _members.state, _members.reason)
        .where(_members.task == task.id, _members.round > task.next_round - 1 - rounds, _members.state.in_(_LEFT_OUT))
        .order_by(_members.round.desc(), _members.client)
        .limit(most)
    )
    return [LeftOut(**row._mapping) for row in rows]


def by_class(federation: Federation, task: Task, rounds: int = 20) -> tuple[int, list[ClassAccuracy]] | None:
    """The latest of the last rounds that stand and have confusion matrices, and accuracy by class; None: there is none.

    The matrices are those of evaluators, or where none has answered those of the members' trained models. Reads the
    database.
    """
    if not task.settings.confusion:
        return None
    since = task.next_round - 1 - rounds
    void = select(_rounds.number).where(
        _rounds.task == task.id, _rounds.state.in_((admin_pb2.ROUND_STATE_ABANDONED, admin_pb2.ROUND_STATE_UNDONE))
    )
    for columns in (_evaluations, _members):
        query = select(columns.round, columns.evaluations).where(
            columns.task == task.id, columns.round > since, columns.round.not_in(void)
        )
        found: dict[int, list[update_pb2.EvaluationSums]] = defaultdict(list)
        for row in federation.store.stream(query.order_by(columns.round.desc())):
            if found and row.round not in found:
                break
            if matrices := [each for each in evaluation.from_json(row.evaluations) if each.confusion]:
                found[row.round].append(matrices[-1])  # the last one is that of the trained model
        for number, of_round in found.items():
            return number, _classes(task, evaluation.add_up(of_round)[0].confusion)
    return None


def _classes(task: Task, confusion: Sequence[int]) -> list[ClassAccuracy]:
    names = task.bundles[0].manifest.class_names
    count = isqrt(len(confusion))
    rows = [confusion[start : start + count] for start in range(0, len(confusion), count)]
    return [
        ClassAccuracy(name=name, photos=sum(row), correct=row[i])
        for i, (name, row) in enumerate(islice(zip(names, rows, strict=False), count))
    ]


def _accuracy(sums: Sequence[update_pb2.EvaluationSums]) -> float | None:
    count = sum(each.count for each in sums)
    return sum(each.correct for each in sums) / count if count else None
