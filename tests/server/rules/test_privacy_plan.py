"""Tasks that cannot have central privacy are refused, and the text says why."""

from typing import Any

import pytest

from fedlens_server.methods import METHODS
from fedlens_server.planning.method import Shared
from fedlens_server.planning.task_settings import SettingsError, parse
from tests.server.bundles import tiny_bundle
from tests.server.networks import network
from tests.server.rules.private_tasks import DP, TASKS, planned


def test_the_methods_that_are_one_mean_of_one_model_are_these() -> None:
    assert {name for name, definition in METHODS.items() if definition.shares == Shared.ONLY_MEAN} == TASKS.keys()


@pytest.mark.parametrize("name", sorted(METHODS.keys() - TASKS.keys()))
def test_any_other_method_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingsError, match=f"dp: found an object with method '{name}', which is not one mean of one"):
        planned(name)


def test_statistics_of_batch_norm_are_not_uploaded() -> None:
    with pytest.raises(SettingsError, match=r"manifests\[0\]: found model 'tiny' with statistics of BatchNorm, 'bn\."):
        planned("fedavg", network())

    assert planned("fedavg", network(), batch_norm="local_statistics").shapes.keys() == {
        *("bn.weight", "conv.weight", "fc.bias", "fc.weight")
    }
    assert planned("fedavg", network(), batch_norm="local").shapes.keys() == {"conv.weight", "fc.bias", "fc.weight"}


def test_integers_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"manifests\[0\]: found model 'tiny' with .*'bn\.batches'"):
        planned("fedavg", tiny_bundle(with_counter=True))


RULES: list[dict[str, Any]] = [
    *({rule: True} for rule in ("exclude", "clip", "cap", "median")),
    *({"trimmed_mean": 0.1}, {"krum": 1, "goal": 9, "min_reports": 5}),
]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_participations": None}, "max_participations: found nothing, must be the rounds in which a client takes"),
        ({"personal_evaluation": True}, "personal_evaluation: found true, must be false with dp"),
        ({"max_update_norm": 3.0}, "max_update_norm: found 3.0, must be left out with dp"),
        *((each, f"{next(iter(each))}: found .*, must be off with dp: a rule that looks at") for each in RULES),
    ],
)
def test_what_breaks_the_promise_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        planned("fedavg", **settings)


@pytest.mark.parametrize(
    ("dp", "message"),
    [
        ("1", 'dp: found 1, must be an object with "clip" above 0'),
        ('{"clip": 1}', "dp.noise: found nothing, must be an object"),
        ('{"clip": 0, "noise": 1}', "dp.clip: found 0, must be"),
        ('{"clip": 1, "noise": 0}', "dp.noise: found 0, must be"),
        ('{"clip": 1, "noise": 1, "delta": 1}', "dp.delta: found 1, must be"),
        ('{"clip": 1, "noise": 1, "seed": 1}', "dp.seed: found 1, must be"),
    ],
)
def test_the_object_has_clip_noise_and_delta(dp: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(f'{{"method": "fedavg", "rounds": 1, "selection": "arrivals", "goal": 2, "dp": {dp}}}')


def test_delta_is_a_millionth_unless_it_is_given() -> None:
    text = '{"method": "fedavg", "rounds": 1, "population": 2, "max_participations": 1, "dp": {"clip": 1, "noise": 1}}'

    settings = parse(parse(text).public_json())

    assert settings.dp is not None
    assert settings.dp.delta == 1e-6
    assert settings.dp.model_dump() | {"delta": 1e-6} == DP | {"delta": 1e-6}
