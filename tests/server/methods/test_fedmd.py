from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.fedmd import consensus
from fedlens_server.planning.method import State, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.golden import cases
from tests.server.methods.programs import check_plans, distilling
from tests.server.methods.tasks import after, begun, made
from tests.server.networks import network

BUNDLE = distilling("distil_scores", "scores")


def answer(client: bytes, value: float) -> Update:
    return Update(client=client, num_examples=1, values={"predictions": {"scores": np.full((3, 2), value, np.float32)}})


def teacher(state: State) -> float:
    return float(state.shared["teacher"]["scores"][2, 1])


def test_the_consensus_equals_the_worked_cases() -> None:
    for case in cases("fedmd"):
        case.check("consensus", consensus(list(case.inputs["scores"])))


def test_clients_outside_a_round_count_with_their_last_scores_and_forgotten_ones_not_at_all() -> None:
    method = made("fedmd", BUNDLE)
    state = after(method, begun(method), [answer(ALICE, 1.0), answer(BOB, 4.0)])
    assert teacher(state) == 2.5

    state = after(method, state, [answer(CAROL, 10.0), answer(BOB, 7.0)], phase=1)
    assert teacher(state) == 6.0  # (1 + 7 + 10) / 3

    without_bob = State(shared=state.shared, clients={c: own for c, own in state.clients.items() if c != BOB})
    assert teacher(after(method, without_bob, [answer(ALICE, 2.0)], phase=1)) == 6.0  # (2 + 10) / 2


def test_the_consensus_may_be_the_median_of_all_who_have_answered() -> None:
    method = made("fedmd", BUNDLE, median=True)
    state = after(method, begun(method), [answer(ALICE, 1.0), answer(BOB, 3e38)])

    assert teacher(after(method, state, [answer(CAROL, 2.0)], phase=1)) == 2.0


def test_the_first_round_is_without_a_teacher_and_no_round_has_a_global_model() -> None:
    method = made("fedmd", BUNDLE)
    first, second = method.phases
    state = after(method, begun(method), [answer(ALICE, 1.0)])

    assert method.download(first, state, ALICE) == {}
    assert method.download(second, state, BOB) == {"teacher": state.shared["teacher"]}
    assert method.download(second, state, None) is None


def trainings(plan: pb.LocalPlan) -> list[tuple[str, str, int, int]]:
    found = [each.train for each in plan.instructions if each.HasField("train")]
    return [(each.program, each.start, each.epochs, each.rows) for each in found]


def test_clients_transfer_first_then_digest_and_revisit() -> None:
    method = made("fedmd", BUNDLE, epochs=4, options={"transfer_epochs": 3, "digest_epochs": 2})

    check_plans(method, BUNDLE)
    assert [phase.rounds for phase in method.phases] == [1, 2]
    first, later = (phase.plan for phase in method.phases)
    own = pb.ROWS_TRAIN
    assert trainings(first) == [("step", "start", 3, pb.ROWS_PUBLIC), ("step", "transferred", 4, own)]
    assert trainings(later) == [("distil", "start", 2, pb.ROWS_PUBLIC), ("step", "distilled", 4, own)]
    assert [each.name for each in later.uploads] == ["predictions"]


def test_public_photos_without_labels_need_no_transfer_and_one_round_no_second_phase() -> None:
    (phase,) = made("fedmd", BUNDLE, rounds=1, options={"transfer_epochs": 0}).phases

    assert trainings(phase.plan) == [("step", "start", 1, pb.ROWS_TRAIN)]


@pytest.mark.parametrize(
    ("bundle", "options", "message"),
    [
        (network(), {}, r"objective: found 'cross_entropy', must be distil_scores or distil_scores_squared"),
        (BUNDLE, {"digest_epochs": 0}, r"options.digest_epochs: found 0"),
    ],
)
def test_what_does_not_fit_is_refused(bundle: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made("fedmd", bundle, options=options)
