"""The tiny network with the programs of IFCA and FedSoft."""

from fedlens_proto.v1 import manifest_pb2 as pb
from tests.server.bundles import TinyBundle
from tests.server.methods.programs import LOSSES, Extended


def choosing(candidates: int = 2, objective: str = "cross_entropy") -> TinyBundle:
    """With programs over so many centres; with objective `proximal`, FedSoft's."""
    made = Extended(objective)
    losses = {**LOSSES, "loss": (candidates,), "vote": (candidates,)}
    compare = made.derives("compare", "losses", losses, pb.SLOT_KIND_ACCUMULATOR, rows=True)
    least = made.derives("least", "choice", {"score": (candidates,)})
    importance = made.derives("importance", "importance", {"score": (candidates,)})
    blend = made.manifest.programs.add(name="blend", makes="weights")
    blend.outputs.extend(slot for slot in made.step.outputs if slot.kind == pb.SLOT_KIND_WEIGHT)
    if objective == "proximal":
        made.hyper(made.step, "mu", 0.1)
        made.refer(made.step, "global")
    for program in (compare, blend):
        for k in range(candidates):
            made.refer(program, f"candidate-{k}", optional=True)
        made.refer(program, "base", optional=True)
    made.hyper(importance, "sigma", 1e-4)
    made.refer(least, "losses", losses)
    made.refer(importance, "losses", losses)
    made.refer(blend, "scores", {"score": (candidates,)})
    return made.bundle()
