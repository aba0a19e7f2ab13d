"""Patchwork: a method for tests alone, which uses what FedAvg does not.

Phase `gather`: everyone downloads the global model, trains with it as a reference, keeps the result as `mine`, tells
its class counts and uploads the biases only. Phase `stitch`: who took part in the first downloads the global model and,
as a second set, its own uploaded biases; the others sit out. State: the global model, `clients/<id>/bias` by digest,
arrays and plain values.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods import METHODS, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.methods.fedavg import average

BIAS = pb.TensorSelector(names=["fc.bias"])


@dataclass(frozen=True)
class Patchwork:
    """See the module."""

    rounds: int
    cohort: int | None  # of the second phase
    stage: pb.Stage
    upload: pb.Upload

    @classmethod
    def for_task(cls, task: TaskPlan) -> "Patchwork":
        return cls(
            rounds=task.settings.rounds,
            cohort=task.settings.cohort_size,
            stage=task.settings.stage("step"),
            upload=task.settings.upload(str(task.settings.options.get("base", "shared")), BIAS),
        )

    def phases(self, task: TaskPlan) -> list[Phase]:
        gather = pb.LocalPlan(
            start=[pb.StartRule(source=pb.SetSource(kept="mine", download="shared"))],
            references=[pb.ReferenceBinding(name="global", set=pb.SetSource(download="shared"))],
            stages=[self.stage],
            keep=[pb.Keep(set="mine")],
            upload=self.upload,
            statistics=[pb.ClientStatistic(class_counts=pb.ClassCounts())],
        )
        stitch = pb.LocalPlan(
            start=[
                pb.StartRule(tensors=BIAS, source=pb.SetSource(download="own")),
                pb.StartRule(source=pb.SetSource(kept="mine", download="shared")),
            ],
            references=[pb.ReferenceBinding(name="global", start=True)],
            stages=[self.stage, self.stage],
            evaluation=pb.EvaluationPlan(at_end=True),
        )
        return [
            Phase(name="gather", rounds=1, cohort=None, local_plan=gather),
            Phase(name="stitch", rounds=self.rounds, cohort=self.cohort, local_plan=stitch),
        ]

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        if phase.name == "gather":
            return {"shared": tools.initial, "log": ["gather"], "scale": 0.1, "draws": np.zeros(2, np.float32)}
        return {**state, "log": [*state["log"], "stitch"]}

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        if client is None or phase.name == "gather":
            return {"shared": state["shared"]}
        own = state.get(f"clients/{client.hex()}/bias")
        return None if own is None else {"shared": state["shared"], "own": own}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        draws = tools.generator.random(2, np.float32)
        log = [*state["log"], f"{phase.name} {len(updates)} of {len(tools.population)}"]
        if phase.name == "stitch":
            return {**state, "log": log, "draws": draws}
        counts = [update.num_examples for update in updates]
        bias = average([update.tensors["fc.bias"] for update in updates], counts)
        own = {f"clients/{update.client.hex()}/bias": update.tensors for update in updates}
        classes = np.sum([update.class_counts for update in updates], axis=0)
        shared = {**state["shared"], "fc.bias": bias}
        return {**state, **own, "shared": shared, "log": log, "draws": draws, "classes": classes}


@contextmanager
def registered() -> Iterator[None]:
    """Have the server know the method for a while."""
    METHODS["patchwork"] = Patchwork.for_task
    try:
        yield
    finally:
        del METHODS["patchwork"]
