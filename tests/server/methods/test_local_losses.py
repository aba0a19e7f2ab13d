"""MOON, FedRS, FedLC and Ditto: FedAvg for the server; plan and objective are their own."""

from typing import Any

import numpy as np
import pytest

from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle
from tests.server.fakes import ALICE, BOB
from tests.server.methods.programs import Extended, check_plans
from tests.server.methods.tasks import PROXIMAL, after, begun, made, update
from tests.server.networks import network, weights


def contrasting() -> TinyBundle:
    extended = Extended("moon")
    extended.hyper(extended.step, "mu", 5.0)
    for reference in ("global", "previous"):
        extended.refer(extended.step, reference)
    return extended.bundle()


def counting(objective: str, **hyper: float) -> TinyBundle:
    extended = Extended(objective)
    for name, value in hyper.items():
        extended.hyper(extended.step, name, value)
    extended.refer(extended.step, "label_counts", {"label_counts": (2,)})
    return extended.bundle()


RESTRICTED = counting("restricted_softmax", alpha=0.5, soft=0.0)
CALIBRATED = counting("calibrated_logits", tau=1.0)


@pytest.mark.parametrize(
    ("method", "bundle"), [("moon", contrasting()), ("fedrs", RESTRICTED), ("fedlc", CALIBRATED), ("ditto", PROXIMAL)]
)
def test_clients_can_carry_out_the_plan_and_the_server_averages(method: str, bundle: TinyBundle) -> None:
    found = made(method, bundle)
    check_plans(found, bundle)

    state = after(found, begun(found), [update(ALICE, weights(1.0), 1), update(BOB, weights(4.0), 2)])

    np.testing.assert_array_equal(state.shared["global"]["fc.bias"], 3.0)


@pytest.mark.parametrize("method", ["moon", "fedrs", "fedlc", "ditto"])
def test_another_objective_is_refused(method: str) -> None:
    with pytest.raises(SettingsError, match=rf"found 'cross_entropy', must be \w+ for {method}; export"):
        made(method, network())


def test_moon_compares_with_the_last_model_else_with_the_global_one() -> None:
    plan = made("moon", contrasting()).phases[0].plan

    bound = {each.reference: (each.source.state, each.source.download) for each in plan.instructions[1].train.bindings}
    assert bound == {"global": ("", "global"), "previous": ("previous", "global")}
    assert [(each.state, each.value) for each in plan.keeps] == [("previous", "trained")]


@pytest.mark.parametrize(("variant", "soft"), [("paper", 0.0), ("reference", 1.0)])
def test_the_variant_of_fedrs_is_a_hyper_parameter_and_no_counts_are_sent(variant: str, soft: float) -> None:
    plan = made("fedrs", RESTRICTED, options={"variant": variant}, hyper={"alpha": 0.25}).phases[0].plan

    hyper = {each.name: each.value for each in plan.instructions[1].train.hyper_values}
    assert hyper == {"alpha": 0.25, "soft": soft}
    assert not plan.statistics


def test_ditto_trains_the_global_model_without_the_pull_and_its_own_with_it() -> None:
    method = made("ditto", PROXIMAL, options={"lambda": 0.5})

    trainings = [each.train for each in method.phases[0].plan.instructions if each.HasField("train")]
    pulls = [{hyper.name: hyper.value for hyper in each.hyper_values}["mu"] for each in trainings]
    assert pulls == [0.0, 0.5]
    assert [each.label for each in method.phases[0].plan.evaluations] == ["trained", "personal"]
    assert [each.source.state for each in method.phases[0].model_rules] == ["personal"]


@pytest.mark.parametrize(
    ("method", "bundle", "settings", "message"),
    [
        ("fedrs", RESTRICTED, {"hyper": {"soft": 1.0}}, "hyper.soft: found 1.0, must be left out"),
        ("ditto", PROXIMAL, {"hyper": {"mu": 1.0}}, "hyper.mu: found 1.0, must be left out"),
        ("ditto", PROXIMAL, {"options": {"lambda": -1}}, "options.lambda: found -1"),
        ("moon", contrasting(), {"options": {"mu": 1}}, "options.mu: found set"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    method: str, bundle: TinyBundle, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        made(method, bundle, **settings)
