"""pFedSim: each client gets an extractor of its own, mixed from those of clients whose classifiers resemble its own.

Paper: Tan, Chen, Wang, Liu: "pFedSim: Similarity-Aware Model Aggregation Towards Personalized Federated Learning",
arXiv:2305.15706, Algorithm 2, Eq. 3 and 4.

    paper    here                     meaning
    T, rho   rounds, warm_up          rounds in all; share of them that is FedAvg: T_g = floor(rho T)
    S_t      updates                  clients whose updates arrived in round t
    omega_i  extractor of `model`     all tensors of client i but the classifier's, as last uploaded
    phi_i    classifier of `model`    its last FC layer; phi_ic is the weight row of class c
    Phi      `similarity`             similarity of classifiers, float[N, N], diagonal 1; 0: never in one round together
    a_ij     `mixing_weights`         what of omega_j goes into client i's next extractor, adding up to 1
    Y        classes                  classes

Variant `paper`: Phi_ij = -(1/|Y|) sum_c log(1 - max(0, cos_c)), a_ij = Phi_ij / sum_j Phi_ij. Variant `reference`, the
authors' code: Phi_ij = max(0, mean_c cos_c), a_ij in proportion to -log(1 - Phi_ij) with Phi_ii = 0.9999; a row that
adds up to at most 1 keeps its own extractor. In both cos_c = <phi_ic, phi_jc> / (|phi_ic| |phi_jc| + 1e-8).

Deviations: cosines (`reference`: similarities) are at most 0.9999, as equal classifiers otherwise weigh infinitely
much. The printed loop runs T + 1 rounds, this one T. Integer buffers (BatchNorm's batch counter) stay the client's own,
as the mean of counts means nothing and no other client's file need be read for them. With `batch_norm = "local"` all of
BatchNorm, affine parameters and statistics, stays the client's own. A client that is forgotten is mixed in no more from
the next round on.

State: `global`; for a client that has taken part in personalisation `clients/<id>/model`, the uploaded blob itself, and
`clients/<id>/slot`, its row in the array `similarity`; a row whose client was forgotten tells of nobody, and is used
again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.manifest import select
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import blob_pb2, manifest_pb2
from fedlens_server.methods.arithmetic.weighted_mean import in_order
from fedlens_server.methods.arithmetic.weighted_sum import WeightedSum
from fedlens_server.methods.fedavg import GLOBAL, with_mean
from fedlens_server.planning import fitting
from fedlens_server.planning.method import NothingToAggregate, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError

Matrix = NDArray[np.float64]
PAPER, REFERENCE = "paper", "reference"
AVERAGE, LOCAL = "average", "local"
WARM_UP, PERSONALISE = "warm-up", "personalise"
PERSONAL, SIMILARITY = "personal", "similarity"
MOST = 0.9999
EPSILON = 1e-8
_BATCH_NORM = (manifest_pb2.TENSOR_KIND_NORM, manifest_pb2.TENSOR_KIND_BUFFER)
OPTIONS = {
    "variant": fitting.choice(PAPER, REFERENCE),
    "batch_norm": fitting.choice(AVERAGE, LOCAL),
    "warm_up": fitting.number(0, 1, default=0.5),
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
    """The similarity matrix after a round: pairs of its members anew, all else as it was.

    Args:
        matrix: Before the round, float[clients, clients].
        members: Index of each client of the round, in any order.
        classifiers: Their classifiers' weights as uploaded, in the order of `members`.
        variant: `paper` or `reference`.

    Returns:
        float64[clients, clients].

    Source: arXiv:2305.15706, Algorithm 2, the loop over pairs of S_t.
    """
    result = np.array(matrix, np.float64)
    order = np.argsort(members)
    chosen = np.asarray(members, np.intp)[order]
    if len(chosen):
        result[np.ix_(chosen, chosen)] = similarities([classifiers[k] for k in order], variant)
    return result


def mixing_weights(row: Array, own: int, variant: str = PAPER) -> NDArray[np.float64]:
    """What of each client's extractor goes into the next one of client `own`, float64[clients], adding up to 1.

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
    shares: NDArray[np.float64] = np.abs(weights) / weights.sum()  # of -0.0 plain 0
    return shares


