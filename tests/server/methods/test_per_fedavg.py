import numpy as np
import pytest

from fedlens_server.planning.method import GLOBAL, NothingToAggregate
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.programs import adapting, check_plans
from tests.server.methods.tasks import after, begun, changed, made, update
from tests.server.networks import network, weights


def test_the_mean_is_plain_whatever_the_numbers_of_photos() -> None:
    method = made("per_fedavg", adapting())

    state = after(method, begun(method), [update(ALICE, weights(1.0), 1), update(BOB, weights(4.0), 99)])

    # (1 + 4) / 2; the counter is the larger one.
    np.testing.assert_array_equal(state.shared[GLOBAL]["fc.bias"], [2.5, 2.5])
    assert state.shared[GLOBAL]["bn.batches"] == 4


def test_who_trained_on_nothing_does_not_count() -> None:
    method = made("per_fedavg", adapting())
    unfit = update(BOB, {name: value + 9 for name, value in weights(0.0).items()}, 0)

    state = after(method, begun(method), [unfit, update(CAROL, weights(3.0), 2)])

    np.testing.assert_array_equal(state.shared[GLOBAL]["fc.bias"], [3.0, 3.0])
    with pytest.raises(NothingToAggregate):
        after(method, begun(method), [unfit])


@pytest.mark.parametrize("objective", ["meta_fo", "meta_hf"])
def test_clients_adapt_the_download_for_one_epoch_and_keep_what_they_predict_with(objective: str) -> None:
    bundle = adapting(objective)
    method = made("per_fedavg", bundle, epochs=3, difference=True, hyper={"alpha": 0.5, "lr_classifier": 0.2})

    check_plans(method, bundle)
    (phase,) = method.phases
    _, meta, tune = (each.train for each in phase.plan.instructions)
    assert [(each.program, each.start, each.epochs) for each in (meta, tune)] == [
        ("step", "start", 3),
        ("fine_tune", "start", 1),
    ]
    assert {each.name: each.value for each in meta.hyper_values} == {
        "alpha": 0.5,
        "lr_classifier": 0.2,
        "momentum": 0.0,
    }
    assert {each.name: each.value for each in tune.hyper_values} == {"alpha": 0.5}
    assert [(each.state, each.value) for each in phase.plan.keeps] == [("adapted", "fine_tuned")]
    assert [(each.source.state, each.source.download) for each in phase.model_rules] == [("adapted", GLOBAL)]
    assert [each.label for each in phase.plan.evaluations] == ["start", "trained", "fine_tuned"]
    assert phase.plan.uploads[0].base == GLOBAL


def test_a_task_may_set_momentum() -> None:
    (phase,) = made("per_fedavg", adapting(), hyper={"momentum": 0.5}).phases

    _, meta, tune = (each.train for each in phase.plan.instructions)
    assert {each.name: each.value for each in meta.hyper_values} == {"momentum": 0.5}
    assert not tune.hyper_values


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"objective: found 'cross_entropy', must be meta_fo or meta_hf"):
        made("per_fedavg", network())
    for bundle, hyper in ((adapting(), {"alpha": 0.0}), (adapting(alpha=0.0), {})):
        with pytest.raises(SettingsError, match=r"hyper.alpha: found 0, must be above 0"):
            made("per_fedavg", bundle, hyper=hyper)
    without = changed(adapting(), programs=list(adapting().parsed.programs)[:2])
    with pytest.raises(SettingsError, match=r"program 'fine_tune', must be .* with --objective meta_fo"):
        made("per_fedavg", without)
