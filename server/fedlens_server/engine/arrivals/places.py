"""Places in the rounds of tasks that select by arrival: a client that asks while there is room becomes a member.

    free = ceil((goal - reported) * over_selection) - members that hold a place

of which clients with a bundle get no more than `canaries` allows.

One thread decides. It takes all that ask by then, reserves places by choosing among them, makes their downloads, and
writes them in one operation, because operations of one commit do not see each other. A free place goes to a client that
does not rest, drawn at random among the held polls and those that just came; after `patience_s` also to the resting one
that reported longest ago.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import ceil, inf

from sqlalchemy import update

from fedlens_proto.v1 import admin_pb2, check_in_pb2
from fedlens_server.engine import view
from fedlens_server.engine.arrivals import canaries, obstacles, participation
from fedlens_server.engine.cohorts import downloads
from fedlens_server.engine.cohorts.cohort import Cohort, members_of
from fedlens_server.engine.cohorts.members import WRITE_MEMBER, Member, Round, RoundKey, member_row
from fedlens_server.engine.enrolled import Client
from fedlens_server.engine.method_calls import MethodFailed, of_method
from fedlens_server.engine.task import Task, TaskBundle
from fedlens_server.engine.view import Change, Federation
from fedlens_server.errors import ServerError
from fedlens_server.planning.method import NothingToAggregate, State, TensorSet
from fedlens_server.store import Transaction, schema

log = logging.getLogger(__name__)
# Members of a round that takes every client.
MOST_MEMBERS = 100_000
_AT_A_TIME = 100  # of those who ask, whose participations are read together
_rounds = schema.rounds.c
Request = check_in_pb2.CheckInRequest
_Downloads = dict[bytes, Mapping[str, TensorSet]]


def free_places(task: Task, current: Round, now: float, bundle: TaskBundle | None = None) -> int:
    """The number of places that a round has left, for clients with a bundle or, None, for all."""
    if current.state != admin_pb2.ROUND_STATE_OPEN or task.paused:
        return 0
    assert current.held is not None  # members are not drawn
    if task.takes_everyone(current.phase):
        free = MOST_MEMBERS - len(current.members)
    else:
        wanted = max(0, (task.settings.goal or 0) - current.reported)
        free = max(0, ceil(wanted * task.over_selection) - current.held.taken(now))
    bundles = task.bundles_of(current.phase) if bundle is None else [bundle]
    return min(free, sum(canaries.room(task, current, each.id, free, now) for each in bundles))


def open_rounds(federation: Federation) -> list[tuple[Task, Round]]:
    """The open rounds that take arrivals, ascending by task."""
    current = [(task, task.round) for task in list(federation.tasks.values()) if task.settings.by_arrival]
    return [(t, r) for t, r in current if r is not None and r.state == admin_pb2.ROUND_STATE_OPEN and not t.suspended]


def held_place(federation: Federation, client: bytes) -> tuple[Task, Round] | None:
    """The round in which a client holds a place; None: it holds none."""
    now = federation.clock.elapsed()
    held = ((task, current) for task, current in open_rounds(federation) if current.holds_place(client, now))
    return next(held, None)


def is_drawn(federation: Federation, client: Client) -> bool:
    """Tell whether a client is to report in a round whose members were drawn, in a task that still suits it."""
    now = federation.clock.elapsed()
    drawn = (task for task in list(federation.tasks.values()) if not (task.settings.by_arrival or task.suspended))
    current = (task.round for task in drawn if task.suits(client.profile))
    return any(each is not None and each.holds_place(client.id, now) for each in current)


class Places:
    """Those who ask for a place, and the thread that gives places."""

    def __init__(self, federation: Federation) -> None:
        """Nobody asks yet."""
        self._federation = federation
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fedlens-places")
        self._guard = threading.Lock()
        self._asking: dict[bytes, tuple[Request, Future[None]]] = {}
        self._held: dict[bytes, Request] = {}
        self._is_due = False
        self._looked_at = -inf
        self.on_given: Callable[[Collection[bytes]], object] = lambda clients: None
        self.on_free: Callable[[], object] = lambda: None  # `next_look` may be earlier now

    def close(self) -> None:
        """Finish what is under way."""
        self._pool.shutdown()

    def ask(self, client_id: bytes, request: Request) -> Future[None] | None:
        """Ask for a place for a client that checks in; None: it could not get one.

        The future ends once it has a place or is not to have one now.
        """
        federation = self._federation
        now = federation.clock.elapsed()
        client = federation.authenticate(client_id)
        federation.presence.saw(client_id, now)
        if not client.profile.is_trainer or held_place(federation, client_id) is not None:
            return None
        may_have = any(
            task.intake_of(current.phase) is not None
            or free_places(task, current, now, task.bundle_for(client.profile, current.phase)) > 0
            for task, current in open_rounds(federation)
            if request.task in (0, task.id) and task.suits(client.profile) and not task.is_over_for(client_id)
        )
        if not may_have:
            return None
        decided: Future[None] = Future()
        with self._guard:
            _, before = self._asking.get(client_id, (request, None))
            self._asking[client_id] = request, decided
        if before is not None:
            _decide(before)
        self.look()
        return decided

    def hold(self, client: bytes, request: Request) -> None:
        """Note that the check-in of a client is held, so that it asks until `release`."""
        self._held[client] = request
        self.look()  # for a place that has become free since it asked

    def release(self, client: bytes) -> None:
        """Note that the check-in of a client is held no more."""
        self._held.pop(client, None)

    def give_back(self, client: bytes) -> None:
        """Free the place of a client that was not reached; it stays a member, and gets one again if it asks."""
        held = held_place(self._federation, client)
        if held is not None and held[1].held is not None:
            held[1].held.release(client)
            held[1].returned.add(client)
            self.look()

    def look(self) -> None:
        """Have the thread give the places that are free; returns at once."""
        with self._guard:
            # Set here, not by the thread: until it has time, `next_look` must not name this moment again and again.
            self._looked_at = self._federation.clock.elapsed()
            if self._is_due:
                return
            self._is_due = True
        self._pool.submit(self._give_all)

    def next_look(self) -> float:
        """When a place may be free for a held poll without a `Change`, by `Clock.elapsed`; infinite: not before one."""
        times = [inf]
        for task, current in open_rounds(self._federation):
            if current.held is not None:
                times.append(current.held.next_end(self._looked_at))
            if (since := current.free_since) is not None:  # the thread may set it to None meanwhile
                times += (since + each for each in participation.patiences(task))
        return min(when for when in times if when > self._looked_at)

    def _give_all(self) -> None:
        with self._guard:
            self._is_due = False
            asking, self._asking = self._asking, {}
        try:
            left = self._held | {client: request for client, (request, _) in asking.items()}
            now = self._federation.clock.elapsed()
            shares = {
                task.id: free_places(task, current, now) / max(1, task.places)
                for task, current in open_rounds(self._federation)
            }
            for task, current in sorted(
                open_rounds(self._federation), key=lambda each: (-shares.get(each[0].id, 0.0), each[0].id)
            ):
                given = self._given(task, current, left)
                left = {client: request for client, request in left.items() if client not in given}
        except Exception:
            log.exception("no places were given")
        finally:
            for _, decided in asking.values():
                _decide(decided)

    def _given(self, task: Task, current: Round, asking: Mapping[bytes, Request]) -> Collection[bytes]:
        """As `_give`; what fails in one task holds up no other one."""
        try:
            return self._give(task, current, asking)
        except (MethodFailed, NothingToAggregate) as error:
            log.error("task %r, round %d: no place could be given: %s", task.name, current.number, error)
            current.fault = str(error)
            self._federation.tell(Change(due=True))
        except ServerError as error:
            log.warning("task %r, round %d: no places were given: %s", task.name, current.number, error)
        except Exception:
            log.exception("task %r, round %d: no places were given", task.name, current.number)
        return ()

    def _give(self, task: Task, current: Round, asking: Mapping[bytes, Request]) -> Collection[bytes]:
        """Give a round's free places to some of those who ask; returns these."""
        federation, now = self._federation, self._federation.clock.elapsed()
        with task.moving:
            values = task.values
            if task.round is not current:
                return ()
        free = free_places(task, current, now)
        if free == 0:
            current.free_since = None
        elif current.free_since is None:
            current.free_since = now
            self.on_free()
        intake = None if task.paused else task.intake_of(current.phase)
        seeking = asking if free or intake is not None else {}
        fresh, late = self._downloads(task, current, values, self._in_turn(task, current, seeking, now), free)
        again = {client for client in fresh if client in current.members}
        resting = {client for client in fresh if participation.rests(federation, task, current, client)}
        cohorts = [
            Cohort(phase, (), values, sets, frozenset(), self._digests(task, sets))
            for phase, sets in (
                (current.phase, {client: sets for client, sets in fresh.items() if client not in again}),
                (intake, late),
            )
            if phase is not None and sets
        ]
        if not cohorts and not again:
            return ()
        given = give(federation, current.key, cohorts, again).result()
        if task.values is not values:
            self.look()  # these downloads were not given
        federation.member_events[task.id, "resting"] += len(resting.intersection(given))
        if free_places(task, current, federation.clock.elapsed()) == 0:
            current.free_since = None
        self.on_given(given)
        return given

    def _downloads(
        self, task: Task, current: Round, values: State, clients: Iterable[bytes], free: int
    ) -> tuple[_Downloads, _Downloads]:
        """What so many of the clients download, and what those do that catch up, who take no place."""
        fresh: _Downloads = {}
        late: _Downloads = {}
        intake, now = task.intake_of(current.phase), self._federation.clock.elapsed()
        room = {each.id: free_places(task, current, now, each) for each in task.bundles_of(current.phase)}

        def given(phase: int, client: bytes) -> Mapping[str, TensorSet] | None:
            return of_method(partial(task.method.download, task.method_phase(phase), values, client))

        for client in clients:
            if len(fresh) == free and intake is None:
                break
            known = self._federation.clients.get(client)
            bundle = None if known is None else task.bundle_for(known.profile, current.phase)
            has_room = bundle is not None and room[bundle.id] > 0 and len(fresh) < free
            if bundle is None or not (has_room or intake is not None):
                continue
            if (sets := given(current.phase, client)) is not None:
                if has_room:
                    fresh[client] = sets
                    room[bundle.id] -= 1
            elif intake is not None and (sets := given(intake, client)) is not None:
                if client not in current.members:
                    late[client] = sets
            else:
                current.sitting_out |= {client}
        return fresh, late

    def _digests(self, task: Task, downloaded: _Downloads) -> downloads.Digests:
        own = (tensors for sets in downloaded.values() for tensors in sets.values())
        return downloads.find_digests(self._federation, task, own, ())

    def _in_turn(self, task: Task, current: Round, asking: Mapping[bytes, Request], now: float) -> Iterator[bytes]:
        """Those to whom places go, in this order; it looks at few more of those who ask than are taken from it."""
        clients, resting = list(asking), list[bytes]()
        self._federation.generator.shuffle(clients)
        for start in range(0, len(clients), _AT_A_TIME):
            some = [client for client in clients[start : start + _AT_A_TIME] if self._may_ask(task, client, asking)]
            participation.load(self._federation, task, some)
            for client in some:
                if obstacles.obstacle(self._federation, task, current, client, asking[client]) is not None:
                    continue
                if participation.rests(self._federation, task, current, client):
                    resting.append(client)
                else:
                    yield client
        if current.free_since is None or (free_s := now - current.free_since) < participation.patience_s(task, 0):
            return
        for client in sorted(resting, key=lambda client: _turn(task, client)):
            if free_s >= participation.patience_s(task, participation.past(task, client).misses):
                yield client

    def _may_ask(self, task: Task, client: bytes, asking: Mapping[bytes, Request]) -> bool:
        """Tell whether a client can take part in a task that it asks for, and has no place elsewhere."""
        known = self._federation.clients.get(client)
        if known is None or asking[client].task not in (0, task.id) or not task.may_train(known.profile):
            return False
        if task.is_over_for(client):
            return False
        return held_place(self._federation, client) is None and not is_drawn(self._federation, known)


