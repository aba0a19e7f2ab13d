"""pFedSim: each client gets its own weighted sum of extractors; clients with similar classifiers have larger weights.

Paper: Tan, Chen, Wang, Liu: "pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning",
arXiv:2305.15706, Algorithm 2, Eq. 3 and 4.

    paper    here                     meaning
    T, rho   rounds, warm_up          all rounds; the fraction of them that is FedAvg: T_g = floor(rho T)
    S_t      updates                  clients whose updates arrived in round t
    omega_i  extractor of `model`     all tensors of client i but the classifier's, as last uploaded
    phi_i    classifier of `model`    its last FC layer; phi_ic is the weight row of class c
    Phi      `similarity`             similarity of classifiers, float[N, N], diagonal 1; 0: never in one round together
    a_ij     `mixing_weights`         weight of omega_j in client i's next extractor; they add up to 1
    Y        classes                  classes

Variant `paper`: Phi_ij = -(1/|Y|) sum_c log(1 - max(0, cos_c)), a_ij = Phi_ij / sum_j Phi_ij. Variant `reference`, the
authors' code: Phi_ij = max(0, mean_c cos_c), a_ij in proportion to -log(1 - Phi_ij) with Phi_ii = 0.9999; a row that
adds up to at most 1 keeps its own extractor. In both cos_c = <phi_ic, phi_jc> / (|phi_ic| |phi_jc| + 1e-8).

Deviations: cosines (`reference`: similarities) are at most 0.9999, because equal classifiers would have infinite
weights. The printed loop runs T + 1 rounds, this one T. Integer buffers (BatchNorm's batch counter) stay the client's
own: a mean of counts has no meaning. The authors' code leaves BatchNorm's statistics with the clients, from the first
round on: the task's setting `batch_norm = "local_statistics"`. A forgotten client is in no sum from the next round on.

State: `global` and the array `similarity`; of each client that has taken part in personalisation `model`, the uploaded
blob itself, and `slot`, its row in the array. The row of a forgotten client is used again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.manifest import select
from fedlens_proto.v1 import blob_pb2
from fedlens_server.methods.arithmetic.client_matrix import SLOT, Matrix, grown, size_of, slots_of, with_new
from fedlens_server.methods.arithmetic.linear_combination import with_photos
from fedlens_server.methods.arithmetic.weighted_sum import Terms, WeightedSum
from fedlens_server.methods.fedavg import whole_model_plan, with_mean
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import (
    GLOBAL,
    Method,
    Phase,
    State,
    TaskPlan,
    TensorSet,
    Tools,
    Update,
)
from fedlens_server.planning.task_settings import SettingsError

PAPER, REFERENCE = "paper", "reference"
WARM_UP, PERSONALISE = "warm-up", "personalise"
PERSONAL, SIMILARITY = "personal", "similarity"
MODEL = "model"  # entry of each client, beside `slot`
MOST = 0.9999
EPSILON = 1e-8
OPTIONS = {
    "variant": options.choice(PAPER, REFERENCE),
    "warm_up": options.number(0, 1, default=0.5),
}


def similarities(classifiers: Sequence[Array], variant: str = PAPER) -> Matrix:
    """The similarity of every pair of classifiers, float64[clients, clients], symmetric; the diagonal is 1.

    Args:
        classifiers: Weights phi_i, float[classes, features] each. Biases do not count.
        variant: `paper` or `reference`.

    Source: arXiv:2305.15706, Eq. 4; `reference`: the authors' code.
    """
    phi = np.array([np.asarray(classifier, np.float64) for classifier in classifiers])
    total = np.zeros((len(phi), len(phi)))
    for rows in phi.swapaxes(0, 1):  # one class at a time, which bounds memory
        norms = np.linalg.norm(rows, axis=1)
        cosines = rows @ rows.T / (np.outer(norms, norms) + EPSILON)
        total += cosines if variant == REFERENCE else -np.log1p(-np.clip(cosines, 0.0, MOST))
    upper: Matrix = np.triu(total / phi.shape[1], 1)
    if variant == REFERENCE:
        upper = np.clip(upper, 0.0, MOST)
    return upper + upper.T + np.eye(len(phi))


def updated(matrix: Array, members: Sequence[int], classifiers: Sequence[Array], variant: str = PAPER) -> Matrix:
    """The similarity matrix after a round: the pairs of its members computed anew, all other entries unchanged.

    Args:
        matrix: Before the round, float[clients, clients].
        members: Index of each client of the round, at least one, in any order.
        classifiers: The weights of their uploaded classifiers, in the order of `members`.
        variant: `paper` or `reference`.

    Returns:
        float64[clients, clients].

    Source: arXiv:2305.15706, Algorithm 2, the loop over pairs of S_t.
    """
    result = np.array(matrix, np.float64)
    order = np.argsort(members)
    chosen = np.asarray(members, np.intp)[order]
    result[np.ix_(chosen, chosen)] = similarities([classifiers[k] for k in order], variant)
    return result


def mixing_weights(row: Array, own: int, variant: str = PAPER) -> NDArray[np.float64]:
    """The weight of each client's extractor in the next one of client `own`, float64[clients], adding up to 1.

    Args:
        row: Row `own` of the similarity matrix, float[clients].
        own: Index of the client.
        variant: `paper` or `reference`.

    Source: arXiv:2305.15706, Algorithm 2, the server's aggregation; `reference`: the authors' code.
    """
    weights = np.array(row, np.float64)
    if variant == REFERENCE:
        others_count = weights.sum() > 1.0
        weights[own] = MOST
        weights = -np.log1p(-np.minimum(weights, MOST)) if others_count else np.eye(len(weights))[own]
    normalised: NDArray[np.float64] = np.abs(weights) / weights.sum()  # abs: -0.0 becomes 0.0
    return normalised


@dataclass(frozen=True, kw_only=True)
class _PFedSim:
    """Rounds of FedAvg, then rounds in which each client trains its own weighted sum and uploads all of it."""

    variant: str
    classifier: str  # tensor from which similarities are computed
    mixed: tuple[str, ...]  # tensors that are summed over clients
    own: tuple[str, ...]  # all other tensors, which stay the client's own

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The bundle's initial weights as the global model, from which every client starts."""
        return state if GLOBAL in state.shared else State(shared={GLOBAL: tools.initial})

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The global model; in personalisation the client's own weighted sum, and no model for evaluators."""
        if phase.name == WARM_UP:
            return {GLOBAL: state.shared[GLOBAL]}
        if client is None:
            return None
        model = state.of(client).get(MODEL)
        return {PERSONAL: state.shared[GLOBAL] if model is None else self._weighted_sum(state, client, model)}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the updates; in personalisation the clients' models and their similarities."""
        if phase.name == WARM_UP:
            return with_mean(phase, state, updates, tools)
        trained = with_photos(updates)
        known = slots_of(state)
        slots = with_new(known, [update.client for update in trained])
        matrix = updated(
            grown(state.shared.get(SIMILARITY), known, np.eye(size_of(slots))),
            [slots[update.client] for update in trained],
            [update.values[WEIGHTS][self.classifier] for update in trained],
            self.variant,
        )
        entries = {update.client: {SLOT: slots[update.client], MODEL: update.values[WEIGHTS]} for update in trained}
        return state.with_clients(entries).with_shared(**{SIMILARITY: matrix.astype(np.float32)})

    def _weighted_sum(self, state: State, client: bytes, model: TensorSet) -> TensorSet:
        """The weighted sum for a client with this model; the model itself where no other has a weight."""
        slots = slots_of(state)
        clients = sorted(slots)  # so that no sum depends on the order in which clients joined
        row = state.shared[SIMILARITY][slots[client], [slots[each] for each in clients]]
        weights = mixing_weights(row, clients.index(client), self.variant)
        chosen = np.flatnonzero(weights)
        if len(chosen) == 1:
            return model
        terms: Terms = tuple((float(weights[k]), state.clients[clients[k]][MODEL]) for k in chosen)
        own: Terms = ((1.0, model),)
        return WeightedSum(dict.fromkeys(self.mixed, terms) | dict.fromkeys(self.own, own), advertised=model)


