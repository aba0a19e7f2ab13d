"""Predictions on public photos: KT-pFL's soft ones and FedMD's raw scores.

Papers: Zhang et al., NeurIPS 2021, arXiv:2111.02862 (KT-pFL); Li, Wang 2019, arXiv:1910.03581 (FedMD).

    paper      here                                    program
    s_k        scores = softmax(z / T), [P, C]         `predictions`
    T          hyper["temperature"]
    f_k(x)     scores = z, [P, C]                      `scores`

z are the logits of `model`. Both programs make the table `predictions`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from fedlens_export.hyper import Hyper, Scalars
from fedlens_export.objectives.distil import TEMPERATURE
from fedlens_export.objectives.objective import without_padding
from fedlens_export.programs.derivations.derivation import Derivation, Setting, float_slots, model, program
from fedlens_export.programs.steps import Arguments, ProgramSource
from fedlens_proto.v1 import manifest_pb2 as pb

MODEL = model("model")


def soft(logits: Tensor, hyper: Scalars) -> Tensor:
    """Probabilities of softened logits, float32 [B, C]."""
    return torch.exp(functional.log_softmax(logits / hyper[TEMPERATURE.name], 1))


def raw(logits: Tensor, hyper: Scalars) -> Tensor:
    """The logits."""
    del hyper
    return logits


def build(
    setting: Setting, name: str, scores: Callable[[Tensor, Scalars], Tensor], hyper: tuple[Hyper, ...]
) -> ProgramSource:
    """A program that gives scores of each public row."""

    def compute(given: Arguments) -> dict[str, Tensor]:
        rows = without_padding(given.one(pb.SLOT_KIND_INPUT), given.one(pb.SLOT_KIND_MASK))
        logits = setting.logits(given.references()[MODEL.name], rows)
        return {"scores": scores(logits, given.named(pb.SLOT_KIND_HYPER))}

    outputs = float_slots(pb.SLOT_KIND_RESULT, {"scores": (setting.batch, setting.classes)})
    return program(setting, name, "predictions", [MODEL], outputs, compute, over_rows=True, hyper=hyper)


def _derivation(name: str, scores: Callable[[Tensor, Scalars], Tensor], *hyper: Hyper) -> Derivation:
    return Derivation(name, partial(build, name=name, scores=scores, hyper=hyper), hyper, over_public=True)


PREDICTIONS = _derivation("predictions", soft, TEMPERATURE)
SCORES = _derivation("scores", raw)
