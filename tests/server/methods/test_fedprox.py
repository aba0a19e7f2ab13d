import numpy as np
import pytest

from fedlens_server.planning.task_settings import SettingsError
from tests.server.methods.tasks import ALICE, BOB, after, begun, made, update, with_reference
from tests.server.networks import network, weights

BUNDLE = with_reference(network(), "proximal", sorted(weights(0)))


def test_the_reference_is_the_model_that_was_sent() -> None:
    (phase,) = made("fedprox", BUNDLE, hyper={"mu": 0.5}).phases

    (reference,) = phase.local_plan.references
    assert (reference.name, reference.set.download) == ("global", "global")
    assert [(value.name, value.value) for value in phase.local_plan.stages[0].hyper_values] == [("mu", 0.5)]


def test_the_server_averages_as_fedavg_does() -> None:
    method = made("fedprox", BUNDLE)

    state = after(method, begun(method), [update(ALICE, weights(2.0), 1), update(BOB, weights(6.0), 3)])

    # (1 * 2 + 3 * 6) / 4
    np.testing.assert_array_equal(state["global"]["conv.weight"], np.full((2, 3), 5.0))


@pytest.mark.parametrize(
    ("bundle", "settings", "message"),
    [
        (network(), {}, r"manifests\[0\].objective: found 'cross_entropy', must be one of proximal for fedprox"),
        (BUNDLE, {"hyper": {"mu": 0.0}}, r"hyper.mu: found 0, must be above 0 for fedprox"),
        (with_reference(network(), "proximal", ["fc.bias"], mu=0.0), {}, r"hyper.mu: found 0, must be above 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(bundle: object, settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        made("fedprox", bundle, **settings)  # type: ignore[arg-type]
