"""FedDyn's dual after a round, for clients that keep their own.

Paper: Acar et al., ICLR 2021, arXiv:2111.04263, Algorithm 1: `g_k = g_k - alpha (theta_k - w)`.

    paper      here       meaning
    g_k        dual       the client's dual; zeros in its first round
    theta_k    trained    the client's model after the round
    w          start      the model that it started from
    alpha      hyper["alpha"]

It covers the trained tensors, and so no BatchNorm statistics.
"""

from torch import Tensor

from fedlens_export.objectives import dynamic
from fedlens_export.objectives.objective import Reference
from fedlens_export.programs.derivations.derivation import Derivation, Setting, program
from fedlens_export.programs.steps import Arguments, ProgramSource, slots_of
from fedlens_proto.v1 import manifest_pb2 as pb

_START, _TRAINED = Reference("start"), Reference("trained")


def build(setting: Setting) -> ProgramSource:
    """The program `dual_update`."""
    weights = setting.network.weights

    def compute(given: Arguments) -> dict[str, Tensor]:
        references, alpha = given.references(), given.named(pb.SLOT_KIND_HYPER)[dynamic.ALPHA.name]
        start, trained, dual = (references[name] for name in (_START.name, _TRAINED.name, dynamic.DUAL))
        return {name: dual[name] - alpha * (trained[name] - start[name]) for name in weights}

    return program(
        setting,
        "dual_update",
        dynamic.DUAL,
        [_START, _TRAINED, Reference(dynamic.DUAL, optional=True)],
        slots_of(pb.SLOT_KIND_RESULT, weights),
        compute,
        hyper=[dynamic.ALPHA],
    )


DUAL_UPDATE = Derivation("dual_update", build, (dynamic.ALPHA,))
