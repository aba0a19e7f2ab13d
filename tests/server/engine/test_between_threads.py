"""Threads of the server that meet at the worst moment, which is made to happen."""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import admin_pb2
from fedlens_server.engine import aggregation, assignments, rounds
from fedlens_server.engine.arrivals import places
from fedlens_server.engine.arrivals.presence import BUCKET_S, StoredPresence
from fedlens_server.engine.cohorts.held_places import HeldPlaces
from fedlens_server.engine.operators import control, tasks
from fedlens_server.errors import Unavailable
from fedlens_server.methods import METHODS, fedavg
from fedlens_server.planning.method import Method, MethodDefinition, State, TaskPlan
from fedlens_server.store import MAX_ROW_BYTES
from fedlens_server.store.method_state import prepare, save
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ADMIN, ALICE, BOB, Bench, update_of
from tests.server.networks import network, weights


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "threads")) as found:
        found.enrol([ALICE, BOB])
        yield found


def before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, act: Callable[[], object]) -> None:
    """Have `act` happen just before the next call of a function."""
    function = getattr(module, name)

    def later(*given: Any) -> Any:
        monkeypatch.setattr(module, name, function)
        act()
        return function(*given)

    monkeypatch.setattr(module, name, later)


def test_a_client_that_is_banned_while_it_is_given_a_place_takes_none(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.take(goal=1, member_deadline_s=3600)
    before(monkeypatch, places, "give", lambda: server.revoke(ALICE))

    with pytest.raises(Exception, match="banned"):
        server.come(ALICE)

    assert server.has_place(BOB)


def test_a_task_that_is_paused_while_places_are_chosen_gives_none(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.take(goal=1)
    before(monkeypatch, places, "give", lambda: control.pause(server.federation, server.task, ADMIN).result())

    assert server.reason(ALICE) == "paused"
    control.resume(server.federation, server.task, ADMIN).result()
    assert server.has_place(ALICE)


def test_places_are_not_given_with_downloads_of_a_client_that_is_forgotten_meanwhile(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.take(network(200_000), method="pfedsim", rounds=3, options={"warm_up": 0}, goal=2, min_reports=1, rest=0)
    server.come(ALICE, BOB)
    for client, value in ((ALICE, 1.0), (BOB, 3.0)):
        server.upload(client, weights(value, width=200_000))
    server.advance()
    before(monkeypatch, places, "give", lambda: server.forget(BOB))

    server.come(ALICE)

    assert server.has_place(ALICE)
    assert server.ends == ["committed", "open"]
    (download,) = server.assignment(ALICE).sets
    np.testing.assert_array_equal(server.store.tensors(download.sha256)["bn.weight"], [1.0, 1.0])


def test_a_member_that_reports_while_its_place_is_renewed_holds_none(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.take(goal=2, over_selection=1, member_deadline_s=3600, min_reports=1, rest=0)
    assert server.has_place(ALICE)
    start = server.assignment(ALICE)
    update = update_of(start, dict(server.tensors(start)))
    server.clock.wind(3600)
    server.settle_places()
    before(monkeypatch, places, "give", lambda: server.send(ALICE, start, *update))

    server.come(ALICE)

    assert server.task.round.held.taken(server.clock.elapsed()) == 0
    assert server.has_place(BOB)


def test_a_place_that_runs_out_while_its_client_is_answered_is_no_error(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.take(goal=1, member_deadline_s=60)
    assert server.has_place(ALICE)
    until = HeldPlaces.until

    def runs_out_then(held: HeldPlaces, client: bytes) -> float:
        found = until(held, client)
        held.taken(server.clock.elapsed() + 60)  # as the thread that gives places lets it go
        return found

    monkeypatch.setattr(HeldPlaces, "until", runs_out_then)

    assert assignments._assignment(server.federation, server.task, server.federation.authenticate(ALICE)) is not None


def test_a_round_whose_task_is_stopped_while_it_is_aggregated_is_no_mistake_of_the_method(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server.take(goal=1, min_reports=1)
    assert server.has_place(ALICE)
    server.report(ALICE)
    before(monkeypatch, aggregation, "_ruled", lambda: tasks.stop(server.federation, server.task, ADMIN).result())

    server.advance()

    assert server.task.state == admin_pb2.TASK_STATE_STOPPED
    assert server.ends == ["abandoned"]
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_rounds_are_not_moved_while_one_is_aggregated_whose_end_begins_a_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def for_task(task: TaskPlan) -> Method:
        method = fedavg.for_task(task)
        (phase,) = method.phases
        first = replace(phase, name="first", rounds=task.settings.rounds - 1)
        return replace(method, phases=(first, replace(phase, name="second", rounds=1)))

    monkeypatch.setitem(METHODS, "two", MethodDefinition(for_task))
    with closing(Bench(tmp_path / "phases")) as bench:
        bench.start(method="two", rounds=4)
        told = list[str]()

        def change() -> None:
            with pytest.raises(Unavailable) as refused:
                control.change(bench.federation, bench.task, json.dumps({"rounds": 3}), ADMIN).result()
            told.append(str(refused.value))

        before(monkeypatch, rounds, "next_cohort", change)
        bench.commit()
        control.change(bench.federation, bench.task, json.dumps({"rounds": 3}), ADMIN).result()

    assert told == [
        "round 1 of task 'task' is being aggregated, and this change moves rounds from one phase to another; try again "
        "when the round has ended"
    ]


def test_a_client_that_is_forgotten_while_the_seen_are_stored_leaves_the_others() -> None:
    presence = StoredPresence()
    presence.saw(ALICE, BUCKET_S)
    presence.saw(BOB, BUCKET_S)
    del presence._last[ALICE]  # as `forget` begins

    assert presence.take_unsaved() == {BOB: BUCKET_S}


def test_times_that_could_not_be_stored_are_stored_with_the_next() -> None:
    presence = StoredPresence()
    presence.saw(ALICE, BUCKET_S)
    presence.saw(BOB, BUCKET_S)
    seen = presence.take_unsaved()
    presence.forget(BOB)

    presence.not_saved(seen)

    assert presence.take_unsaved() == {ALICE: BUCKET_S}
    assert presence.take_unsaved() == {}


def test_what_a_state_keeps_of_an_update_is_read_through_no_file_of_the_round(server: Arrivals) -> None:
    server.take()
    store, large = server.federation.store, {"weight": np.ones(MAX_ROW_BYTES, np.float32)}
    with ExitStack() as open_blobs:
        first = prepare(store, State(), State(shared={"update": large}), open_blobs)
        store.submit(lambda transaction: save(transaction, 1, first)).result()
        update = store.tensors(first.values.shared["update"].digest)
        with update.opened():
            kept = prepare(store, State(), State(shared={"update": update}), open_blobs).values.shared["update"]
            update._descriptor = -1  # closed by the round's thread

            assert kept["weight"][-1] == 1.0
