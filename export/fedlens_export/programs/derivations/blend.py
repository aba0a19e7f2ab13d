"""A model that is the sum of candidate models by their scores: IFCA's centre, FedSoft's mean, FedFomo's start.

    here               meaning
    scores["score"]    [K], by any program that scores candidates
    candidate-k        a model, k = 0 .. K-1; may be absent
    base               the model if no candidate counts; may be absent

Every float tensor is `sum_k s_k theta_k / sum_k s_k`, where s_k is the score if that is above 0 and the candidate is
present, else 0. A term of 0 is left out, so a candidate that does not count may hold anything. Integers are those of
the candidate with the greatest s_k; ties: the lowest k. If all s_k are 0, the model is `base`; without one its float
tensors are NaN, so that the local plan fails.
"""

import torch
from torch import Tensor

from fedlens_export.network import PRESENT
from fedlens_export.programs.derivations.compare import BASE, SCORE
from fedlens_export.programs.derivations.derivation import (
    Derivation,
    Setting,
    candidates,
    is_first_least,
    program,
    table,
)
from fedlens_export.programs.steps import Arguments, ProgramSource, slots_of
from fedlens_proto.slots import WEIGHTS
from fedlens_proto.v1 import manifest_pb2 as pb

SCORES = "scores"


def build(setting: Setting) -> ProgramSource:
    """The program `blend`."""
    models = candidates(setting)
    exchanged = {**setting.network.weights, **setting.network.buffers}

    def compute(given: Arguments) -> dict[str, Tensor]:
        references = given.references()
        score, present = references[SCORES][SCORE], references[PRESENT]
        there = torch.stack([present[each.name] for each in models])
        score = torch.where((score > 0) & (there > 0), score, 0.0)
        total = score.sum()
        share, is_heaviest = score / total, is_first_least(-score)
        shares, counts, heaviest = ([each[k] for k in range(len(models))] for each in (share, score > 0, is_heaviest))
        without_any = total / total  # NaN if it is used

        def blended(name: str) -> Tensor:
            terms, base = [references[each.name][name] for each in models], references[BASE.name][name]
            if base.is_floating_point():
                base = torch.where(present[BASE.name] > 0, base, without_any)
                parts = [torch.where(c, term * s, 0.0) for c, term, s in zip(counts, terms, shares, strict=True)]
            else:
                parts = [torch.where(is_it, term, 0) for is_it, term in zip(heaviest, terms, strict=True)]
            return torch.where(total > 0, sum(parts[1:], parts[0]), base)

        return {name: blended(name) for name in exchanged}

    return program(
        setting,
        "blend",
        WEIGHTS,
        [*models, BASE, table(SCORES, {SCORE: (setting.candidates,)})],
        slots_of(pb.SLOT_KIND_WEIGHT, exchanged),
        compute,
    )


BLEND = Derivation("blend", build)
