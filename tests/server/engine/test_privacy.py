"""Tasks with central privacy: fresh noise, what is stored of trainers, and how often each takes part."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from fedlens_proto.blob import Array
from fedlens_server.engine import rounds
from fedlens_server.errors import StorageFull, UpdateInvalid
from fedlens_server.rules import privacy
from fedlens_server.rules.epsilon import epsilon_of
from fedlens_server.store import schema
from tests.server.elsewhere import needs_a_folder
from tests.server.engine.arrivals import Arrivals
from tests.server.fakes import ALICE, BOB, CAROL, EVALUATORS, EVE, Bench

PRIVATE = {"dp": {"clip": 10.0, "noise": 1.0}, "max_participations": 2, "rounds": 9}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    """A server with three enrolled clients and no task."""
    with closing(Arrivals(tmp_path / "arrivals")) as found:
        found.enrol([ALICE, BOB, CAROL])
        yield found


def result(client: bytes, bench: Bench) -> str | None:
    """What a check-in is answered with."""
    return bench.check_in(client).WhichOneof("result")


def commit(server: Bench, *clients: bytes) -> None:
    """A round to which these report."""
    for client in clients:
        server.check_in(client)
        server.report(client)
    server.advance()


def as_numbers(model: Mapping[str, Array]) -> list[float]:
    return [float(number) for name in sorted(model) for number in model[name].reshape(-1)]


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privacy, "gaussian", np.zeros)


@pytest.mark.parametrize(("clients", "mean"), [((ALICE, BOB), 1.0), ((ALICE,), 0.5)])
def test_a_round_is_divided_by_its_goal(
    server: Arrivals, monkeypatch: pytest.MonkeyPatch, clients: tuple[bytes, ...], mean: float
) -> None:
    without_noise(monkeypatch)
    server.take(**PRIVATE, deadline_s=60, member_deadline_s=30)  # goal 2
    for client in clients:
        server.check_in(client)
        server.report(client, num_examples=1 + client[0])

    server.clock.wind(60)
    server.advance()

    np.testing.assert_allclose(as_numbers(server.model()), mean, atol=1e-5)


def test_a_drawn_round_is_divided_by_its_members(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    bench.start(**PRIVATE)
    bench.report(ALICE)

    bench.clock.wind(60)
    bench.advance()

    np.testing.assert_allclose(as_numbers(bench.model()), 0.5, atol=1e-5)


SMALL = {"codec": "int8", "difference": True, "download_codec": "int8", "download_difference": True}


@pytest.mark.parametrize("codecs", [{}, SMALL])
def test_two_runs_of_one_seed_have_other_noise(tmp_path: Path, codecs: dict[str, Any]) -> None:
    models = []
    for run in "ab":
        with closing(Bench(tmp_path / run)) as bench:
            bench.start(**PRIVATE)
            bench.commit()
            bench.commit()
            assert bench.task.committed == 2
            models.append(as_numbers(bench.model()))

    assert not np.intersect1d(*models).size


@needs_a_folder
def test_an_aggregation_that_runs_again_after_a_crash_has_other_noise(tmp_path: Path) -> None:
    with closing(Bench(tmp_path / "state")) as bench:
        bench.start(**PRIVATE)
        bench.report(ALICE)
        bench.report(BOB)
        bench.freeze()
    shutil.copytree(tmp_path / "state", tmp_path / "again")
    models = []
    for folder in ("state", "again"):
        with closing(Bench(tmp_path / folder)) as bench:
            bench.advance()
            models.append(as_numbers(bench.model()))

    assert not np.intersect1d(*models).size


def test_only_a_model_that_is_committed_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start(**PRIVATE)
    bench.report(ALICE)
    bench.report(BOB)
    attempts: list[bytes] = []
    end = rounds.end

    def full_at_first(*arguments: Any) -> Any:
        attempts.append(arguments[2].prepared.values.shared["global"].digest)
        if len(attempts) == 1:
            raise StorageFull("no room")
        return end(*arguments)

    monkeypatch.setattr(rounds, "end", full_at_first)
    bench.advance()
    bench.clock.wind(rounds.RETRY_S)
    bench.advance()

    first, second = attempts
    assert first != second
    assert first not in bench.store.blobs.sizes
    assert second in bench.store.blobs.sizes


def test_nothing_is_stored_of_a_trainer_but_that_it_took_part(server: Arrivals) -> None:
    server.take(**PRIVATE, max_photos_per_client=1000, confusion=True)
    server.check_in(ALICE)

    assert not server.assignment(ALICE).local_plan.evaluations
    assert not server.assignment(ALICE).local_plan.statistics
    server.report(ALICE, num_examples=123_456)  # not even that it has more than the setting allows

    (row,) = server.store.read(select(schema.members))
    assert (row.num_examples, row.class_counts, row.label_distribution, row.evaluations) == (0, None, None, "[]")
    assert row.reason == ""
    assert server.members()[ALICE].num_examples == 0


@pytest.mark.parametrize("difference", [False, True])
def test_neither_sizes_nor_norms_tell_of_a_trainers_photos(server: Arrivals, difference: bool) -> None:
    server.take(**PRIVATE, goal=2, difference=difference)
    for client, photos in ((ALICE, 1), (BOB, 123_456)):
        server.check_in(client)
        server.report(client, num_examples=photos)

    alice, bob = server.store.read(select(schema.members))
    assert alice.bytes_received == bob.bytes_received > 0
    assert alice.norms is bob.norms is None


def test_statistics_that_nobody_asked_for_are_refused(server: Arrivals) -> None:
    server.take(**PRIVATE)
    server.check_in(ALICE)

    with pytest.raises(UpdateInvalid, match="class_counts came where none were asked for"):
        server.report(ALICE, class_counts=[4, 6])


def test_evaluators_measure_the_model(server: Arrivals) -> None:
    server.enrol([EVE], EVALUATORS)
    server.take(**PRIVATE)
    commit(server, ALICE, BOB)

    server.evaluate(EVE)

    assert getattr(server.show().rounds[0], "global")[0].count == 10


def test_who_has_taken_part_as_often_as_it_may_is_told_that_it_is_finished(server: Arrivals) -> None:
    server.take(max_participations=2, rounds=9)
    commit(server, ALICE, BOB)
    assert result(ALICE, server) == "assignment"
    commit(server, ALICE, BOB)

    assert [result(client, server) for client in (ALICE, BOB, CAROL)] == ["finished", "finished", "assignment"]

    server.reopen()
    assert [result(client, server) for client in (ALICE, BOB, CAROL)] == ["finished", "finished", "assignment"]


def test_an_update_of_a_round_that_is_abandoned_counts_too(server: Arrivals, monkeypatch: pytest.MonkeyPatch) -> None:
    server.take(**PRIVATE | {"max_participations": 1}, max_failures=1)
    server.check_in(ALICE)
    server.check_in(BOB)
    server.report(ALICE)
    server.fail(BOB)
    monkeypatch.setattr(
        "fedlens_server.engine.aggregation.private_update", lambda *_, **__: (_ for _ in ()).throw(ValueError("no"))
    )
    server.advance()

    assert server.ends == ["abandoned", "open"]
    assert result(ALICE, server) == "finished"
    assert server.show().task.privacy.participations == 0  # nothing has left


def test_a_place_that_was_left_unused_does_not_count(server: Arrivals) -> None:
    server.take(max_participations=1, rounds=9, goal=1, member_deadline_s=60)
    assert result(ALICE, server) == "assignment"
    server.clock.wind(60)
    commit(server, BOB)

    assert result(ALICE, server) == "assignment"


def test_a_client_that_is_finished_with_one_task_goes_on_in_another(server: Arrivals) -> None:
    server.take(max_participations=1, rounds=9, goal=1)
    server.take(name="other", goal=1, rounds=9)
    server.report(ALICE)
    server.advance()

    assert server.check_in(ALICE, task=1).HasField("finished")
    assert server.check_in(ALICE).assignment.task == 2


def test_who_is_finished_is_drawn_no_more_and_a_round_waits_for_others(bench: Bench) -> None:
    bench.start(max_participations=1, rounds=3)
    bench.commit()

    assert [result(client, bench) for client in (ALICE, BOB)] == ["finished", "finished"]
    assert len(bench.show().rounds) == 1

    bench.reopen()
    bench.enrol([CAROL])
    bench.report(CAROL)
    bench.advance()
    assert [sorted(bench.members(number)) for number in (1, 2)] == [sorted([ALICE, BOB]), [CAROL]]
    assert result(CAROL, bench) == "finished"


def test_a_client_with_one_part_left_is_drawn_again_after_a_restart(bench: Bench) -> None:
    bench.start(max_participations=2, rounds=3)
    bench.report(ALICE)
    bench.reopen()
    bench.report(BOB)
    bench.advance()
    bench.reopen()
    bench.commit()

    assert [result(client, bench) for client in (ALICE, BOB)] == ["finished", "finished"]


def test_operators_see_what_is_promised_and_what_is_spent(server: Arrivals) -> None:
    server.take(**PRIVATE)
    made = server.show().task.privacy
    assert (made.delta, made.epsilon) == (1e-6, epsilon_of(1.0, 1e-6, 2))
    assert (made.spent, made.participations) == (0, 0)

    commit(server, ALICE, BOB)
    commit(server, CAROL, ALICE)

    spent = server.show().task.privacy
    assert (spent.spent, spent.participations) == (epsilon_of(1.0, 1e-6, 2), 2)
    server.forget(ALICE)
    server.reopen()
    assert server.show().task.privacy == spent
    assert not server.take(name="open").show("open").task.HasField("privacy")


@pytest.mark.parametrize("meanwhile", [lambda server: None, Arrivals.reopen], ids=["", "restart"])
def test_one_who_is_forgotten_while_its_update_is_aggregated_has_spent_too(
    server: Arrivals, meanwhile: Callable[[Arrivals], None]
) -> None:
    server.take(**PRIVATE, goal=1)
    server.check_in(ALICE)
    server.report(ALICE)
    server.freeze()
    server.forget(ALICE)
    meanwhile(server)

    server.advance()

    assert server.show().task.privacy.participations == 1
