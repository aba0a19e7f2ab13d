import numpy as np
import pytest

from fedlens_server.methods.arithmetic.centres import mean_set
from fedlens_server.methods.fedsoft import client_shares
from fedlens_server.planning.method import NothingToAggregate, Update
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE, BOB
from tests.server.methods.centres import choosing
from tests.server.methods.golden import cases
from tests.server.methods.programs import check_plans
from tests.server.methods.tasks import after, begun, made
from tests.server.networks import weights

SOFT = choosing(2, "proximal")


def answer(client: bytes, value: float, importance: list[float], photos: int = 1) -> Update:
    values = {"weights": weights(value), "importance": {"score": np.array(importance, np.float32)}}
    return Update(client=client, num_examples=photos, values=values)


def test_the_worked_cases() -> None:
    for case in cases("fedsoft"):
        if "v" not in case.outputs:
            continue
        shares = client_shares(case.outputs["u"], case.inputs["n"].tolist())
        case.check("v", shares)
        models = [{"w": model} for model in case.inputs["weight"]]
        found = [mean_set(models, column.tolist(), models[0])["w"] for column in shares.T]
        case.check("centres", np.array(found))


def test_each_centre_is_the_mean_by_importance_and_photos() -> None:
    method = made("fedsoft", SOFT)

    state = after(method, begun(method), [answer(BOB, 4.0, [0.25, 0.75], 2), answer(ALICE, 1.0, [0.5, 0.5], 1)])

    # centre 0: (0.5 * 1 * 1 + 0.25 * 2 * 4) / (0.5 + 0.5) = 2.5; centre 1: (0.5 * 1 + 1.5 * 4) / 2 = 3.25
    assert [float(state.shared[f"centre-{k}"]["fc.bias"][0]) for k in range(2)] == [2.5, 3.25]
    with pytest.raises(NothingToAggregate):
        after(method, state, [answer(ALICE, 1.0, [0.5, 0.5], 0)])


@pytest.mark.parametrize("claimed", [[1e30, 1e30], [-3.0, -3.0]])
def test_a_share_that_none_can_have_does_not_take_a_centre(claimed: list[float]) -> None:
    method = made("fedsoft", SOFT)

    state = after(method, begun(method), [answer(BOB, 4.0, [0.5, 1.0]), answer(ALICE, -1.0, claimed)])

    least, most = (-1.0, 4.0)
    assert all(least < float(state.shared[f"centre-{k}"]["fc.bias"][0]) <= most for k in range(2))
    assert float(state.shared["centre-1"]["fc.bias"][0]) >= 1.5  # as if Alice's shares were 1, or none


def test_shares_that_add_up_to_more_than_one_weigh_no_more_than_others() -> None:
    method = made("fedsoft", SOFT)

    state = after(method, begun(method), [answer(BOB, 4.0, [1.0, 1.0]), answer(ALICE, 1.0, [0.5, 0.5])])

    assert [float(state.shared[f"centre-{k}"]["fc.bias"][0]) for k in range(2)] == [2.5, 2.5]


def test_with_best_a_client_starts_from_the_centre_of_its_greatest_share() -> None:
    method = made("fedsoft", SOFT, options={"start": "best"})
    check_plans(method, SOFT)
    state = after(method, begun(method), [answer(ALICE, 1.0, [0.25, 0.75])])

    of_alice, of_bob = (method.download(method.phases[0], state, client) or {} for client in (ALICE, BOB))

    assert of_alice["best"] is state.shared["centre-1"]
    assert of_bob["best"] is state.shared["centre-0"]


def test_the_plan_pulls_towards_the_mean_of_the_centres() -> None:
    method = made("fedsoft", SOFT)

    check_plans(method, SOFT)
    training = method.phases[0].plan.instructions[-1].train
    assert [(each.reference, each.source.value) for each in training.bindings] == [("global", "mean")]


def test_another_objective_is_refused() -> None:
    with pytest.raises(SettingsError, match="must be proximal for fedsoft"):
        made("fedsoft", choosing())
