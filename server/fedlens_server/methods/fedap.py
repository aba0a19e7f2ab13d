"""f-FedAP: each client gets its own weighted sum of models, by the similarity of its BatchNorm statistics to others'.

Paper: Lu et al., IEEE Trans. Big Data 2022, https://arxiv.org/abs/2112.00734, Section 3, with FedBN in place of a
pre-trained model.

    paper        here                          meaning
    mu_l, s_l    clients[id]["statistics"]     mean and variance, per channel, at BatchNorm layer l; with arrivals
    d_ij         `distances`                   sqrt(|mu_i - mu_j|^2 + |sqrt s_i - sqrt s_j|^2), summed over the layers
    w_ij         shared["mixing"]              weight of model j in client i's next one; fixed from then on
    lambda       options.model_momentum        w_ii; the others share 1 - lambda by 1 / d_ij
    rho          options.warm_up               fraction of the training rounds that is FedBN
    theta_j      clients[id]["model"]          last upload of client j, without BatchNorm; the uploaded blob itself

Phases: `warm-up`, floor(rho T) rounds of FedBN; `statistics`, one round of all clients, who train nothing; then
`personalise`. So T = `rounds` - 1. BatchNorm stays with each client throughout. A client without an upload counts with
the warm-up's global model. Statistics are the kept running mean and variance (`running`), or those of what enters each
BatchNorm layer on the client's train photos under the global model with its own BatchNorm (`recomputed`).

Edges: clients at distance 0 share all of 1 - lambda in equal parts; a single client has weight 1; a negative variance
is 0. A client without statistics has its own model alone and is in nobody else's. A forgotten client is in no sum; the
weights of the others are divided by their sum.

Deviations: with `recomputed` all photos count alike; FL-bench combines statistics of batches. With arrivals a client
that comes after the statistics sends its own then, and gets a row of weights from its distances to all who have one;
their rows stay, as the paper fixes them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedlens_proto import plans
from fedlens_proto.manifest import program
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import blob_pb2, manifest_pb2
from fedlens_server.methods.arithmetic.client_matrix import SLOT, Matrix, grown, size_of, slots_of, with_new
from fedlens_server.methods.arithmetic.linear_combination import in_order, with_photos
from fedlens_server.methods.arithmetic.weighted_sum import Terms, WeightedSum
from fedlens_server.methods.fedavg import whole_model_plan, with_mean
from fedlens_server.methods.fedbn import keeping_norms
from fedlens_server.planning import bundles, options
from fedlens_server.planning.bundle_settings import BundleSettings
from fedlens_server.planning.local_plans import (
    START,
    WEIGHTS,
    assemble,
    bind,
    derive,
    evaluate,
    plan,
    source,
    upload,
    upload_table,
)
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

WARM_UP, STATISTICS, PERSONALISE = "warm-up", "statistics", "personalise"
PERSONAL, MODEL, MIXING = "personal", "model", "mixing"
TABLES = "statistics"  # entry of each client
SUMS, TABLE = "norm_sums", "norm_statistics"
RUNNING, RECOMPUTED = "running", "recomputed"
MEAN, VARIANCE = "running_mean", "running_var"
BUFFERS = pb.TensorSelector(kinds=[manifest_pb2.TENSOR_KIND_BUFFER])
OPTIONS = {
    "warm_up": options.number(0, 1, default=0.5),
    "model_momentum": options.number(0, 1, default=0.5),
    "statistics": options.choice(RUNNING, RECOMPUTED),
}


def distances(means: Sequence[ArrayLike], variances: Sequence[ArrayLike], of: Iterable[int] | None = None) -> Matrix:
    """The distances of some clients to all, float64[some, clients].

    Args:
        means: Of each layer, float[clients, channels].
        variances: Of each layer, in the same shape; negative ones, by rounding, count 0.
        of: Indices of these clients; None: all.

    Source: arXiv:2112.00734, Section 3.3, the Wasserstein distance of Gaussians, summed over layers.
    """
    count = len(np.asarray(means[0]))
    chosen = list(range(count) if of is None else of)
    total: Matrix = np.zeros((len(chosen), count))
    for mean, variance in zip(means, variances, strict=True):
        deviation = np.sqrt(np.maximum(np.asarray(variance, np.float64), 0.0))
        rows = np.concatenate([np.asarray(mean, np.float64), deviation], axis=1)
        for i, k in enumerate(chosen):  # one client at a time, which bounds memory
            total[i] += np.sqrt(((rows - rows[k]) ** 2).sum(axis=1))
    return total


def mixing_weights(distance: ArrayLike, momentum: float, of: Iterable[int] | None = None) -> Matrix:
    """The weight of each client's model in the next ones of some clients, float64[some, clients]; rows add up to 1.

    Args:
        distance: float[some, clients], 0 or more.
        momentum: lambda, 0 to 1: a client's weight of its own model.
        of: Indices of these clients; None: all.

    Source: arXiv:2112.00734, Section 3.3.
    """
    found = np.array(distance, np.float64)
    count = found.shape[1]
    if count == 1:
        return np.ones((1, 1))
    result = np.zeros(found.shape)
    for i, k in enumerate(range(count) if of is None else of):
        others = np.arange(count) != k
        apart = found[i]
        twins = others & (apart == 0)
        # Relative to the nearest, so that no inverse overflows.
        inverse = twins.astype(np.float64) if twins.any() else apart[others].min() / np.where(others, apart, np.inf)
        result[i] = (1.0 - momentum) * inverse / inverse.sum()
        result[i, k] = momentum
    return result


@dataclass(frozen=True, kw_only=True)
class _FedAP:
    """The options of the method, and its functions."""

    momentum: float
    upload: str  # name of the upload of statistics
    layers: tuple[str, ...]
    mixed: tuple[str, ...]  # tensors that are summed over clients
    admits: bool  # clients that come after the statistics

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The bundle's initial weights without BatchNorm as the global model."""
        return state if GLOBAL in state.shared else State(shared={GLOBAL: tools.initial})

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The global model; in personalisation the client's own weighted sum, once it has a row."""
        if client is None or (phase.name == PERSONALISE and self.admits and SLOT not in state.of(client)):
            return None
        if phase.name != PERSONALISE:
            return {GLOBAL: state.shared[GLOBAL]}
        return {PERSONAL: self._weighted_sum(state, client)}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The mean of the updates; then the weights; then the clients' models."""
        if phase.name == STATISTICS:
            return self._with_mixing(state, in_order(updates))
        trained = with_photos(updates)
        if phase.name == WARM_UP:
            state = with_mean(phase, state, trained, tools)
        return state.with_clients({update.client: {MODEL: update.values[WEIGHTS]} for update in trained})

    def admit(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The state with a row of weights for each of these clients, from its distances to all who have one by then."""
        return self._with_mixing(state, in_order(updates))

    def _with_mixing(self, state: State, updates: Sequence[Update]) -> State:
        """The state with a row of weights for each of these clients."""
        known = slots_of(state)
        new = {update.client: update.values[self.upload] for update in updates}
        slots = with_new(known, new)
        tables = {**{client: state.of(client)[TABLES] for client in known}, **new}
        clients = list(tables)
        means, variances = (
            [np.array([table[f"{layer}.{what}"] for table in tables.values()]) for layer in self.layers]
            for what in (MEAN, VARIANCE)
        )
        chosen = [clients.index(client) for client in new]
        weights = mixing_weights(distances(means, variances, chosen), self.momentum, chosen)
        mixing = grown(state.shared.get(MIXING), known, np.zeros((size_of(slots),) * 2))
        mixing[np.ix_([slots[client] for client in new], [slots[client] for client in clients])] = weights
        kept = {client: {TABLES: table} for client, table in new.items()} if self.admits else {}
        state = state.with_clients(kept).with_clients({client: {SLOT: slots[client]} for client in new})
        return state.with_shared(**{MIXING: mixing.astype(np.float32)})

    def _weighted_sum(self, state: State, client: bytes) -> TensorSet:
        """The weighted sum for a client; its own last model where no other has a weight."""
        slots = slots_of(state)
        own: TensorSet = state.of(client).get(MODEL, state.shared[GLOBAL])
        if client not in slots:
            return own
        clients = sorted(slots)  # so that no sum depends on the order in which clients joined
        row = np.asarray(state.shared[MIXING][slots[client], [slots[each] for each in clients]], np.float64)
        if row.sum() == 0:  # model_momentum 0, and all others were forgotten
            return own
        weights = row / row.sum()
        chosen = np.flatnonzero(weights)
        if [clients[k] for k in chosen] == [client]:
            return own
        models = [state.of(each).get(MODEL, state.shared[GLOBAL]) for each in clients]
        terms: Terms = tuple((float(weights[k]), models[k]) for k in chosen)
        return WeightedSum(dict.fromkeys(self.mixed, terms), advertised=own)


def _statistics_plan(task: TaskPlan, rules: Sequence[pb.Rule], statistics: str) -> pb.LocalPlan:
    """The local plan that trains nothing and uploads statistics of the client's own BatchNorm."""
    start = assemble(START, *rules)
    if statistics == RUNNING:
        whole = upload(task.settings, START, BUFFERS)
        whole.codec = pb.CODEC_FLOAT32  # its squared differences are what counts
        return plan(start, uploads=[whole], evaluations=[evaluate(START)])
    return plan(
        start,
        derive(SUMS, SUMS, bind("model", source(value=START)), rows=pb.ROWS_TRAIN),
        derive(TABLE, TABLE, bind(SUMS, source(value=SUMS))),
        uploads=[upload_table(TABLE, TABLE)],
        evaluations=[evaluate(START)],
    )


def _layers(task: TaskPlan, statistics: str) -> tuple[str, ...]:
    """The BatchNorm layers, by the names of their statistics.

    Raises:
        SettingsError: There are none.
    """
    first = task.ordinary[0]
    if statistics == RECOMPUTED:
        names = {slot.name for slot in program(first, TABLE).outputs}
    else:
        names = {tensor.name for tensor in bundles.tensors(task, BUFFERS)}
    layers = sorted(name.removesuffix(f".{MEAN}") for name in names if name.endswith(f".{MEAN}"))
    found = tuple(layer for layer in layers if f"{layer}.{VARIANCE}" in names)
    if not found:
        allowed = f"one whose BatchNorm layers have {MEAN} and {VARIANCE}, for {task.settings.method}"
        raise SettingsError("manifests[0]", f"model {first.model!r} without statistics of BatchNorm", allowed)
    return found


def bundle_settings(options: Mapping[str, Any]) -> BundleSettings:
    """The settings of its bundles."""
    return BundleSettings(programs=(SUMS, TABLE) if options["statistics"] == RECOMPUTED else ())


def for_task(task: TaskPlan) -> Method:
    """f-FedAP for a task; there is no global model.

    Raises:
        SettingsError: There is no round to personalise in, or the bundles differ, have no BatchNorm, or lack the
            programs that recompute statistics.
    """
    settings = task.settings
    chosen = task.options
    statistics = chosen["statistics"]
    bundles.need_equal(task)
    bundles.need_no_references(task)
    if statistics == RECOMPUTED:
        bundles.need_programs(task, [SUMS, TABLE], f"--program {SUMS} --program {TABLE}")
    training = settings.rounds - 1
    warm_up = floor(Fraction(str(chosen["warm_up"])) * training)
    if warm_up == training:
        allowed = "more: floor(warm_up * (rounds - 1)) of warm-up, 1 for statistics, and 1 or more to personalise"
        raise SettingsError("rounds", settings.rounds, allowed)
    layers = _layers(task, statistics)

    def without_norms(exchanged: TaskPlan) -> Method:
        tensors = exchanged.ordinary[0].tensors
        method = _FedAP(
            momentum=float(chosen["model_momentum"]),
            upload=WEIGHTS if statistics == RUNNING else TABLE,
            layers=layers,
            mixed=tuple(tensor.name for tensor in tensors if tensor.dtype != blob_pb2.DTYPE_INT64),
            admits=settings.by_arrival,
        )
        phases = tuple(
            Phase(name=name, rounds=rounds, cohort=settings.cohort_size, plan=whole_model_plan(exchanged, download))
            for name, download, rounds in [
                (WARM_UP, GLOBAL, warm_up),
                (PERSONALISE, PERSONAL, training - warm_up),
            ]
        )
        return Method(
            phases=phases,
            begin=method.begin,
            download=method.download,
            aggregate=method.aggregate,
            admit=method.admit if method.admits else None,
            per_client=True,
        )

    method = keeping_norms(without_norms, task)
    first, last = method.phases
    if settings.by_arrival:
        last = replace(last, intake=STATISTICS)
    asked = _statistics_plan(task, plans.start_rules(first.plan), statistics)
    phases = (first, Phase(name=STATISTICS, rounds=1, cohort=None, plan=asked), last)
    return replace(method, phases=tuple(phase for phase in phases if phase.rounds))
