"""FedAvgM: momentum on the mean change of a round.

Paper: Hsu, Qi, Brown 2019, https://arxiv.org/abs/1909.06335, section 4.3.

    paper     here                meaning
    w         shared[GLOBAL]      model that round t starts from
    Delta w   w - mean            change of the clients' mean weights, weighted by num_examples
    v         shared["velocity"]  velocity, 0 at first
    beta      options.momentum    momentum, 0 to 1

Deviations: BatchNorm's statistics are the plain mean, because momentum could make them negative; integer buffers are
the maximum.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedlens_proto.blob import Array
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.fedavg import average_set, sharing_global_set, whole_model_plan
from fedlens_server.planning import bundles, options
from fedlens_server.planning.method import GLOBAL, Method, Phase, State, TaskPlan, Tools, Update

OPTIONS = {"momentum": options.number(0, 1, default=0.9)}
VELOCITY = "velocity"


def with_momentum(w: Array, mean: Array, v: Array, beta: float) -> tuple[Array, Array]:
    """The next model and velocity: `v' = beta v + (w - mean)`, `w' = w - v'`.

    Args:
        w: One tensor of the model that clients were sent, float32. Not modified, like the others.
        mean: The mean of the clients' updates, in the same shape.
        v: Velocity of the previous round, in the same shape.
        beta: Momentum, 0 to 1.

    Returns:
        Both float32 in that shape.

    Source: Hsu et al. 2019, section 4.3.
    """
    velocity = beta * v.astype(np.float64) + (w.astype(np.float64) - mean)
    return (w - velocity).astype(np.float32), velocity.astype(np.float32)


def for_task(task: TaskPlan) -> Method:
    """FedAvgM for a task.

    Raises:
        SettingsError: The bundles cannot be averaged.
    """
    momentum = float(task.options["momentum"])
    bundles.need_equal(task)
    trained = sorted(t.name for t in task.ordinary[0].tensors if t.kind != manifest_pb2.TENSOR_KIND_BUFFER)
    fedavg = sharing_global_set(task, whole_model_plan(task))

    def begin(phase: Phase, state: State, tools: Tools) -> State:
        at_rest = {name: np.zeros_like(tools.initial[name]) for name in trained}
        return fedavg.begin(phase, state, tools).with_shared(**{VELOCITY: at_rest})

    def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        new = average_set(updates, state.shared[GLOBAL])
        velocity: dict[str, Array] = {}
        for name in trained:
            old, v = state.shared[GLOBAL][name], state.shared[VELOCITY][name]
            new[name], velocity[name] = with_momentum(old, new[name], v, momentum)
        return state.with_shared(**{GLOBAL: new, VELOCITY: velocity})

    return replace(fedavg, begin=begin, aggregate=aggregate)
