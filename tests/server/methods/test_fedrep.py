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


def stages(**settings: Any) -> list[tuple[int, int, dict[str, float]]]:
    """Epochs, steps and hyper-parameters of each stage."""
    (phase,) = made("fedrep", BUNDLE, **settings).phases
    return [
        (stage.epochs, stage.steps, {value.name: value.value for value in stage.hyper_values})
        for stage in phase.local_plan.stages
    ]


def test_the_classifier_is_trained_first_and_the_extractor_after_it() -> None:
    assert stages(epochs=2, options={"classifier_epochs": 7}, hyper={"momentum": 0.9, "lr_extractor": 0.01}) == [
        (7, 0, {"momentum": 0.9, "lr_extractor": 0.0}),
        (2, 0, {"momentum": 0.9, "lr_extractor": 0.01, "lr_classifier": 0.0}),
    ]


def test_without_options_each_is_trained_for_an_epoch() -> None:
    assert [stage[:2] for stage in stages()] == [(1, 0), (1, 0)]


def test_the_extractor_may_be_trained_for_steps() -> None:
    assert [stage[:2] for stage in stages(steps=30)] == [(1, 0), (0, 30)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"classifier_epochs": 0}}, r"options.classifier_epochs: found 0, must be a whole number, 1 to"),
        ({"options": {"classifier_epochs": True}}, r"options.classifier_epochs: found True"),
        ({"options": {"epochs": 2}}, r"options.epochs: found set, must be left out: the options of fedrep are classif"),
        ({"hyper": {"lr_classifier": 0.0}}, r"hyper.lr_classifier: found 0, must be above 0 for fedrep"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        stages(**settings)


def test_a_bundle_without_a_learning_rate_for_each_part_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"hyper_parameters: found lr_classifier, momentum, must be with lr_extr"):
        made("fedrep", network())
