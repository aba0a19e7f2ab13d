"""FedFomo's weights of other clients' models: the loss that each would save, by its distance.

Paper: Zhang et al., ICLR 2021, arXiv:2012.08565, Equation 4: `w_n = (L(theta_i) - L(theta_n)) / |theta_n - theta_i|`.

    paper      here                 meaning
    theta_i    base                 the client's own model
    theta_n    candidate-k          another client's model
    L          losses / count       mean cross-entropy on the client's validation photos
    w_n        score                below 0 too: the server ranks clients by it

A candidate gains 0 if it is absent, or its loss or the base's is not finite.

Deviations: 1e-5 is added to the distance, so that a candidate that equals the base gains 0 instead of NaN. The distance
is the L2 norm over the trained tensors together, as in the paper; the authors' code has the L1 norm by default.
"""

import torch
from torch import Tensor

from fedlens_export.network import Tensors
from fedlens_export.objectives.proximal import differences, squares
from fedlens_export.programs.derivations import compare
from fedlens_export.programs.derivations.derivation import Derivation, Setting, candidates
from fedlens_export.programs.steps import Arguments, ProgramSource

EPSILON = 1e-5


def build(setting: Setting) -> ProgramSource:
    """The program `gain`."""
    others = candidates(setting)
    trained = list(setting.network.weights)

    def score(losses: Tensors, given: Arguments) -> Tensor:
        references = given.references()
        own = {name: references[compare.BASE.name][name] for name in trained}
        distance = torch.stack([torch.sqrt(squares(differences(references[other.name], own))) for other in others])
        saved = (losses["base"] - losses["loss"]) / losses["count"].clamp(min=1)
        is_known = (losses["loss"] < compare.NOTHING) & (losses["base"] < compare.NOTHING)
        return torch.where(is_known, saved / (distance + EPSILON), 0.0)

    return compare.scoring(setting, "gain", "gain", score, [*others, compare.BASE])


GAIN = Derivation("gain", build)