def mix(weights: Array, tensors: Sequence[Array]) -> Array:
    """One tensor of a client's next extractor: `sum_j a_ij omega_j`, summed in float64, float32.

    Args:
        weights: a_ij, float[clients]; clients with 0 are not looked at.
        tensors: The tensor of each client, float of any width.

    Source: arXiv:2305.15706, Algorithm 2, the server's aggregation.
    """
    terms = [(float(a), {"omega": omega}) for a, omega in zip(weights, tensors, strict=True) if a != 0.0]
    return WeightedSum({"omega": terms})["omega"].astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class PFedSim:
    """Rounds of FedAvg, then rounds in which each client trains a mix of its own and uploads all of it."""

    variant: str
    warm_up_rounds: int
    personal_rounds: int
    cohort: int | None
    stage: pb.Stage
    uploads: Mapping[str, pb.Upload]  # by phase
    classifier: str  # tensor that the similarity is taken of
    mixed: tuple[str, ...]  # tensors that are mixed
    alone: tuple[str, ...]  # all others, which stay the client's own

    @classmethod
    def for_task(cls, task: TaskPlan) -> Self:
        """The method with a task's settings.

        Raises:
            SettingsError: An option is not allowed, or the bundles have no extractor or none that can be mixed.
        """
        settings = task.settings
        options = fitting.need_options(settings, OPTIONS)
        fitting.need_equal_bundles(task)
        fitting.need_no_references(task)
        tensors = task.ordinary[0].tensors
        matrices = [tensor.name for tensor in select(tensors, fitting.CLASSIFIER) if len(tensor.shape) == 2]
        if len(matrices) != 1:
            found = f"a classifier with {len(matrices)} weight matrices"
            raise SettingsError("manifests[0]", found, "a model whose classifier is one FC layer for pfedsim")
        local = _BATCH_NORM if options["batch_norm"] == LOCAL else ()
        mixed = tuple(
            tensor.name
            for tensor in select(tensors, fitting.EXTRACTOR)
            if tensor.kind not in local and tensor.dtype != blob_pb2.DTYPE_INT64
        )
        if not mixed:
            raise SettingsError("manifests[0]", "a model without an extractor to mix", "one with one for pfedsim")
        warm_up_rounds = floor(Fraction(str(options["warm_up"])) * settings.rounds)  # 0.29 of 100 is 29, not 28.99...
        return cls(
            variant=options["variant"],
            warm_up_rounds=warm_up_rounds,
            personal_rounds=settings.rounds - warm_up_rounds,
            cohort=settings.cohort_size,
            stage=settings.stage("step"),
            uploads={WARM_UP: settings.upload(GLOBAL), PERSONALISE: settings.upload(PERSONAL)},
            classifier=matrices[0],
            mixed=mixed,
            alone=tuple(tensor.name for tensor in tensors if tensor.name not in mixed),
        )

    def phases(self, task: TaskPlan) -> list[Phase]:
        """Those of warm-up and personalisation that have any rounds."""
        planned = [(WARM_UP, GLOBAL, self.warm_up_rounds), (PERSONALISE, PERSONAL, self.personal_rounds)]
        return [
            Phase(
                name=name,
                rounds=rounds,
                cohort=self.cohort,
                local_plan=pb.LocalPlan(
                    start=[pb.StartRule(source=pb.SetSource(download=download))],
                    stages=[self.stage],
                    upload=self.uploads[name],
                    evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
                ),
            )
            for name, download, rounds in planned
            if rounds
        ]

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The bundle's initial weights as the global model, which then every client starts from."""
        return state if GLOBAL in state else {GLOBAL: tools.initial}

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The global model; in personalisation the client's own mix, and nothing for an evaluator."""
        if phase.name == WARM_UP:
            return {GLOBAL: state[GLOBAL]}
        if client is None:
            return None
        own = state.get(_model(client.hex()))
        return {PERSONAL: state[GLOBAL] if own is None else self._weighted_sum(state, client.hex(), own)}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the updates; in personalisation the clients' models and how similar they are."""
        if phase.name == WARM_UP:
            return with_mean(state, updates)
        trained = [update for update in in_order(updates) if update.num_examples > 0]
        if not trained:
            raise NothingToAggregate("no client trained on any photo")
        known = _slots(state)
        new = [update.client.hex() for update in trained if update.client.hex() not in known]
        free = sorted(set(range(len(known) + len(new))) - set(known.values()))
        joined = dict(zip(new, free, strict=False))
        slots = known | joined
        matrix = updated(
            _grown(state.get(SIMILARITY), known, max(slots.values()) + 1),
            [slots[update.client.hex()] for update in trained],
            [update.tensors[self.classifier] for update in trained],
            self.variant,
        )
        entries: dict[str, object] = {f"clients/{client}/slot": slot for client, slot in joined.items()}
        entries |= {_model(update.client.hex()): update.tensors for update in trained}
        return {**state, **entries, SIMILARITY: matrix.astype(np.float32)}

    def _weighted_sum(self, state: State, client: str, own: TensorSet) -> TensorSet:
        """The mix of a client that has a model; that model itself where no other goes in."""
        slots = _slots(state)
        here = sorted(slots.items())  # by client, so that no sum depends on who joined first
        row = state[SIMILARITY][slots[client], [slot for _, slot in here]]
        weights = mixing_weights(row, here.index((client, slots[client])), self.variant)
        chosen = np.flatnonzero(weights)
        if len(chosen) == 1:
            return own
        terms = tuple((float(weights[k]), state[_model(here[k][0])]) for k in chosen)
        return WeightedSum(dict.fromkeys(self.mixed, terms) | dict.fromkeys(self.alone, ((1.0, own),)), stand_in=own)


def _model(client: str) -> str:
    return f"clients/{client}/model"


def _slots(state: State) -> dict[str, int]:
    """By client, in hex, its row of the matrix."""
    return {name.removeprefix("clients/")[:64]: slot for name, slot in state.items() if name.endswith("/slot")}


def _grown(matrix: Array | None, slots: Mapping[str, int], size: int) -> Matrix:
    """The matrix with room for `size` clients; rows and columns of nobody are the identity's."""
    result: Matrix = np.eye(size)
    used = np.array(sorted(slots.values()), np.intp)
    if matrix is not None and len(used):
        result[np.ix_(used, used)] = np.asarray(matrix, np.float64)[np.ix_(used, used)]
    return result
