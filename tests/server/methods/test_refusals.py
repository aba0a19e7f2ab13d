"""Settings and bundles that do not fit a method are refused by name."""

from typing import Any

import pytest

from fedlens_server.planning.task_settings import SettingsError
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.methods.tasks import PROXIMAL, SUPCON, changed, made, with_reference
from tests.server.methods.test_shared_sets import other_extractor
from tests.server.networks import network


@pytest.mark.parametrize("name", ["fedavg", "fedavg_last_fc", "fedns", "fedper", "fedprox", "local_only"])
def test_a_method_without_options_refuses_them(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"options\.rho: found set, must be left out: {name} has no options"):
        made(name, options={"rho": 0.5})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedclassavg", {"weight": 1}, r"weight: found 1, must be true or false"),
        ("fedclassavg", {"rho": 1}, r"rho: found set, must be left out: the options of fedclassavg are"),
        ("fedrep", {"extractor_epochs": 0}, r"extractor_epochs: found 0, must be a whole number, 1 to"),
        ("fedrep", {"extractor_epochs": True}, r"extractor_epochs: found True"),
        ("fedrep", {"epochs": 2}, r"epochs: found set, must be left out: the options of fedrep are extractor_epochs"),
        ("pfedsim", {"variant": "printed"}, r"variant: found 'printed', must be \"paper\" or \"reference\""),
        ("pfedsim", {"warm_up": 1.5}, r"warm_up: found 1.5, must be a number, 0 to 1"),
        ("pfedsim", {"warm_up": "half"}, r"warm_up: found 'half', must be a number, 0 to 1"),
        ("pfedsim", {"rho": 0.5}, r"rho: found set, must be left out: the options of pfedsim are"),
    ],
)
def test_an_option_that_does_not_fit(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=rf"options\.{message}"):
        made(name, options=options)


THREE_CLASSES = changed(network(), class_names=["cat", "dog", "fox"])
NO_ROWS = r"\[0\]: found classifier tensor fc.bias \[2\], must be one with a row for"
NO_EXTRACTOR = r"\[0\]: found model 'tiny' without layers before the classifier, must be one with"
REFERENCE = r"\[0\]\.objective: found 'proximal', which wants reference 'global', must be one without"


@pytest.mark.parametrize(
    ("name", "bundles", "message"),
    [
        (
            "fedavg_last_fc",
            [THREE_CLASSES],
            NO_ROWS,
        ),
        ("fedns", [THREE_CLASSES], NO_ROWS),
        (
            "fedper",
            [tiny_bundle()],
            NO_EXTRACTOR,
        ),
        ("fedper", [PROXIMAL], REFERENCE),
        ("fedper", [network(), network(width=5)], r"\[1\]: found a bundle with other tensors"),
        ("fedprox", [network()], r"\[0\]\.objective: found 'cross_entropy', must be proximal for fedprox; export the"),
        ("fedprox", [network()], r"\[0\]\.objective: .*; export the bundle with --objective proximal"),
        (
            "fedrep",
            [tiny_bundle()],
            NO_EXTRACTOR,
        ),
        ("fedrep", [PROXIMAL], REFERENCE),
        ("fedrep", [network()], r"\[0\]\.hyper_parameters: found lr_classifier, momentum, must be with lr_extr"),
        ("fedclassavg", [PROXIMAL], r"\[0\]\.objective: found 'proximal', must be supcon or supcon_raw or classif"),
        (
            "fedclassavg",
            [SUPCON, other_extractor(rows=5)],
            r"\[1\]: found a classifier of fc.bias \[5\], fc.weight \[2, 2\], must be one like the first b",
        ),
        (
            "fedclassavg",
            [SUPCON, changed(network(), model="plain")],
            r"\[1\]: found model 'plain', 'cross_entropy', must be like the first bundle",
        ),
        ("pfedsim", [tiny_bundle()], r"\[0\]: found a model without an extractor to mix"),
        ("pfedsim", [tiny_bundle(references=["global"])], r"\[0\]\.objective"),
    ],
)
def test_a_bundle_that_does_not_fit(name: str, bundles: list[TinyBundle], message: str) -> None:
    with pytest.raises(SettingsError, match=f"manifests{message}"):
        made(name, *bundles)


def test_models_that_differ_are_not_averaged() -> None:
    message = r"manifests\[1\]: found a bundle with other tensors or weights than the first, must be bundles with equal"
    with pytest.raises(SettingsError, match=message):
        made("fedclassavg", SUPCON, other_extractor(), options={"weight": True})


@pytest.mark.parametrize(
    ("bundle", "hyper"), [(PROXIMAL, {"mu": 0.0}), (with_reference(network(), "proximal", ["fc.bias"], mu=0.0), {})]
)
def test_fedprox_without_its_term(bundle: TinyBundle, hyper: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=r"hyper.mu: found 0, must be above 0 for fedprox"):
        made("fedprox", bundle, hyper=hyper)
