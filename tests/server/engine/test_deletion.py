"""Tasks that are deleted: what is left of them, and what is not touched."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, select

from fedlens_proto.v1 import admission_pb2
from fedlens_server.engine import aggregation, rounds, updates
from fedlens_server.engine.arrivals import places
from fedlens_server.engine.operators import deletion, tasks
from fedlens_server.engine.operators.access import Operator
from fedlens_server.errors import TaskDiffers, Unknown
from fedlens_server.store import schema
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, Bench

KIM = Operator(name="kim", role=admission_pb2.TOKEN_ROLE_OPERATE)
OF_TASKS = [table for table in schema.metadata.sorted_tables if "task" in table.columns or table.name == "tasks"]


def rows(bench: Bench) -> int:
    """The rows of tasks, in all tables."""
    return sum(bench.store.read(select(func.count().label("n")).select_from(table))[0].n for table in OF_TASKS)


def delete(bench: Bench, task: str) -> None:
    deletion.begin(bench.federation, tasks.find(bench.federation, task), KIM).result()


def go_on(bench: Bench) -> int:
    """Delete all that is left; the number of transactions."""
    count = 0
    while bench.federation.deleting:
        deletion.go_on(bench.federation).result()
        count += 1
    return count


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "deletion")) as found:
        found.enrol([ALICE, BOB])
        yield found


def finished(server: Arrivals, name: str) -> None:
    """A task of two rounds that is over."""
    server.take(name=name, goal=1, rounds=2, rest=0)
    number = tasks.find(server.federation, name).id
    for _ in range(2):
        assignment = server.check_in(ALICE, task=number).assignment
        start = server.tensors(assignment)
        server.upload(ALICE, {tensor: value + 1 for tensor, value in start.items()})
        server.advance()


def test_nothing_is_left_of_a_deleted_task_but_the_note_that_it_was_deleted(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "MAX_ROWS", 1)
    finished(server, "first")
    assert rows(server) > 8

    delete(server, "first")
    go_on(server)

    assert rows(server) == 0
    assert not server.store.blobs.sizes.keys() - server.store.blobs.kept_until.keys()
    entry = server.store.read(select(schema.audit))[-1]
    assert (entry.action, entry.subject, entry.operator) == ("task delete", "first", "kim")


def test_a_deletion_is_cut_short_by_a_restart_and_goes_on(server: Arrivals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "MAX_ROWS", 1)
    finished(server, "first")
    delete(server, "first")
    deletion.go_on(server.federation).result()

    server.reopen()

    assert not server.federation.tasks
    assert go_on(server) > 3
    assert rows(server) == 0


def test_of_two_deletions_at_a_time_the_second_finds_nothing(server: Arrivals) -> None:
    finished(server, "first")
    task = tasks.find(server.federation, "first")

    first, second = (deletion.begin(server.federation, task, KIM) for _ in range(2))

    assert first.result() is None
    with pytest.raises(Unknown):
        second.result()
    assert go_on(server) > 0


def test_what_was_under_way_when_its_task_was_deleted_ends_without_effect(server: Arrivals) -> None:
    server.take(name="first")
    key = tasks.find(server.federation, "first").round.key  # type: ignore[union-attr]  # it starts at once
    tasks.stop(server.federation, tasks.find(server.federation, "first"), KIM).result()
    delete(server, "first")

    assert not rounds.close(server.federation, key).result()
    rounds.end(server.federation, key, rounds.Outcome(None, "", {}), None).result()
    rounds.start(server.federation, key.task).result()
    updates.note_late(server.federation, ALICE, key.task, key.round).result()
    aggregation.advance(server.federation, key)

    assert places.give(server.federation, key, (), {ALICE}).result() == ()
    assert not server.federation.tasks


def test_the_name_is_free_at_once_and_other_tasks_go_on(server: Arrivals) -> None:
    finished(server, "first")
    delete(server, "first")
    with pytest.raises(Unknown):
        tasks.find(server.federation, "first")

    finished(server, "first")
    go_on(server)

    (left,) = tasks.listed(server.federation).tasks
    assert (left.name, left.rounds_committed) == ("first", 2)
    assert server.model("first")["fc.bias"].tolist() == [2.0, 2.0]


def test_a_task_that_goes_on_is_not_deleted(server: Arrivals) -> None:
    server.take(goal=1)
    with pytest.raises(TaskDiffers, match="goes on; stop it first"):
        delete(server, "task")
