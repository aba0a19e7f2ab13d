"""Profiles: a method for tests alone, whose clients upload a table beside their weights.

FedAvg whose clients also derive and upload a table `profile` over their photos: `sums`, float32 [2, features], and
`counts`, int64 [2]. The server keeps each client's latest profile, and their sum for all as the set `profiles`, which
the training may compare with.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2, blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from fedlens_server.methods.fedavg import with_mean
from fedlens_server.planning.local_plans import (
    START,
    TRAINED,
    assemble,
    bind,
    derive,
    plan,
    rule,
    source,
    train,
    upload,
    upload_table,
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
from tests.server.bundles import CLASSES, FEATURES, TinyBundle, tiny_bundle

PROFILE, PROFILES = "profile", "profiles"
FLOATS, INTEGERS = blob_pb2.DTYPE_FLOAT32, blob_pb2.DTYPE_INT64


def bundle(features: int = FEATURES, **changes: float) -> TinyBundle:
    """The tiny bundle with a program `profile_of` that makes profiles, and profiles as a reference of `step`."""
    tiny = tiny_bundle(features, **changes)  # type: ignore[arg-type]
    manifest = tiny.parsed
    table = (("sums", FLOATS, (CLASSES, features)), ("counts", INTEGERS, (CLASSES,)))
    carried = [pb.Slot(kind=pb.SLOT_KIND_ACCUMULATOR, name=n, dtype=dtype, shape=shape) for n, dtype, shape in table]
    rows = [pb.Slot(kind=pb.SLOT_KIND_INPUT, dtype=FLOATS, shape=(4, features))]
    rows.append(pb.Slot(kind=pb.SLOT_KIND_MASK, dtype=FLOATS, shape=(4,)))
    files = manifest.programs[0].files
    manifest.programs.add(name="profile_of", makes=PROFILE, inputs=[*rows, *carried], outputs=carried, files=files)
    step = manifest.programs[1]
    step.optional.append(PROFILES)
    for name, dtype, shape in table:
        step.inputs.add(kind=pb.SLOT_KIND_REFERENCE, name=f"{PROFILES}/{name}", dtype=dtype, shape=shape)
    return TinyBundle(manifest.SerializeToString(deterministic=True), tiny.parts, tiny.initial)


def profile(value: float, features: int = FEATURES) -> dict[str, Array]:
    """A table all of whose sums are this."""
    return {"sums": np.full((CLASSES, features), value, np.float32), "counts": np.array([2, 3])}


def for_task(task: TaskPlan) -> Method:
    """The method; see the module."""
    settings = task.settings
    local_plan = plan(
        assemble(START, rule(source(download=GLOBAL))),
        train(settings, bindings=[bind(PROFILES, source(download=PROFILES))]),
        derive(PROFILE, "profile_of", rows=assignment_pb2.ROWS_TRAIN),
        uploads=[upload(settings, TRAINED, base=GLOBAL), upload_table(PROFILE, PROFILE)],
    )
    phase = Phase(name="train", rounds=settings.rounds, cohort=settings.cohort_size, plan=local_plan)
    return Method(phases=(phase,), begin=begin, download=download, aggregate=aggregate)


def begin(phase: Phase, state: State, tools: Tools) -> State:
    return State(shared={GLOBAL: tools.initial})


def download(phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
    return state.shared


def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
    own = {update.client: {PROFILE: update.values[PROFILE]} for update in updates}
    known = state.with_clients(own)
    every = [entries[PROFILE] for _, entries in sorted(known.clients.items())]
    total = {name: np.sum([each[name] for each in every], axis=0) for name in ("sums", "counts")}
    return with_mean(phase, known, updates, tools).with_shared(**{PROFILES: total})


METHOD = MethodDefinition(for_task)
