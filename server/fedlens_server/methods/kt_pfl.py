"""KT-pFL: each client learns from a teacher of its own, a sum of all clients' predictions on public photos.

Paper: Zhang et al., NeurIPS 2021, https://arxiv.org/abs/2111.02862, Algorithm 1, Equations 3 to 6.

    paper    here                             meaning
    s_k      values["predictions"]["scores"]  softened predictions of client k on the public photos, float[P, C]
    c        `coefficients`                   knowledge coefficients, float[N, N]; 1/m each at first
    t_k      download `teacher`               teacher of client k: sum_l c_kl s_l
    eta_2    options.step                     rate of the coefficients' gradient step
    rho      options.penalty                  strength of the pull of coefficients to 1/m
    m        tools.population                 all clients of the task
    T        hyper-parameter temperature      of predictions and distillation
    w_k      client state `model`             model of client k, of any architecture, which never leaves it

L_k = mean_{p,c} (sum_l c_kl s_l - s_k)^2 + rho mean_l (c_kl - 1/m)^2. Its gradient needs inner products of predictions
alone: with G_kl = mean(s_k s_l), that of the first term is 2 (c G - G)_kl.

Variant `paper`: c_k -= eta grad L_k. Variant `reference`, the authors' code: eta is searched for each row, five times a
fifth of what it was if the mean of |eta grad| is above 0.01, then five times as much if it is below; then
c_k <- softmax(5 c_k). All rows step from the same c. Rows of `paper` need not add up to 1.

With `weight` (FedClassAvg's *KT-pFL +weight*), clients upload their models, s_k are models, and client k trains
w_k = sum_l c_kl w_l as FedAvg does its model. No code of it is known, and one sentence describes it: here c follows
from L_k over all float tensors of models in place of predictions; integers are the client's own.

Deviations: a round is one exchange, not two: the client distils at its start, from predictions of the rounds before, so
the first round is without a teacher. Clients outside a round count with their last predictions. A client without any is
left out of the sums, which are then divided by the sum of the coefficients that are in; so is a forgotten one, since m
never falls. Where m rises, the coefficients of before are scaled, so that rows keep their sum.

State: the array `coefficients`, and m as `clients`; of each client `slot`, its row, and `predictions` or `model`, the
uploaded blob itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import blob_pb2
from fedlens_server.methods.arithmetic.client_matrix import SLOT, Matrix, grown, size_of, slots_of, with_new
from fedlens_server.methods.arithmetic.linear_combination import CHUNK, with_photos
from fedlens_server.methods.arithmetic.weighted_sum import Terms, WeightedSum
from fedlens_server.methods.fedavg import single_phase, whole_model_plan
from fedlens_server.planning import bundles, options
from fedlens_server.planning.bundle_settings import BundleSettings
from fedlens_server.planning.local_plans import (
    START,
    TRAINED,
    WEIGHTS,
    assemble,
    bind,
    derive,
    keep,
    plan,
    rule,
    source,
    train,
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
    span,
)

OBJECTIVES = ("distil", "distil_probabilities")
PAPER, REFERENCE = "paper", "reference"
FIRST, DISTIL = "first", "distil"
PREDICTIONS, SCORES, TEACHER, TARGET = "predictions", "scores", "teacher", "target"
DISTILLED = "distilled"
MODEL = "model"  # client state; with `weight` an entry of each client
COEFFICIENTS, CLIENTS = "coefficients", "clients"
TINY = 1e-9
SEARCHES, FACTOR, GOAL, SHARPNESS = 5, 5.0, 0.01, 5.0  # of the authors' code
OPTIONS = {
    "variant": options.choice(PAPER, REFERENCE),
    "weight": options.flag(default=False),
    "step": options.number(0, 1000, default=0.02),
    "penalty": options.number(0, 1000, default=0.7),
    "distil_epochs": options.whole(1, 1_000_000, default=1),
}


def inner_products(predictions: Sequence[ArrayLike]) -> Matrix:
    """The mean product of each pair of clients' predictions, float64[clients, clients].

    Args:
        predictions: Of each client, float, all of one shape.
    """
    flat = np.array([np.asarray(each, np.float64).reshape(-1) for each in predictions])
    products: Matrix = flat @ flat.T / flat.shape[1]
    return products


def row_losses(products: Matrix, coefficients: Matrix, penalty: float, clients: int) -> NDArray[np.float64]:
    """The loss L_k of each client, float64[clients]; arguments as in `gradients`.

    Source: arXiv:2111.02862, Equation 6.
    """
    share, _ = _shares(coefficients, clients)
    away = share - np.eye(len(products))
    pull = ((coefficients - 1 / clients) ** 2).sum(axis=1) / clients
    losses: NDArray[np.float64] = np.einsum("kl,lj,kj->k", away, products, away) + penalty * pull
    return losses


def gradients(products: Matrix, coefficients: Matrix, penalty: float, clients: int) -> Matrix:
    """The gradient of each row's loss by that row, float64[clients, clients].

    Args:
        products: Of the clients with predictions, as of `inner_products`.
        coefficients: Of these clients, float64 in the same shape.
        penalty: rho.
        clients: All clients m; if there are more than rows, teachers are divided by their coefficients' sum.

    Source: arXiv:2111.02862, Equation 6.
    """
    share, total = _shares(coefficients, clients)
    fit = 2 * (share - np.eye(len(products))) @ products
    if total is not None:  # the derivative of the quotient
        fit = (fit - (fit * share).sum(axis=1, keepdims=True)) / total
    pulled: Matrix = fit + penalty * 2 * (coefficients - 1 / clients) / clients
    return pulled


def updated(
    products: Matrix, coefficients: Matrix, penalty: float, step: float, clients: int, variant: str = PAPER
) -> Matrix:
    """The coefficients after a round, float64[clients, clients]; all rows step from the same ones.

    Args:
        products: As in `gradients`; so `coefficients`, `penalty` and `clients`.
        coefficients: Before the round.
        penalty: rho.
        step: eta of variant `paper`; `reference` searches for its own.
        clients: All clients m.
        variant: `paper` or `reference`.

    Source: arXiv:2111.02862, Algorithm 1; `reference`: the authors' code.
    """
    found = gradients(products, coefficients, penalty, clients)
    if variant == PAPER:
        return coefficients - step * found
    rates = np.array([_searched(float(np.abs(row).sum()) / clients) for row in found])
    moved = SHARPNESS * (coefficients - rates[:, None] * found)
    powers = np.exp(moved - moved.max(axis=1, keepdims=True))
    sharpened: Matrix = powers / powers.sum(axis=1, keepdims=True)
    return sharpened


def teacher_weights(row: NDArray[np.float64], clients: int) -> NDArray[np.float64]:
    """The weight of each client's predictions in a teacher, float64[clients with predictions].

    Args:
        row: The coefficients of those clients in the teacher, float64.
        clients: All clients m. If there are more, the weights are divided by their sum; if that is 0, they are equal.
    """
    shares, _ = _shares(row[None], clients)
    weights: NDArray[np.float64] = shares[0]
    return weights


@dataclass(frozen=True, kw_only=True)
class _KTpFL:
    """The options of the method, and its three functions."""

    variant: str
    step: float
    penalty: float
    weight: bool
    summed: Mapping[str, int]  # elements of the tensors of which coefficients are computed
    own: tuple[str, ...] = ()  # integers of the model

    @property
    def entry(self) -> str:
        """The clients' entry with the last upload, which has the tensors `summed`."""
        return MODEL if self.weight else PREDICTIONS

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """Nothing, or with `weight` the initial model; later phases go on with the state that there is."""
        if state.shared or state.clients:
            return state
        return State(shared={GLOBAL: tools.initial} if self.weight else {})

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The client's teacher, or its target; None in rounds with a teacher, if nobody has any predictions."""
        if client is None:
            return None
        if self.weight:
            own = state.of(client).get(MODEL)
            return {TARGET: state.shared[GLOBAL] if own is None else self._sum(state, client, own)}
        if phase.name == FIRST:
            return {}
        return {TEACHER: self._sum(state, client)} if answered(state, self.entry) else None

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The clients' last predictions, or models, and the coefficients that follow from all of them."""
        ordered = with_photos(updates)
        known = slots_of(state)
        slots = with_new(known, [*tools.population, *(update.client for update in ordered)])
        before = state.shared.get(CLIENTS, 0)
        clients, size = max(before, len(slots)), size_of(slots)
        upload = WEIGHTS if self.weight else PREDICTIONS
        places = {client: {SLOT: row} for client, row in slots.items()}
        answers = {update.client: {self.entry: update.values[upload]} for update in ordered}
        after = state.with_clients(places).with_clients(answers)
        old = state.shared.get(COEFFICIENTS)
        scaled = None if old is None else np.asarray(old, np.float64) * (before / clients)
        matrix = grown(scaled, known, np.full((size, size), 1 / clients))
        there = answered(after, self.entry)
        rows = np.ix_([slots[client] for client in there], [slots[client] for client in there])
        products = self._products([after.clients[client][self.entry] for client in there])
        matrix[rows] = updated(products, matrix[rows], self.penalty, self.step, clients, self.variant)
        return after.with_shared(**{COEFFICIENTS: matrix.astype(np.float32), CLIENTS: clients})

    def _products(self, sets: Sequence[TensorSet]) -> Matrix:
        """`inner_products` over all tensors `summed`, a chunk at a time."""
        total = np.zeros((len(sets), len(sets)))
        for name, size in self.summed.items():
            for a in range(0, size, CHUNK):
                b = min(a + CHUNK, size)
                total += inner_products([span(each, name, a, b) for each in sets]) * (b - a)
        return total / sum(self.summed.values())

    def _sum(self, state: State, client: bytes, own: TensorSet | None = None) -> TensorSet:
        """The sum of the last predictions, or models, by the coefficients of a client."""
        slots, there = slots_of(state), answered(state, self.entry)
        row = np.ones(len(there))  # of a client that is new: divided, a plain mean
        if client in slots:
            row = np.asarray(state.shared[COEFFICIENTS], np.float64)[slots[client], [slots[each] for each in there]]
        weights = teacher_weights(row, state.shared[CLIENTS] if client in slots else 0)
        terms: Terms = tuple((float(c), state.clients[k][self.entry]) for c, k in zip(weights, there, strict=True))
        integers: dict[str, Terms] = {} if own is None else dict.fromkeys(self.own, ((1.0, own),))
        return WeightedSum(dict.fromkeys(self.summed, terms) | integers, advertised=own)


