"""FedSoft's importance weights: the share of a client's photos that each centre fits best.

Paper: Ruan and Joe-Wong, AAAI 2022, arXiv:2112.06053, Section 3.

    paper    here             meaning
    u_ks     score            share of the photos on which centre s has the least loss, `sigma` where it is 0
    n_ks     losses["vote"]   number of these photos
    sigma    hyper["sigma"]   so that every centre counts; the other shares are not scaled down for it
"""

import torch
from torch import Tensor

from fedlens_export.hyper import Hyper
from fedlens_export.network import Tensors
from fedlens_export.programs.derivations import compare
from fedlens_export.programs.derivations.derivation import Derivation, Setting
from fedlens_export.programs.steps import Arguments, ProgramSource
from fedlens_proto.v1 import manifest_pb2 as pb

SIGMA = Hyper("sigma", 1e-4, 1e-9, 1.0)


def score(losses: Tensors, given: Arguments) -> Tensor:
    """Shares of the photos, float32 [K]."""
    share = losses["vote"] / losses["count"].clamp(min=1)
    return torch.where(share > 0, share, given.named(pb.SLOT_KIND_HYPER)[SIGMA.name])


def build(setting: Setting) -> ProgramSource:
    """The program `importance`."""
    return compare.scoring(setting, "importance", "importance", score, hyper=[SIGMA])


IMPORTANCE = Derivation("importance", build, (SIGMA,))
