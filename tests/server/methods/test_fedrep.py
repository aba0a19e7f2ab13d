from typing import Any

import pytest

from fedlens_proto.v1 import manifest_pb2
from fedlens_server.planning.task_settings import SettingsError
from tests.server.methods.tasks import changed, made
from tests.server.networks import network

BUNDLE = changed(
    network(),
    hyper_parameters=[
        manifest_pb2.HyperParameter(name=name, default_value=0.1, maximum=10.0)
        for name in ("lr_classifier", "lr_extractor", "momentum")
    ],
)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"epochs": 7, "options": {"extractor_epochs": 2}, "hyper": {"momentum": 0.9, "lr_extractor": 0.01}},
            [
                (7, 0, {"momentum": 0.9, "lr_extractor": 0.0}),
                (2, 0, {"momentum": 0.9, "lr_extractor": 0.01, "lr_classifier": 0.0}),
            ],
        ),
        ({}, [(1, 0, {"lr_extractor": 0.0}), (1, 0, {"lr_classifier": 0.0})]),
        ({"steps": 30}, [(0, 30, {"lr_extractor": 0.0}), (1, 0, {"lr_classifier": 0.0})]),
    ],
)
def test_the_classifier_is_trained_first_and_the_extractor_for_epochs_after_it(
    settings: dict[str, Any], expected: list[tuple[int, int, dict[str, float]]]
) -> None:
    (phase,) = made("fedrep", BUNDLE, **settings).phases

    _, head, extractor = phase.plan.instructions
    assert [
        (each.train.epochs, each.train.steps, {value.name: value.value for value in each.train.hyper_values})
        for each in (head, extractor)
    ] == expected
    assert (head.train.start, extractor.train.start, extractor.value) == ("start", head.value, "trained")


def test_a_learning_rate_of_0_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"hyper.lr_classifier: found 0, must be above 0 for fedrep"):
        made("fedrep", BUNDLE, hyper={"lr_classifier": 0.0})