def _may_train(federation: Federation, task: Task, client: bytes) -> bool:
    known = federation.clients.get(client)
    return known is not None and task.may_train(known.profile)


def _decide(decided: Future[None]) -> None:
    with suppress(InvalidStateError):  # who waited for it has gone
        decided.set_result(None)


def _turn(task: Task, client: bytes) -> tuple[bool, int, bytes]:
    """The order of those who rest: who reported longest ago, and last who leaves places unused."""
    return participation.left_places(task, client), participation.past(task, client).last_round, client


@view.operation()
def give(
    federation: Federation, transaction: Transaction, key: RoundKey, cohorts: Sequence[Cohort], again: Collection[bytes]
) -> Collection[bytes]:
    """Make clients members of an open round, each with its own deadline; returns them.

    Args:
        federation: Holds the task.
        transaction: Takes the members and their downloads.
        key: The round; nothing is given if it is not open any more, its task is paused, or its values are others.
        cohorts: The new members, by phase.
        again: Members whose deadline is over and who get a new one.
    """
    task = federation.tasks.get(key.task)  # None: it was deleted meanwhile
    current = None if task is None else task.round
    if task is None or current is None or current.key != key or current.closing or current.held is None:
        return ()
    if task.paused or any(cohort.values is not task.values for cohort in cohorts):
        return ()  # values are others once a client was forgotten: downloads may be made of what it had
    held = current.held
    encoded = dict(current.encoded)
    members: dict[bytes, Member] = {}
    for cohort in cohorts:
        # Some may have been banned or forgotten since they were chosen.
        able = {client: sets for client, sets in cohort.downloads.items() if _may_train(federation, task, client)}
        members |= members_of(federation, transaction, task, cohort._replace(downloads=able), None, encoded)
    for client, member in members.items():
        transaction.later(WRITE_MEMBER, member_row(current, client, member))
    # Some may have reported or left since.
    again = [client for client in again if current.members[client].state == admin_pb2.MEMBER_STATE_PENDING]
    for client in again:
        if client not in current.returned:
            participation.left_place(transaction, task, client)
    if (first := current.deadline == inf) and members:
        transaction.execute(
            update(schema.rounds)
            .where(_rounds.task == key.task, _rounds.number == key.round)
            .values(started_at=federation.clock.now())
        )
    given = [*members, *again]

    def follow() -> None:
        now = federation.clock.elapsed()
        current.encoded = encoded
        current.members.update(members)
        federation.member_events[key.task, "given"] += len(members)
        current.counts[admin_pb2.MEMBER_STATE_PENDING] += sum(m.phase == current.phase for m in members.values())
        current.returned.difference_update(again)
        for client in given:
            member = current.members[client]
            bundle = member.bundle if member.phase == current.phase else None
            held.hold(client, now, now + task.settings.member_deadline_s, bundle)
        if first and members:
            current.started, current.deadline = now, now + task.settings.deadline_s
        federation.changed(due=True)

    transaction.after_commit(follow)
    return given
