"""Patchwork: a method for tests alone, which uses what FedAvg does not.

Phase `gather`: everyone downloads the global model, trains with it as a reference, keeps the result as `mine`, reports
its class counts and uploads the biases only. Phase `stitch`: the clients of the first phase download the global model
and, as a second set, their own uploaded biases; the others sit out. State: the global model, each client's `bias` by
digest, arrays and plain values.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.fedavg import average
from fedlens_server.methods.fedavg_last_fc import class_counts_of
from fedlens_server.planning.local_plans import (
    CLASS_COUNTS,
    START,
    TRAINED,
    WEIGHTS,
    assemble,
    bind,
    evaluate,
    keep,
    plan,
    rule,
    source,
    train,
    upload,
)
from fedlens_server.planning.method import (
    GLOBAL,
    Method,
    MethodDefinition,
    Phase,
    State,
    TaskPlan,
    TensorSet,
    Tools,
    Update,
)

BIAS = pb.TensorSelector(names=["fc.bias"])


def for_task(task: TaskPlan) -> Method:
    """The method; see the module."""
    settings, shared = task.settings, source(download=GLOBAL)
    gather = plan(
        assemble(START, rule(source(state="mine", download=GLOBAL))),
        train(settings, bindings=[bind("global", shared)]),
        keeps=[keep("mine")],
        uploads=[upload(settings, tensors=BIAS, base=GLOBAL)],
        statistics=[CLASS_COUNTS],
        evaluations=(),
    )
    at_start = [bind("global", source(value=START))]
    stitch = plan(
        assemble(START, rule(source(download="own"), BIAS), rule(source(state="mine", download=GLOBAL))),
        train(settings, "half", bindings=at_start),
        train(settings, start="half", bindings=at_start),
        evaluations=[evaluate(TRAINED)],
    )
    phases = (
        Phase(name="gather", rounds=1, cohort=None, plan=gather),
        Phase(name="stitch", rounds=settings.rounds, cohort=settings.cohort_size, plan=stitch),
    )
    return Method(phases=phases, begin=begin, download=download, aggregate=aggregate)


def begin(phase: Phase, state: State, tools: Tools) -> State:
    if phase.name == "gather":
        draws = np.zeros(2, np.float32)
        return State(shared={GLOBAL: tools.initial, "log": ["gather"], "scale": 0.1, "draws": draws})
    return state.with_shared(log=[*state.shared["log"], "stitch"])


def download(phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
    if client is None or phase.name == "gather":
        return {GLOBAL: state.shared[GLOBAL]}
    own = state.of(client).get("bias")
    return None if own is None else {GLOBAL: state.shared[GLOBAL], "own": own}


def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
    draws = tools.generator.random(2, np.float32)
    log = [*state.shared["log"], f"{phase.name} {len(updates)} of {len(tools.population)}"]
    if phase.name == "stitch":
        return state.with_shared(log=log, draws=draws)
    sent = [update.values[WEIGHTS] for update in updates]
    bias = average([each["fc.bias"] for each in sent], [update.num_examples for update in updates])
    own = {update.client: {"bias": each} for update, each in zip(updates, sent, strict=True)}
    classes = class_counts_of(updates).sum(axis=0)
    model = {**state.shared[GLOBAL], "fc.bias": bias}
    return state.with_clients(own).with_shared(**{GLOBAL: model}, log=log, draws=draws, classes=classes)


METHOD = MethodDefinition(for_task)
