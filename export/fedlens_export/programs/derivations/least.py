"""IFCA's choice of a centre: the candidate of least loss.

Paper: Ghosh et al., NeurIPS 2020, arXiv:2006.04088, Algorithm 1: `j = argmin_k F(theta_k)`.

    paper    here
    F        losses["loss"], a sum instead of a mean over the same photos
    j        score: 1 for j, 0 for the others; ties: the lowest k

If no candidate has a finite loss, all scores are NaN, so that the local plan fails.
"""

import torch
from torch import Tensor

from fedlens_export.network import Tensors
from fedlens_export.programs.derivations import compare
from fedlens_export.programs.derivations.derivation import Derivation, Setting, is_first_least, least
from fedlens_export.programs.steps import Arguments, ProgramSource


def score(losses: Tensors, _given: Arguments) -> Tensor:
    """One-hot of the least loss, float32 [K]."""
    loss = losses["loss"]
    found = torch.where(least(loss) < compare.NOTHING, 1.0, 0.0)
    # Without any candidate this is 0 / 0.
    return torch.where(is_first_least(loss), found, 0.0) / found


def build(setting: Setting) -> ProgramSource:
    """The program `least`."""
    return compare.scoring(setting, "least", "choice", score)


LEAST = Derivation("least", build)
