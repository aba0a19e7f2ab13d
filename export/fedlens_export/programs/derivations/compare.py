"""Losses and votes of candidate models on a client's photos, from which IFCA, FedSoft and FedFomo choose.

    here          meaning
    candidate-k   a model, k = 0 .. K-1; may be absent
    base          the client's own model; may be absent
    loss [K]      sum over photos of the cross-entropy under candidate k, in nats
    vote [K]      number of photos on which candidate k has the least cross-entropy; ties: the lowest k
    base, count   the sum under `base`; the number of photos

A cross-entropy that is absent or not finite counts `NOTHING` and gets no vote. Photos are compared one by one, not
batch by batch, so that votes do not depend on the size of a batch.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedlens_export.hyper import Hyper
from fedlens_export.network import PRESENT, Tensors
from fedlens_export.objectives.objective import Reference, without_padding
from fedlens_export.programs.derivations.derivation import (
    Derivation,
    Setting,
    candidates,
    float_slots,
    is_first_least,
    least,
    model,
    program,
    table,
)
from fedlens_export.programs.steps import Arguments, ProgramSource
from fedlens_proto.v1 import manifest_pb2 as pb

BASE = model("base", optional=True)
LOSSES = "losses"
SCORE = "score"
NOTHING = 1e30
"""In place of a cross-entropy that is absent or not finite; a sum of 10^8 of them is still finite."""


def shapes(setting: Setting) -> dict[str, tuple[int, ...]]:
    """The table `losses`."""
    return {"base": (), "count": (), "loss": (setting.candidates,), "vote": (setting.candidates,)}


def known(losses: Tensor, present: Tensor) -> Tensor:
    """Each loss that is present and finite, else `NOTHING`."""
    # A comparison with a NaN is false.
    return torch.where((present > 0) & (losses < NOTHING), losses, NOTHING)


def votes(losses: Tensor, mask: Tensor) -> Tensor:
    """The number of real rows on which each candidate has the least loss, float32 [K], of losses [K, B]."""
    voted = is_first_least(losses) & (least(losses) < NOTHING) & (mask > 0)
    return torch.where(voted, 1.0, 0.0).sum(1)


def build(setting: Setting) -> ProgramSource:
    """The program `compare`."""
    models = [*candidates(setting), BASE]
    outputs = float_slots(pb.SLOT_KIND_ACCUMULATOR, shapes(setting))

    def compute(given: Arguments) -> dict[str, Tensor]:
        mask, labels = given.one(pb.SLOT_KIND_MASK), given.one(pb.SLOT_KIND_LABEL)
        rows = without_padding(given.one(pb.SLOT_KIND_INPUT), mask)
        references, before = given.references(), given.named(pb.SLOT_KIND_ACCUMULATOR)
        # One cross-entropy for all models: with small ones, operators cost more than their arithmetic.
        logits = torch.cat([setting.logits(references[each.name], rows) for each in models])
        losses = functional.cross_entropy(logits, torch.cat([labels] * len(models)), reduction="none")
        present = torch.stack([references[PRESENT][each.name] for each in models])
        losses = known(losses.reshape(len(models), -1), present.unsqueeze(1))
        sums = (losses * mask).sum(1)
        new = {"loss": sums[:-1], "vote": votes(losses[:-1], mask), "base": sums[-1], "count": mask.sum()}
        return {name: before[name] + value for name, value in new.items()}

    return program(setting, "compare", LOSSES, models, outputs, compute, over_rows=True)


def scoring(
    setting: Setting,
    name: str,
    makes: str,
    score: Callable[[Tensors, Arguments], Tensor],
    references: Sequence[Reference] = (),
    hyper: Sequence[Hyper] = (),
) -> ProgramSource:
    """A program from the table `losses`, and perhaps more, to a table with a score of each candidate."""
    return program(
        setting,
        name,
        makes,
        [table(LOSSES, shapes(setting)), *references],
        float_slots(pb.SLOT_KIND_RESULT, {SCORE: (setting.candidates,)}),
        lambda given: {SCORE: score(given.references()[LOSSES], given)},
        hyper=hyper,
    )


COMPARE = Derivation("compare", build)
