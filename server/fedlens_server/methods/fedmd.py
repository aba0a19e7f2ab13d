"""FedMD: all clients learn from the mean of their scores on public photos.

Paper: Li, Wang 2019, https://arxiv.org/abs/1910.03581, Algorithm 1.

    paper    here                             meaning
    f_k      client state `model`             model of client k, of any architecture, which never leaves it
    D_0      the bundle's public photos       for transfer learning with their labels, and for scores
    f_k(x)   values["predictions"]["scores"]  scores (logits) of client k on the public photos, float[P, C]
    f~(x)    shared["teacher"]                consensus: the plain mean of the scores

In the first round a client trains on the public photos, then on its own (transfer learning); in all others it learns
the consensus on the public photos (digest), then trains on its own (revisit). The bundle's objective says how it
digests: `distil_scores` by the absolute error, as in the paper, `distil_scores_squared` by the squared one.

Deviations: a round is one exchange: the consensus is of the rounds before. Clients outside a round count with their
last scores. The consensus is over all public photos, not over a new subset in each round. A client that is not in the
first round has no transfer learning. With `median` or `trimmed_mean` the consensus is the middle of the scores.

State: `teacher`; of each client `predictions`, the uploaded blob itself.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.linear_combination import LazyTensor, Tensor, linear_combination
from fedlens_server.methods.arithmetic.middle import middle
from fedlens_server.methods.kt_pfl import (
    FIRST,
    PREDICTIONS,
    SCORES,
    TEACHER,
    answered,
    phases_with_teacher,
    scores_shape,
)
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import train
from fedlens_server.planning.method import Method, Phase, State, TaskPlan, TensorSet, Tools, Update

OBJECTIVES = ("distil_scores", "distil_scores_squared")
TRANSFERRED = "transferred"
OPTIONS = {
    "transfer_epochs": options.whole(0, 1_000_000, default=1),
    "digest_epochs": options.whole(1, 1_000_000, default=1),
}


def consensus(scores: Sequence[Tensor]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """The plain mean of the clients' scores, float32[P, C].

    Args:
        scores: Of each client, float[P, C], at least one client.

    Source: arXiv:1910.03581, Algorithm 1, "Aggregate".
    """
    return linear_combination(scores, np.full(len(scores), 1 / len(scores)))


def for_task(task: TaskPlan) -> Method:
    """FedMD for a task; there is no global model.

    Raises:
        SettingsError: The bundles have another objective, or lack a program or public photos.
    """
    chosen = task.options
    bundles.need_objective(task, OBJECTIVES)
    epochs, transfer = chosen["transfer_epochs"], []
    if epochs:
        hyper = bundles.hyper_of(task, "step")
        transfer = [train(task.settings, TRANSFERRED, epochs=epochs, hyper=hyper, rows=pb.ROWS_PUBLIC)]
    phases = phases_with_teacher(task, SCORES, chosen["digest_epochs"], transfer)
    shape = scores_shape(task)

    def download(phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        if client is None:
            return None
        return {} if phase.name == FIRST else {TEACHER: state.shared[TEACHER]}

    def aggregate(phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        after = state.with_clients({update.client: {PREDICTIONS: update.values[PREDICTIONS]} for update in updates})
        tables = [after.clients[client][PREDICTIONS] for client in answered(after)]
        if cut := task.settings.left_out(len(tables)):
            mean = middle([table[SCORES] for table in tables], cut).astype(np.float32)
        else:
            mean = consensus([LazyTensor(table, SCORES, shape, np.dtype(np.float32)) for table in tables])
        return after.with_shared(**{TEACHER: {SCORES: mean}})

    return Method(
        phases=phases,
        begin=lambda phase, state, tools: state,
        download=download,
        aggregate=aggregate,
        per_client=True,
    )
