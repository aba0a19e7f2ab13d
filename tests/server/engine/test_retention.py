"""Receipts: rows of members, with which an upload that is sent again is answered until their time is over."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event, func, select

from fedlens.reports.task_report import round_values
from fedlens_proto.v1 import admin_pb2, update_pb2
from fedlens_server.engine import garbage, updates
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.errors import Forbidden, RoundClosed, UpdateDiffers
from fedlens_server.store import schema
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, EVE, START, client_ids, update_of

FIVE = sorted([ALICE, BOB, CAROL, DAVE, EVE])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    """A server with five clients and a task that wants two updates of a round."""
    with closing(Arrivals(tmp_path / "arrivals")) as found:
        found.enrol(FIVE)
        found.take(goal=2, over_selection=2.5, rest=0, rounds=10)
        yield found


def first_round(server: Arrivals, after_s: float = 0.0) -> None:
    """End a round of five members: two have reported, and one each has failed, left and, `after_s` later, missed it."""
    server.come(*FIVE)
    server.fail(CAROL)
    server.revoke(DAVE)
    for client in (ALICE, BOB):
        server.report(client)
    server.clock.wind(after_s)
    server.advance()


def delete(server: Arrivals, before: float) -> float:
    return garbage.delete_receipts(server.federation, before).result()


def delete_all(server: Arrivals) -> None:
    while delete(server, server.clock.now()) <= server.clock.now():
        pass


def counted(server: Arrivals) -> list[tuple[dict[str, int], int]]:
    """Of each round, as reports have it, its members by state and the bytes that they sent."""
    rounds = [round_values(found) for found in server.show().rounds]
    return [(values["counts"], values["bytes_received"]) for values in rounds]


def rows(server: Arrivals) -> dict[int, int]:
    """Rows of members by round."""
    found = select(schema.members.c.round, func.count()).group_by(schema.members.c.round)
    return {number: count for number, count in server.store.read(found)}


def again(server: Arrivals, client: bytes, send: Callable[[], update_pb2.Receipt]) -> update_pb2.Receipt:
    """Send as a client whose first request has ended."""
    server.begun.clear()
    return send()


def test_rounds_that_ended_long_ago_keep_only_their_counts(server: Arrivals) -> None:
    first_round(server)
    server.clock.wind(30 * 86400)
    server.come(ALICE)
    before = counted(server)

    left = delete(server, START)

    assert left == inf
    assert counted(server) == before
    assert before[0][0] == {"failed": 1, "left": 1, "missed": 1, "reported": 2}
    assert rows(server) == {2: 1}
    (first, second) = server.show().rounds
    assert (len(first.members), len(first.unlisted), len(second.members)) == (0, 4, 1)


def test_no_round_loses_receipts_before_its_time(server: Arrivals) -> None:
    first_round(server)

    left = delete(server, server.clock.now() - 0.001)

    assert left == START
    assert rows(server) == {1: 5}


def test_the_round_that_ended_first_is_the_next(server: Arrivals) -> None:
    first_round(server)
    server.clock.wind(50)
    for client in (ALICE, BOB):
        server.report(client)
    server.advance()

    assert [delete(server, START + 50), delete(server, START + 50)] == [START + 50, inf]
    assert rows(server) == {}


def test_no_transaction_deletes_more_than_so_many_and_counts_hold_in_between(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "MAX_RECEIPTS", 2)
    first_round(server)
    before = counted(server)
    seen = []

    for _ in range(4):
        left = delete(server, START)
        server.reopen()
        seen.append((rows(server).get(1, 0), left))
        assert counted(server) == before

    assert seen == [(3, START), (1, START), (0, inf), (0, inf)]


def test_an_operator_who_looks_while_receipts_are_deleted_counts_each_member_once(server: Arrivals) -> None:
    first_round(server)
    before = counted(server)
    looking = threading.current_thread()
    queries: list[str] = []

    def deleting(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if threading.current_thread() is looking and "FROM " in statement:
            queries.append(statement)
            if len(queries) == 2:
                delete_all(server)

    event.listen(Engine, "before_cursor_execute", deleting)
    try:
        assert counted(server) == before
    finally:
        event.remove(Engine, "before_cursor_execute", deleting)
    assert rows(server) == {}
    assert counted(server) == before


def test_an_update_that_comes_late_counts_as_such_while_its_members_row_is_there(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "MAX_RECEIPTS", FIVE.index(EVE))
    first_round(server)
    delete(server, START)  # of all before her

    updates.note_late(server.federation, EVE, 1, 1).result()
    delete(server, START)
    updates.note_late(server.federation, EVE, 1, 1).result()

    assert rows(server) == {}
    assert counted(server)[0][0] == {"failed": 1, "left": 1, "late": 1, "reported": 2}


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_an_upload_sent_again_gets_its_receipt_from_closing_to_the_end_of_the_retention(
    server: Arrivals, ended: bool, restarted: bool
) -> None:
    assignment = server.assignment(ALICE)
    header, raw = update_of(assignment, server.tensors(assignment))
    other_header, other_raw = update_of(assignment, server.tensors(assignment), 11)
    receipt = server.send(ALICE, assignment, header, raw)
    server.report(BOB)
    server.freeze()
    if ended:
        server.advance()
    if restarted:
        server.reopen()

    assert again(server, ALICE, lambda: server.send(ALICE, assignment, header, raw)) == receipt
    with pytest.raises(UpdateDiffers):
        again(server, ALICE, lambda: server.send(ALICE, assignment, other_header, other_raw))
    server.advance()
    delete_all(server)
    for its_header, its_raw in ((header, raw), (other_header, other_raw)):
        with pytest.raises(RoundClosed):
            again(server, ALICE, lambda h=its_header, r=its_raw: server.send(ALICE, assignment, h, r))
    assert server.ends == ["committed", "open"]


def test_after_the_first_deletion_no_client_of_the_round_is_told_that_it_was_no_member(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(garbage, "MAX_RECEIPTS", 1)
    (stranger,) = set(client_ids(6)) - set(FIVE)
    server.enrol([stranger])
    first_round(server)
    with pytest.raises(Forbidden, match="not a member"):
        server.expect(stranger)

    delete(server, START)

    for client in {FIVE[0], stranger}:
        with pytest.raises(RoundClosed):
            server.expect(client)
        with pytest.raises(RoundClosed):
            server.fail(client)


def test_what_a_task_knows_of_its_clients_outlives_their_receipts(server: Arrivals) -> None:
    first_round(server, server.task.settings.member_deadline_s)
    delete_all(server)
    server.reopen()

    server.come(ALICE, BOB, EVE)

    participations = server.task.participations
    assert {client: participations[client].times for client in (ALICE, BOB, EVE)} == {ALICE: 1, BOB: 1, EVE: 0}
    assert participations[EVE].misses == 1


def test_a_round_that_nobody_came_to_has_no_receipts_to_delete(server: Arrivals) -> None:
    tasks.stop(server.federation, tasks.find(server.federation, "task"), ADMIN).result()

    assert [delete(server, START), delete(server, START)] == [inf, inf]
    assert server.show().rounds[0].state == admin_pb2.ROUND_STATE_ABANDONED
