"""FedConcat by the bias of classifiers (-IB), and with other methods' clusters."""

from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.arithmetic.inferred_labels import from_bias
from fedlens_server.planning.method import Method, State
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle
from tests.server.concatenated import concatenated
from tests.server.fakes import ALICE, BOB, CAROL
from tests.server.methods.centres import choosing
from tests.server.methods.golden import cases
from tests.server.methods.tasks import PROXIMAL, after, changed, made, tools, update
from tests.server.methods.test_ifca import answer
from tests.server.networks import network, weights


def method_of(bundle: TinyBundle, *, rounds: int = 5, **options: Any) -> Method:
    given = {"clusters": 2, "classifier_rounds": 2, **options}
    return made("fedconcat", bundle, concatenated(2), rounds=rounds, options=given)


def test_the_worked_cases() -> None:
    for case in cases("fedconcat_ib"):
        given = case.inputs
        found = from_bias(given["bias_before"], given["bias_after"], int(given["steps"]), float(given["lr"]))
        case.check("distribution", found)


def test_clients_whose_biases_moved_alike_are_in_one_cluster() -> None:
    method = method_of(network(), labels="bias")
    state = method.begin(method.phases[0], State(), tools())

    def moved(client: bytes, *bias: float, photos: int = 1) -> Any:
        classifier = {"fc.bias": np.array(bias, np.float32), "fc.weight": weights(0.0)["fc.weight"]}
        return update(client, classifier, photos)

    # Carol moves twice as far in two steps: 8 photos are 2 batches of 4.
    found = [moved(ALICE, 0.1, -0.1), moved(BOB, -0.1, 0.1), moved(CAROL, 0.2, -0.2, photos=8)]
    state = after(method, state, found)

    assert [state.clients[each]["cluster"] for each in (ALICE, BOB, CAROL)] == [0, 1, 0]
    (upload,) = method.phases[0].plan.uploads
    assert upload.tensors.roles
    hyper = {each.name: each.value for each in method.phases[0].plan.instructions[1].train.hyper_values}
    assert hyper["momentum"] == 0.0


def test_labels_by_bias_need_bundles_that_train_alike() -> None:
    rate = manifest_pb2.HyperParameter(name="lr_classifier", default_value=0.2, maximum=10.0)
    bundles = (network(), changed(network(), hyper_parameters=[rate]), concatenated(2))
    options = {"clusters": 2, "classifier_rounds": 1}

    made("fedconcat", *bundles, options=options)
    with pytest.raises(SettingsError, match=r"manifests\[1\].hyper_parameters: found other names"):
        made("fedconcat", *bundles, options={**options, "labels": "bias"})


@pytest.mark.parametrize(
    ("name", "bundle"), [("fesem", PROXIMAL), ("ifca", choosing()), ("fedsoft", choosing(2, "proximal"))]
)
def test_the_centres_of_another_method_become_the_extractors(name: str, bundle: TinyBundle) -> None:
    method = method_of(bundle, clustering=name)
    assert [(phase.name, phase.rounds) for phase in method.phases] == [("extract", 3), ("concatenate", 2)]
    state = method.begin(method.phases[0], State(), tools())
    if name == "ifca":
        state = after(method, state, [answer(ALICE, 1.0, 1)])
    before = [state.shared[f"centre-{k}"] for k in range(2)]

    state = method.begin(method.phases[1], state, tools())

    assert state.clients == {}
    for j, model in enumerate(before):
        np.testing.assert_array_equal(state.shared[f"cluster_{j}"]["conv.weight"], model["conv.weight"])
        assert "fc.bias" not in state.shared[f"cluster_{j}"]
    sent = method.download(method.phases[1], state, BOB) or {}
    assert sorted(sent) == ["cluster_0", "cluster_1", "global"]


@pytest.mark.parametrize(
    ("bundle", "given", "message"),
    [
        (
            PROXIMAL,
            {"clustering": "fesem", "labels": "bias"},
            "options.labels: found 'bias', must be left out",
        ),
        (PROXIMAL, {"clustering": "fesem", "clusters": "elbow"}, "options.clusters: found"),
        (network(), {"clustering": "fesem"}, "must be proximal for fesem"),
        (network(), {"clustering": "ifca"}, "without program 'compare'"),
        (PROXIMAL, {"clustering": "fesem", "rounds": 2}, "rounds: found 2, must be extractor_rounds"),
    ],
)
def test_what_does_not_fit_is_refused(bundle: TinyBundle, given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        method_of(bundle, **given)
