"""Objectives and programs of packages outside the tree."""

from pathlib import Path

import pytest
from torch import nn

from fedlens_export import objectives
from fedlens_export.errors import NotExportable, UnknownChoice
from fedlens_export.programs import derivations
from fedlens_export.training import Training, check_training
from fedlens_proto.manifest import objective
from tests.export import small
from tests.plugin_packages import install

OWN = """
from dataclasses import replace
from functools import partial

from fedlens_export.hyper import Hyper
from fedlens_export.objectives import cross_entropy
from fedlens_export.programs.derivations import predictions
from fedlens_export.programs.derivations.derivation import Derivation

PLAIN = replace(cross_entropy.OBJECTIVE, name="plain")
RAW = Derivation("raw_scores", partial(predictions.build, name="raw_scores", scores=predictions.raw, hyper=()))
RUSHED = replace(cross_entropy.OBJECTIVE, name="rushed", hyper=(Hyper("momentum", 0.5, 0.0, 1.0),))
TAKEN = replace(cross_entropy.OBJECTIVE, name="proximal")
"""
ENTRY_POINTS = {
    "fedlens.objectives": {"plain": "own_losses:PLAIN", "taken": "own_losses:TAKEN"},
    "fedlens.programs": {"raw_scores": "own_losses:RAW"},
}


@pytest.fixture(autouse=True)
def package(site: Path) -> None:
    """A package outside the tree with objectives and a program."""
    install(site, "own-losses", ENTRY_POINTS, own_losses=OWN)


@pytest.mark.parametrize("prefix", ["", "own_losses:"])
def test_a_bundle_has_the_objective_and_program_of_another_package(tmp_path: Path, prefix: str) -> None:
    loss, program = ("own_losses:PLAIN", "own_losses:RAW") if prefix else ("plain", "raw_scores")

    bundle = small.whole_bundle(tmp_path / "b", nn.Linear(48, 3), objective=loss, programs=(program,))

    assert objective(bundle.manifest) == "plain"
    assert "raw_scores" in {program.name for program in bundle.manifest.programs}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plane", "objective 'plane' is unknown; there are cross_entropy, .*, generated, plain, taken"),
        ("taken", "objective 'taken' has the name 'proximal' of a built-in one; give it another name"),
        (
            "own_losses:RAW",
            "objective: 'own_losses:RAW' is no Objective: the module has a Derivation 'RAW'",
        ),
    ],
)
def test_an_objective_that_cannot_be_used_is_named_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(UnknownChoice, match=words):
        objectives.by_name(name)


def test_an_objective_whose_hyper_parameter_has_the_name_of_the_optimisers_is_refused_first() -> None:
    training = Training(class_names=small.CLASSES, objective="own_losses:RUSHED")

    with pytest.raises(
        NotExportable, match="'rushed' has a hyper-parameter 'momentum', which another part of its prog"
    ):
        check_training(training)


def test_a_program_is_no_objective_and_its_error_says_so() -> None:
    with pytest.raises(UnknownChoice, match="program: 'own_losses:PLAIN' is no Derivation: the module has a Objective"):
        derivations.by_name("own_losses:PLAIN")
