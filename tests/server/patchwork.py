"""Patchwork: a method for tests alone, which uses what FedAvg does not.

Phase `gather`: everyone downloads the global model, trains with it as a reference, keeps the result as `mine`, reports
its class counts and uploads the biases only. Phase `stitch`: the clients of the first phase download the global model
and, as a second set, their own uploaded biases; the others sit out. State: the global model, `clients/<id>/bias` by
digest, arrays and plain values.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods import METHODS
from fedlens_server.methods.fedavg import average
from fedlens_server.planning.method import Method, MethodState, Phase, TaskPlan, TensorSet, Tools, Update

BIAS = pb.TensorSelector(names=["fc.bias"])


def for_task(task: TaskPlan) -> Method:
    """The method; see the module."""
    settings, shared = task.settings, pb.SetSource(download="shared")
    gather = pb.LocalPlan(
        start=[pb.StartRule(source=pb.SetSource(kept="mine", download="shared"))],
        references=[pb.ReferenceBinding(name="global", set=shared)],
        stages=[settings.stage("step")],
        keep=[pb.Keep(set="mine")],
        upload=settings.upload(str(settings.options.get("base", "shared")), BIAS),
        statistics=[pb.ClientStatistic(class_counts=pb.ClassCounts())],
    )
    stitch = pb.LocalPlan(
        start=[
            pb.StartRule(tensors=BIAS, source=pb.SetSource(download="own")),
            pb.StartRule(source=pb.SetSource(kept="mine", download="shared")),
        ],
        references=[pb.ReferenceBinding(name="global", start=True)],
        stages=[settings.stage("step")] * 2,
        evaluation=pb.EvaluationPlan(at_end=True),
    )
    phases = (
        Phase(name="gather", rounds=1, cohort=None, local_plan=gather),
        Phase(name="stitch", rounds=settings.rounds, cohort=settings.cohort_size, local_plan=stitch),
    )
    return Method(phases=phases, begin=begin, download=download, aggregate=aggregate)


def begin(phase: Phase, state: MethodState, tools: Tools) -> MethodState:
    if phase.name == "gather":
        return {"shared": tools.initial, "log": ["gather"], "scale": 0.1, "draws": np.zeros(2, np.float32)}
    return {**state, "log": [*state["log"], "stitch"]}


def download(phase: Phase, state: MethodState, client: bytes | None) -> Mapping[str, TensorSet] | None:
    if client is None or phase.name == "gather":
        return {"shared": state["shared"]}
    own = state.get(f"clients/{client.hex()}/bias")
    return None if own is None else {"shared": state["shared"], "own": own}


def aggregate(phase: Phase, state: MethodState, updates: Sequence[Update], tools: Tools) -> MethodState:
    draws = tools.generator.random(2, np.float32)
    log = [*state["log"], f"{phase.name} {len(updates)} of {len(tools.population)}"]
    if phase.name == "stitch":
        return {**state, "log": log, "draws": draws}
    bias = average([update.tensors["fc.bias"] for update in updates], [update.num_examples for update in updates])
    own = {f"clients/{update.client.hex()}/bias": update.tensors for update in updates}
    classes = np.sum([update.class_counts for update in updates], axis=0)
    shared = {**state["shared"], "fc.bias": bias}
    return {**state, **own, "shared": shared, "log": log, "draws": draws, "classes": classes}


@contextmanager
def registered() -> Iterator[None]:
    """Have the server know the method for a while."""
    METHODS["patchwork"] = for_task
    try:
        yield
    finally:
        del METHODS["patchwork"]
