"""FedProto: clients share the mean features of each class, their prototypes, instead of weights.

Paper: Tan et al., AAAI 2022, https://arxiv.org/abs/2105.00243, Algorithm 1, Equation 6.

    paper      here                                  meaning
    omega_i    client state `model`                  model of client i, which never leaves it; architectures may differ
    C_i^(j)    values["prototypes"]["prototypes"][j] mean features of client i's photos of class j, float[d]
    N_j        values["prototypes"]["has"][:, j]     clients that have photos of class j
    C-bar^(j)  shared["prototypes"]                  global prototype of class j
    lambda     hyper-parameter lambda                strength of the pull, objective `prototypes`

Every client starts from its own model, or the bundle's initial weights; it trains with the downloaded prototypes and
uploads the mean features of its photos under the trained weights. It predicts with its classifier; a second evaluation,
`nearest`, predicts the class of the nearest prototype.

Deviations: the mean over clients is plain, as in the authors' code; the printed Equation 6 weighs by photos and divides
by the number of clients once more, which would shrink prototypes. A class that no client of the round has keeps its
last prototype, where the authors' code, which asks all clients in each round, loses it. Client means are of the trained
weights, not over the last epoch while weights change. `nearest` is not limited to the client's own classes. A task with
`median` or `trimmed_mean` takes that of each class's prototypes instead, over the clients that have the class.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlens_proto.manifest import INITIAL, program
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.linear_combination import in_order
from fedlens_server.methods.arithmetic.middle import middle
from fedlens_server.methods.fedavg import single_phase
from fedlens_server.planning import bundles
from fedlens_server.planning.local_plans import (
    EVALUATIONS,
    START,
    TRAINED,
    assemble,
    bind,
    derive,
    evaluate,
    keep,
    plan,
    rule,
    source,
    train,
    upload_table,
)
from fedlens_server.planning.method import Method, Phase, State, TaskPlan, TensorSet, Tools, Update

OBJECTIVE = "prototypes"
PROTOTYPES, HAS = "prototypes", "has"  # download, upload and entry, with the tensors of these names
OWN_MODEL = "model"
SUMS = "sums"
NEAREST = "nearest"
Floats = NDArray[np.float32]


def global_prototypes(
    prototypes: ArrayLike,
    has: ArrayLike,
    previous: ArrayLike,
    previous_has: ArrayLike,
    left_out: Callable[[int], int] = lambda owners: 0,
) -> tuple[Floats, Floats]:
    """The plain mean of each class's prototypes over the clients that have the class.

    Args:
        prototypes: Of each client, float[clients, classes, d]; that of a class that a client has not may be anything.
        has: Above 0 for the classes that a client has, [clients, classes].
        previous: The global prototypes before the round, float[classes, d].
        previous_has: Above 0 for the classes that have one, [classes].
        left_out: How many of the values of so many owners the mean leaves out at each end; as many as leave one or two
            give the median.

    Returns:
        Prototypes, float32[classes, d], and 1 for each class that has one, else 0, float32[classes]. A class that no
        client has keeps its previous prototype.

    Source: arXiv:2105.00243, Equation 6, as in the authors' code.
    """
    owned = np.asarray(has) > 0
    values = np.where(owned[:, :, None], np.asarray(prototypes, np.float64), 0.0)
    owners = owned.sum(axis=0)
    mean = values.sum(axis=0) / np.maximum(owners, 1)[:, None]
    for row in np.flatnonzero([left_out(int(count)) > 0 for count in owners]):
        mean[row] = middle(values[owned[:, row], row], left_out(int(owners[row])))
    known = (owners > 0) | (np.asarray(previous_has) > 0)
    result = np.where((owners > 0)[:, None], mean, np.asarray(previous, np.float64))
    return np.where(known[:, None], result, 0.0).astype(np.float32), known.astype(np.float32)


def local_plan(task: TaskPlan) -> pb.LocalPlan:
    """The local plan: train the client's own model, then upload the mean features of its classes."""
    shared = bind(PROTOTYPES, source(download=PROTOTYPES))
    return plan(
        assemble(START, rule(source(state=OWN_MODEL, download=INITIAL))),
        train(task.settings, bindings=[shared], hyper=bundles.hyper_of(task, "step")),
        derive(SUMS, "class_sums", bind("model", source(value=TRAINED)), rows=pb.ROWS_TRAIN),
        derive(PROTOTYPES, "class_means", bind("class_sums", source(value=SUMS))),
        keeps=[keep(OWN_MODEL)],
        uploads=[upload_table(PROTOTYPES, PROTOTYPES)],
        evaluations=[*EVALUATIONS, evaluate(NEAREST, TRAINED, "predict_nearest", [shared])],
    )


def for_task(task: TaskPlan) -> Method:
    """FedProto for a task; there is no global model.

    Raises:
        SettingsError: The bundles have another objective or lack a program.
    """
    bundles.need_objective(task, [OBJECTIVE])
    programs = ["class_sums", "class_means", "predict_nearest"]
    bundles.need_programs(task, programs, f"--objective {OBJECTIVE}")
    shapes = {slot.name: tuple(slot.shape) for slot in program(task.ordinary[0], "class_means").outputs}

    def begin(phase: Phase, state: State, tools: Tools) -> State:
        nothing = {name: np.zeros(shapes[name], np.float32) for name in (PROTOTYPES, HAS)}
        return State(shared={PROTOTYPES: nothing})

    def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        tables = [update.values[PROTOTYPES] for update in in_order(updates)]
        before = state.shared[PROTOTYPES]
        means, has = global_prototypes(
            [table[PROTOTYPES] for table in tables],
            [table[HAS] for table in tables],
            before[PROTOTYPES],
            before[HAS],
            task.settings.left_out,
        )
        return state.with_shared(**{PROTOTYPES: {PROTOTYPES: means, HAS: has}})

    def download(phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        return None if client is None else {PROTOTYPES: state.shared[PROTOTYPES]}

    phases = single_phase(task, local_plan(task))
    return Method(phases=phases, begin=begin, download=download, aggregate=aggregate)
