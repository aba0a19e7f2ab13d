from typing import Any

import numpy as np
import pytest

from fedlens_proto.v1 import assignment_pb2, manifest_pb2
from fedlens_server.methods.fedclassavg import average
from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.methods.golden import cases
from tests.server.methods.tasks import ALICE, BOB, after, begun, changed, made, plan, update, with_reference
from tests.server.networks import network, weights

CLASSIFIER = ["fc.bias", "fc.weight"]
SUPCON = with_reference(network(), "supcon", CLASSIFIER)


def other_extractor(rows: int = 2) -> TinyBundle:
    """A network with another convolution; with other than two rows, another classifier too."""
    tensors = list(manifest_pb2.Manifest.FromString(SUPCON.manifest).tensors)
    for tensor in tensors:
        if tensor.name == "conv.weight":
            tensor.shape[:] = [2, 17]
        if tensor.name == "fc.bias":
            tensor.shape[:] = [rows]
    return changed(SUPCON, tensors=tensors, model="other")


def test_classifiers_are_averaged_by_the_photos_of_who_takes_part() -> None:
    # (1 * 2 + 3 * 6) / 4
    np.testing.assert_array_equal(average([np.float32([2.0]), np.float32([6.0])], [1, 3]), [5.0])


def test_it_agrees_with_the_worked_cases() -> None:
    averaged = [case for case in cases("fedclassavg_") if "n" in case.inputs]
    for case in averaged:
        for name in case.outputs.keys() & case.inputs.keys():
            case.check(name, average(list(case.inputs[name]), case.inputs["n"]))


def test_the_classifier_is_shared_and_the_extractor_kept() -> None:
    task = plan("fedclassavg", SUPCON)
    (phase,) = made(task).phases(task)

    shared, own = phase.local_plan.start
    (reference,) = phase.local_plan.references
    assert shared.source == reference.set == assignment_pb2.SetSource(download="global")
    assert own.source == assignment_pb2.SetSource(kept="extractor", download="initial")
    assert [(keep.set, keep.tensors) for keep in phase.local_plan.keep] == [("extractor", own.tensors)]
    assert phase.local_plan.upload.tensors == shared.tensors


def test_only_the_classifier_enters_the_state() -> None:
    task = plan("fedclassavg", SUPCON)
    method = made(task)
    sent = [
        update(client, {name: weights(value)[name] for name in CLASSIFIER})
        for client, value in ((ALICE, 1.0), (BOB, 2.0))
    ]

    state = after(method, task, begun(method, task, 7.0), sent)

    assert sorted(begun(method, task, 7.0)["global"]) == sorted(state["global"]) == CLASSIFIER
    np.testing.assert_array_equal(state["global"]["fc.bias"], [1.5, 1.5])
    assert method.download(method.phases(task)[0], state, None) is None


def test_with_weight_everything_is_averaged_and_there_is_a_global_model() -> None:
    task = plan("fedclassavg", SUPCON, options={"weight": True})
    method = made(task)
    (phase,) = method.phases(task)

    state = after(method, task, begun(method, task), [update(ALICE, weights(1.0)), update(BOB, weights(2.0))])

    assert not phase.local_plan.keep
    assert not phase.local_plan.upload.HasField("tensors")
    np.testing.assert_array_equal(state["global"]["conv.weight"], np.full((2, 3), 1.5))
    assert method.download(phase, state, None) == {"global": state["global"]}


def test_extractors_may_differ() -> None:
    task = plan("fedclassavg", SUPCON, other_extractor())

    assert len(made(task).phases(task)) == 1


def test_a_model_that_is_all_classifier_keeps_nothing() -> None:
    task = plan("fedclassavg", tiny_bundle())
    (phase,) = made(task).phases(task)

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
        made(plan("fedclassavg", *bundles, **settings))
