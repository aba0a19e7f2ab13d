"""Tasks that go back to an earlier round, and models that are released."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Lock

import numpy as np
import pytest

from fedlens_proto.v1 import admission_pb2
from fedlens_server.engine import assignments
from fedlens_server.engine.operators import rollback
from fedlens_server.engine.operators.access import Operator
from fedlens_server.errors import Malformed, RoundClosed, TaskDiffers
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import tiny_bundle
from tests.server.engine.arrivals import Arrivals
from tests.server.engine.test_control import finds
from tests.server.fakes import ALICE, BOB, CAROL, DAVE, EVALUATORS, EVE, Bench, WatchedLock, evaluation_of
from tests.server.methods.test_feddyn import dynamic

KIM = Operator(name="kim", role=admission_pb2.TOKEN_ROLE_OPERATE)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Arrivals]:
    with closing(Arrivals(tmp_path / "rollback")) as found:
        found.enrol([ALICE, BOB])
        yield found


def commit(server: Arrivals, shift: float = 1.0) -> None:
    """A round in which Alice adds `shift` to every weight."""
    assert server.has_place(ALICE)
    server.report(ALICE, shift)
    server.advance()


def roll_back(bench: Bench, number: int) -> None:
    rollback.roll_back(bench.federation, bench.task, number, KIM).result()
    bench.settle()


def release(bench: Bench, number: int = 0) -> None:
    rollback.release(bench.federation, bench.task, number, KIM).result()
    bench.settle()


def bias(bench: Bench) -> float:
    return float(bench.model()["fc.bias"][0])


def used(server: Arrivals) -> float | None:
    """The bias of the model that Bob would use; None: he has none."""
    model = assignments.current_model(server.task, server.federation.clients[BOB])
    return None if model is None else float(server.store.tensors(model.sets[0].sha256)["fc.bias"][0])


def test_a_model_is_not_looked_up_while_a_commit_changes_phase_and_state(server: Arrivals) -> None:
    server.take(goal=1, rounds=5, rest=0, clip=False)
    commit(server)

    server.task.moving = lock = WatchedLock()  # type: ignore[assignment]
    with ThreadPoolExecutor(1) as other:
        with lock:
            asked = other.submit(used, server)
            asked.add_done_callback(lambda _: lock.wanted.set())
            lock.wanted.wait()
            early = asked.done()
        found = asked.result()

    assert not early
    assert found == bias(server)


def test_a_task_that_starts_while_its_model_is_looked_up_has_none_yet(
    server: Arrivals, caplog: pytest.LogCaptureFixture
) -> None:
    server.make(population=3)
    task = server.task

    class Moving:
        """A lock, after which the task starts at once."""

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            task.moving = Lock()
            server.enrol([CAROL])

    task.moving = Moving()  # type: ignore[assignment]
    early, late = used(server), used(server)

    assert task.has_begun
    assert (early, late) == (None, bias(server))
    assert not caplog.records


@pytest.mark.parametrize("restart", [False, True])
def test_a_task_goes_on_from_an_earlier_state(server: Arrivals, restart: bool) -> None:
    server.take(goal=1, rounds=5, rest=0, clip=False)
    commit(server)
    after_first = bias(server)
    commit(server, 100.0)
    assert server.has_place(ALICE)
    if restart:
        server.reopen()

    roll_back(server, 1)
    if restart:
        server.reopen()

    assert server.ends == ["committed", "undone", "abandoned", "open"]
    assert bias(server) == after_first
    assert server.show().rounds[2].reason == "rolled back to round 1 by kim"
    assert server.show().task.rounds_committed == 1
    assert list(server.show().task.kept_rounds) == [1]
    commit(server)
    assert bias(server) == after_first + 1
    assert server.show().task.rounds_committed == 2


def test_three_states_are_kept_with_their_blobs_and_no_more(server: Arrivals) -> None:
    server.take(goal=1, rounds=9, rest=0)
    for _ in range(5):
        commit(server)

    assert list(server.show().task.kept_rounds) == [3, 4, 5]
    held = server.task.copies.values()
    assert all(digest in server.store.blobs.sizes for digests in held for digest in digests)
    # The bundle's three parts, and the models of three rounds; garbage of one more round may wait for the next sweep.
    assert len(server.store.blobs.sizes) <= 3 + 3 + 1
    with pytest.raises(Malformed, match="round: found 2, must be one whose state is kept: 3, 4, 5"):
        roll_back(server, 2)


def test_an_update_that_was_being_aggregated_changes_nothing_after_a_rollback(server: Arrivals) -> None:
    server.take(goal=1, rounds=5, rest=0)
    commit(server)
    before = bias(server)
    assert server.has_place(ALICE)
    server.report(ALICE, 7.0)
    roll_back(server, 1)
    server.advance()
    assert bias(server) == before
    assert server.ends == ["committed", "abandoned", "open"]


def test_an_evaluator_is_told_that_its_round_was_undone_and_one_of_an_earlier_round_still_counts(
    server: Arrivals,
) -> None:
    server.enrol([DAVE, EVE], EVALUATORS)
    server.take(goal=1, rounds=9, rest=0, pause_if_accuracy_falls=5)
    commit(server)
    assert server.has_place(DAVE)
    finds(server, EVE, 80)
    commit(server)
    undone = server.check_in(EVE).assignment

    roll_back(server, 1)

    with pytest.raises(RoundClosed, match="round 2 of task 1 was undone"):
        server.evaluate(EVE, evaluation_of(undone), number=2)
    assert server.check_in(EVE).HasField("wait")
    assert server.check_in(DAVE).assignment.round == 1
    finds(server, DAVE, 60)
    # 80 and 60 of a hundred each
    assert getattr(server.show().rounds[0], "global")[0].correct == 140


def test_a_model_is_not_compared_with_those_of_undone_rounds(server: Arrivals) -> None:
    server.enrol([EVE], EVALUATORS)
    server.take(goal=1, rounds=9, rest=0, pause_if_accuracy_falls=5)
    for right in (70, 90):
        commit(server)
        finds(server, EVE, right)

    roll_back(server, 1)
    commit(server)
    finds(server, EVE, 70)
    assert not server.task.paused
    commit(server)
    finds(server, EVE, 60)

    assert server.task.paused.startswith("because accuracy fell: 60.0 % after round 5, 70.0 % after round 1;")


def test_state_of_single_clients_is_a_reason_to_refuse(patchwork: Bench) -> None:
    patchwork.start(tiny_bundle(references=("global",), fill=0.5), method="patchwork")
    for client in (ALICE, BOB):
        patchwork.upload(client, {"fc.bias": np.full(2, 2.0, np.float32)}, class_counts=[4, 6])
    patchwork.advance()
    assert patchwork.show().task.rounds_committed == 1

    with pytest.raises(TaskDiffers, match="'patchwork' has state of single clients"):
        roll_back(patchwork, 1)


@pytest.mark.parametrize("dual", ["server", "client"])
def test_a_method_whose_clients_have_state_gives_no_place_for_nothing_and_takes_nothing_back(
    server: Arrivals, dual: str
) -> None:
    manifest = dynamic().parsed
    for each in manifest.programs:
        if not each.files:
            each.files.extend(manifest.programs[0].files)
    bundle = replace(dynamic(), manifest=manifest.SerializeToString(deterministic=True))
    asked = {"method": "feddyn", "options": {"dual": dual}, "over_selection": None, "goal": 2}

    with pytest.raises(SettingsError, match='release: found "manual", must be "auto" with feddyn'):
        server.take(bundle, **asked, release="manual")
    server.take(bundle, **asked)

    assert server.task.places == 2
    with pytest.raises(TaskDiffers, match="'feddyn' has state of single clients"):
        roll_back(server, 1)


def test_clients_predict_with_the_released_model_alone(server: Arrivals) -> None:
    server.take(goal=1, rounds=9, rest=0, release="manual")
    commit(server)
    assert used(server) is None

    release(server)
    first = used(server)
    assert first == bias(server)
    for _ in range(4):
        commit(server)
    server.reopen()

    assert used(server) == first
    assert server.show().task.released_round == 1
    assert bias(server) == first + 4


def test_a_rollback_takes_a_later_release_back_with_it(server: Arrivals) -> None:
    server.take(goal=1, rounds=9, rest=0, release="manual")
    commit(server)
    after_first = bias(server)
    commit(server, 50.0)
    release(server, 2)

    roll_back(server, 1)

    assert server.show().task.released_round == 1
    assert used(server) == after_first


def test_a_task_that_releases_by_itself_is_told_apart(server: Arrivals) -> None:
    server.take(goal=1, rounds=3)
    commit(server)
    with pytest.raises(TaskDiffers, match='release "auto"'):
        release(server, 1)