def phases_with_teacher(
    task: TaskPlan, program: str, epochs: int, before: Sequence[pb.Instruction] = ()
) -> tuple[Phase, ...]:
    """A round without a teacher, then all other rounds with one; clients keep their models and upload predictions.

    Args:
        task: The task.
        program: The program that predicts.
        epochs: Of distillation, over the public photos.
        before: Trainings in the first round, one after the other, before that on the client's own photos.

    Raises:
        SettingsError: A bundle lacks a program, or public photos.
    """
    bundles.need_programs(task, ["distil", program], "--public DIR")
    distil = train(
        task.settings,
        DISTILLED,
        program="distil",
        epochs=epochs,
        hyper=bundles.hyper_of(task, "distil"),
        bindings=[bind(TEACHER, source(download=TEACHER))],
        rows=pb.ROWS_PUBLIC,
    )
    predict = derive(
        PREDICTIONS,
        program,
        bind("model", source(value=TRAINED)),
        hyper=bundles.hyper_of(task, program),
        rows=pb.ROWS_PUBLIC,
    )
    settings, phases = task.settings, []
    for name, rounds, trainings in ((FIRST, 1, before), (DISTIL, settings.rounds - 1, [distil])):
        start = trainings[-1].value if trainings else START
        local_plan = plan(
            assemble(START, rule(source(state=MODEL, download=INITIAL))),
            *trainings,
            train(settings, start=start, hyper=bundles.hyper_of(task, "step")),
            predict,
            keeps=[keep(MODEL)],
            uploads=[upload_table(PREDICTIONS, PREDICTIONS)],
        )
        if rounds:
            phases.append(Phase(name=name, rounds=rounds, cohort=settings.cohort_size, plan=local_plan))
    return tuple(phases)