def for_task(task: TaskPlan) -> Method:
    """PFedSim for a task.

    Raises:
        SettingsError: The bundles have no extractor, or no tensor of it can be summed.
    """
    settings = task.settings
    chosen = task.options
    bundles.need_equal(task)
    bundles.need_no_references(task)
    tensors = task.ordinary[0].tensors
    matrices = [tensor.name for tensor in select(tensors, bundles.CLASSIFIER) if len(tensor.shape) == 2]
    if len(matrices) != 1:
        found = f"a classifier with {len(matrices)} weight matrices"
        raise SettingsError("manifests[0]", found, "a model whose classifier is one FC layer for pfedsim")
    extractor = select(tensors, bundles.EXTRACTOR)
    mixed = tuple(tensor.name for tensor in extractor if tensor.dtype != blob_pb2.DTYPE_INT64)
    if not mixed:
        raise SettingsError("manifests[0]", "a model without an extractor to mix", "one with one for pfedsim")
    own = tuple(tensor.name for tensor in tensors if tensor.name not in mixed)
    method = _PFedSim(variant=chosen["variant"], classifier=matrices[0], mixed=mixed, own=own)
    warm_up = floor(Fraction(str(chosen["warm_up"])) * settings.rounds)  # 0.29 of 100 is 29, not 28.99...
    planned = [(WARM_UP, GLOBAL, warm_up), (PERSONALISE, PERSONAL, settings.rounds - warm_up)]
    phases = tuple(
        Phase(name=name, rounds=rounds, cohort=settings.cohort_size, plan=whole_model_plan(task, download))
        for name, download, rounds in planned
        if rounds
    )
    return Method(
        phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate, per_client=True
    )
