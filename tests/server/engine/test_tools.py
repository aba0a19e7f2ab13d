"""The tools of a method: a generator and a population that follow from the task and the round alone."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlens_proto import keyed_hash
from fedlens_server.methods import METHODS, fedavg
from fedlens_server.planning.method import Method, MethodDefinition, Phase, State, TaskPlan, TensorSet, Tools, Update
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import SEED, Bench, client_ids

IDS = client_ids(9)


def for_task(task: TaskPlan) -> Method:
    """FedAvg that keeps what it was given."""
    method = fedavg.for_task(task)

    def begin(phase: Phase, state: State, tools: Tools) -> State:
        return method.begin(phase, state, tools).with_shared(begun=tools.generator.random(3, np.float32))

    def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        given = {
            "drawn": tools.generator.random(3, np.float32),
            "population": [client.hex() for client in tools.population],
        }
        return method.aggregate(phase, state, updates, tools).with_shared(**given)

    return replace(method, begin=begin, aggregate=aggregate)


@pytest.fixture
def noting(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A task that has started with eight clients, of whom the last enrolled first; the ninth comes later."""
    monkeypatch.setitem(METHODS, "noting", MethodDefinition(for_task))
    bench.make(method="noting", population=8, cohort=2)
    bench.enrol(IDS[7::-1])
    bench.enrol(IDS[8:])
    return bench


def value(bench: Bench, name: str) -> np.ndarray:
    return np.asarray(bench.task.values.shared[name])


def commit(bench: Bench, asking: Sequence[bytes] = IDS) -> None:
    for client in [client for client in asking if bench.check_in(client).HasField("assignment")]:
        bench.report(client)
    bench.advance()


def drawn_from(number: int) -> np.ndarray:
    return keyed_hash.server_generator(bytes.fromhex(SEED), number).random(3, np.float32)


def test_the_generator_follows_from_the_tasks_seed_and_the_round(noting: Bench) -> None:
    np.testing.assert_array_equal(value(noting, "begun"), drawn_from(0))

    commit(noting)
    np.testing.assert_array_equal(value(noting, "drawn"), drawn_from(1))
    noting.reopen()
    commit(noting)

    np.testing.assert_array_equal(value(noting, "drawn"), drawn_from(2))


def test_an_abandoned_rounds_number_draws_no_numbers_of_another(noting: Bench) -> None:
    noting.clock.wind(60)
    noting.advance()

    commit(noting)

    np.testing.assert_array_equal(value(noting, "drawn"), drawn_from(2))


def test_the_population_is_everybody_eligible_when_the_round_opened_sorted(noting: Bench) -> None:
    commit(noting)
    assert list(value(noting, "population")) == [client.hex() for client in IDS[:8]]

    commit(noting)

    assert list(value(noting, "population")) == [client.hex() for client in IDS]


def test_who_has_taken_part_as_often_as_it_may_stays_in_the_population(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "noting", MethodDefinition(for_task))
    bench.make(method="noting", population=9, cohort=4, max_participations=1)
    bench.enrol(IDS)
    commit(bench)
    banned = min(bench.task.exhausted)
    bench.revoke(banned)
    bench.reopen()

    others = [client for client in IDS if client != banned]
    commit(bench, others)

    assert list(value(bench, "population")) == [client.hex() for client in others]


def test_a_restart_in_an_open_round_keeps_its_cohort_and_population(noting: Bench) -> None:
    before = [client for client in IDS if noting.check_in(client).HasField("assignment")]
    noting.revoke(next(client for client in IDS if client not in before))
    noting.reopen()

    after = [client for client in IDS if client in before and noting.check_in(client).HasField("assignment")]
    for client in after:
        noting.report(client)
    noting.advance()

    assert after == before == keyed_hash.cohort(bytes.fromhex(SEED), 1, IDS[:8], 2)
    assert list(value(noting, "population")) == [client.hex() for client in IDS[:8]]


def test_with_arrivals_the_population_is_who_has_a_receipt_and_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "noting", MethodDefinition(for_task))
    first, gone, silent, late, never = IDS[:5]
    with closing(Arrivals(tmp_path / "arrivals")) as server:
        server.enrol([first, gone, silent, late, never])
        server.take(method="noting", goal=2, rest=0, rounds=9, member_deadline_s=10)
        assert server.has_place(silent)
        server.clock.wind(11)
        for client in (first, gone):
            assert server.has_place(client)
            server.report(client)
        server.advance()
        server.forget(gone)
        server.reopen()
        for client in (first, late):
            assert server.has_place(client)
            server.report(client)
        server.advance()

        assert server.task.values.shared["population"] == sorted(client.hex() for client in (first, late))


def test_who_gets_nothing_from_the_method_sits_the_phase_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left_out = IDS[0]

    def leaving_out(task: TaskPlan) -> Method:
        made = fedavg.for_task(task)

        def download(phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
            return None if client == left_out else made.download(phase, state, client)

        return replace(made, download=download)

    monkeypatch.setitem(METHODS, "leaving_out", MethodDefinition(leaving_out))
    with closing(Arrivals(tmp_path / "arrivals")) as server:
        server.enrol(IDS[:2])
        server.take(method="leaving_out", goal=2)

        assert server.reason(left_out) == "phase"
        assert server.has_place(IDS[1])
        assert server.members().keys() == {IDS[1]}