def scores_shape(task: TaskPlan) -> tuple[int, int]:
    """Public photos and classes: the shape of a client's predictions."""
    return task.ordinary[0].public.rows, len(task.ordinary[0].class_names)


def answered(state: State, entry: str = PREDICTIONS) -> list[bytes]:
    """The clients that have this entry, ascending."""
    return sorted(client for client, entries in state.clients.items() if entry in entries)


def bundle_settings(options: Mapping[str, Any]) -> BundleSettings:
    """The settings of its bundles."""
    return BundleSettings() if options["weight"] else BundleSettings(objective=OBJECTIVES[0], public=True)


def for_task(task: TaskPlan) -> Method:
    """KT-pFL for a task; there is no global model.

    Raises:
        SettingsError: The bundles have another objective, lack a program or public photos; or, with `weight`, they
            differ; or an option has no effect beside the others.
    """
    chosen = dict(task.options)
    if chosen["variant"] == REFERENCE:
        options.need_default(chosen, OPTIONS, ["step"], f'options.variant is "{REFERENCE}"')
    if chosen["weight"]:
        options.need_default(chosen, OPTIONS, ["distil_epochs"], "options.weight is true")
    epochs, weight = chosen.pop("distil_epochs"), chosen["weight"]
    own: tuple[str, ...] = ()
    if weight:
        bundles.need_equal(task)
        tensors = task.ordinary[0].tensors
        own = tuple(each.name for each in tensors if each.dtype == blob_pb2.DTYPE_INT64)
        summed = {each.name: prod(each.shape) for each in tensors if each.name not in own}
        phases = single_phase(task, whole_model_plan(task, TARGET))
    else:
        bundles.need_objective(task, OBJECTIVES)
        phases = phases_with_teacher(task, PREDICTIONS, epochs)
        summed = {SCORES: prod(scores_shape(task))}
    method = _KTpFL(**chosen, summed=summed, own=own)
    return Method(
        phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate, per_client=True
    )


def _shares(coefficients: Matrix, clients: int) -> tuple[Matrix, Matrix | None]:
    """The weights in teachers, and the sums that they were divided by; None: every client is in, so none is needed."""
    count = coefficients.shape[1]
    if count == clients:
        return coefficients, None
    total = coefficients.sum(axis=1, keepdims=True)
    usable = np.abs(total) > TINY
    shares: Matrix = np.where(usable, coefficients / np.where(usable, total, 1.0), 1 / max(count, 1))
    return shares, np.where(usable, total, np.inf)


def _searched(size: float) -> float:
    """The authors' rate for a gradient whose mean is of this size."""
    rate = 1.0
    for _ in range(SEARCHES):
        if rate * size > GOAL:
            rate /= FACTOR
        if rate * size < GOAL:
            rate *= FACTOR
    return rate
