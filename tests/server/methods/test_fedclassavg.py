from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import assignment_pb2
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.methods.tasks import ALICE, BOB, after, begun, changed, made, update, with_reference
from tests.server.networks import network, weights

CLASSIFIER = ["fc.bias", "fc.weight"]
SUPCON = with_reference(network(), "supcon", CLASSIFIER)


def other_extractor(rows: int = 2) -> TinyBundle:
    """A network with another convolution; with other than two rows, another classifier too."""
    tensors = list(SUPCON.parsed.tensors)
    for tensor in tensors:
        if tensor.name == "conv.weight":
            tensor.shape[:] = [2, 17]
        if tensor.name == "fc.bias":
            tensor.shape[:] = [rows]
    return changed(SUPCON, tensors=tensors, model="other")


def test_the_classifier_is_shared_and_the_extractor_kept() -> None:
    (phase,) = made("fedclassavg", SUPCON).phases

    shared, own = phase.local_plan.start
    (reference,) = phase.local_plan.references
    assert shared.source == reference.set == assignment_pb2.SetSource(download="global")
    assert own.source == assignment_pb2.SetSource(kept="extractor", download="initial")
    assert [(keep.set, keep.tensors) for keep in phase.local_plan.keep] == [("extractor", own.tensors)]
    assert phase.local_plan.upload.tensors == shared.tensors


def test_only_the_classifier_enters_the_state() -> None:
    method = made("fedclassavg", SUPCON)
    sent = [
        update(client, {name: weights(value)[name] for name in CLASSIFIER}, photos)
        for client, value, photos in ((ALICE, 2.0, 1), (BOB, 6.0, 3))
    ]

    state = after(method, begun(method, 7.0), sent)

    assert sorted(begun(method, 7.0)["global"]) == sorted(state["global"]) == CLASSIFIER
    # (1 * 2 + 3 * 6) / 4
    np.testing.assert_array_equal(state["global"]["fc.bias"], [5.0, 5.0])
    assert method.download(method.phases[0], state, None) is None


def test_with_weight_everything_is_averaged_and_there_is_a_global_model() -> None:
    method = made("fedclassavg", SUPCON, options={"weight": True})
    (phase,) = method.phases

    state = after(method, begun(method), [update(ALICE, weights(1.0)), update(BOB, weights(2.0))])

    assert not phase.local_plan.keep
    assert not phase.local_plan.upload.HasField("tensors")
    np.testing.assert_array_equal(state["global"]["conv.weight"], np.full((2, 3), 1.5))
    assert method.download(phase, state, None) == {"global": state["global"]}


def test_extractors_may_differ() -> None:
    assert len(made("fedclassavg", SUPCON, other_extractor()).phases) == 1


def test_a_model_that_is_all_classifier_keeps_nothing() -> None:
    (phase,) = made("fedclassavg", tiny_bundle()).phases

    assert len(phase.local_plan.start) == 1
    assert not phase.local_plan.keep


@pytest.mark.parametrize(
    ("bundles", "settings", "message"),
    [
        (
            [with_reference(network(), "proximal", sorted(weights(0)))],
            {},
            r"manifests\[0\].objective: found 'proximal', must be one of supcon, supcon_raw, classif",
        ),
        (
            [SUPCON, other_extractor(rows=5)],
            {},
            r"manifests\[1\]: found a classifier of fc.bias \[5\], fc.weight \[2, 2\], must be one like the first b",
        ),
        (
            [SUPCON, other_extractor()],
            {"options": {"weight": True}},
            r"manifests\[1\]: found a bundle with other tensors or weights than the first, must be bundles with equal",
        ),
        ([SUPCON], {"options": {"weight": 1}}, r"options.weight: found 1, must be true or false"),
        ([SUPCON], {"options": {"rho": 1}}, r"options.rho: found set, must be left out: the options of fedclassavg"),
        (
            [SUPCON, changed(network(), model="plain")],
            {},
            r"manifests\[1\]: found model 'plain', 'cross_entropy', must be like the first bundle",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    bundles: list[TinyBundle], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        made("fedclassavg", *bundles, **settings)
