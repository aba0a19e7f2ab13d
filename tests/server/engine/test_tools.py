"""The tools of a method: a generator and a population that follow from the task and the round alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from fedlens_proto import keyed_hash
from fedlens_server.methods import METHODS, fedavg
from fedlens_server.planning.method import Method, MethodDefinition, Phase, State, TaskPlan, Tools, Update
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


def commit(bench: Bench) -> None:
    for client in [client for client in IDS if bench.check_in(client).HasField("assignment")]:
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
