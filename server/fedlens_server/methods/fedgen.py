"""FedGen: the server trains a generator of features from the clients' classifiers; clients also train on its features.

Paper: Zhu, Hong, Zhou, ICML 2021, https://arxiv.org/abs/2105.10056, Algorithm 1, Equations 4 to 6.

    paper     here                       meaning
    theta     shared[GLOBAL]             model at the start of a round, FedAvg's mean
    w         `training`                 the generator G(y) = W2 relu(BN(W1 [eps, one-hot y] + b1)) + b2, Adam's moments
    theta_k^p rows of `Classifiers`      classifier of client k, as uploaded in the round
    eps       noise                      uniform in 0..1, float[B', 32]
    y         labels                     drawn evenly from the qualified classes
    alpha     options.teacher            weight of the clients' losses
    eta       options.diversity          weight of the diversity term
    alpha_t   options.alpha, DECAY       weight of the generated rows in the clients' loss, max(1e-4, alpha 0.98^t)
    beta_t    options.beta, DECAY        weight of the clients' divergence term, likewise

After each round Adam takes `iterations` steps with rate 3e-4 * 0.98^t on

    alpha sum_k mean_b q[y_b, k] CE(classifier_k(G(y_b)), y_b) + eta exp(-mean_ij d(eps_i, eps_j) d'(G_i, G_j)),

q[c, k] = n_k^c / sum_S n_k^c, d the mean square, d' the mean absolute difference. A class is qualified if some client
of the round has more than one photo of it. Clients use the generator from the second round on, objective `generated`;
they draw labels from the classes that have been qualified in some round.

Deviations: q weighs row by row, as the paper says; the authors' code multiplies losses [B] by weights [B, 1], which is
mean(q) * mean(CE) for each client. Each client's own loss counts, where the paper prints the loss of the mean logits.
Class counts are of all photos. Noise and hidden layer have 32 units, as in FL-bench, and so are rows and iterations of
the server's training. The student term, of weight 0 in the authors' code, is left out. Generated rows do not stop after
20 epochs. Clients get G with BatchNorm's running statistics folded into W1 and b1.

State: `global`; `training`; `generator`, as clients get it, once there is one; `round`, the number of rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlens_proto import slots
from fedlens_proto.blob import Array
from fedlens_proto.manifest import program, select
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.linear_combination import with_photos
from fedlens_server.methods.fedavg import single_phase, with_mean
from fedlens_server.methods.fedavg_last_fc import class_counts_of
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import (
    CLASS_COUNTS,
    START,
    WEIGHTS,
    assemble,
    bind,
    plan,
    rule,
    source,
    train,
    upload,
)
from fedlens_server.planning.method import GLOBAL, Method, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError

OBJECTIVE = "generated"
GENERATOR, TRAINING, ROUND = "generator", "training", "round"
RATE, DECAY, LEAST = 3e-4, 0.98, 1e-4
FIRST_MOMENT, SECOND_MOMENT, ADAM_EPSILON = 0.9, 0.999, 1e-8
NORM_EPSILON, NORM_MOMENTUM = 1e-5, 0.1
STATISTICS = ("norm.mean", "norm.var")
OPTIONS = {
    "iterations": options.whole(1, 100_000, default=5),
    "rows": options.whole(2, 100_000, default=32),
    "teacher": options.number(0, 1000, default=1.0),
    "diversity": options.number(0, 1000, default=1.0),
    "alpha": options.number(0, 1000, default=10.0),
    "beta": options.number(0, 1000, default=10.0),
}
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
Weights = dict[str, Floats]


class Classifiers(NamedTuple):
    """The clients' classifiers: weights, float64[clients, classes, d], and biases, float64[clients, classes]."""

    weight: Floats
    bias: Floats


class Loss(NamedTuple):
    """The two terms of the generator's loss, and its gradient by the generated features, float64[rows, d]."""

    teacher: float
    diversity: float
    gradient: Floats


def label_weights(class_counts: ArrayLike) -> Floats:
    """The weight of each client's loss in each class, `n_k^c / sum_k n_k^c`, float64[classes, clients].

    Args:
        class_counts: Photos by client and class, int[clients, classes]; a class that nobody has weighs 0.

    Source: arXiv:2105.10056, Equation 5, as in the authors' code.
    """
    by_class = np.asarray(class_counts, np.float64).T
    shares: Floats = by_class / np.maximum(by_class.sum(axis=1, keepdims=True), 1)
    return shares


def qualified(class_counts: ArrayLike) -> NDArray[np.bool_]:
    """True for the classes of which some client has more than one photo, bool[classes]."""
    return np.asarray((np.asarray(class_counts) > 1).any(axis=0))


def generator_loss(
    features: Floats,
    noise: Floats,
    labels: Labels,
    weights: Floats,
    classifiers: Classifiers,
    teacher: float = 1.0,
    diversity: float = 1.0,
) -> Loss:
    """The generator's loss for generated features, `teacher + diversity`.

    Args:
        features: G(y_b), float64[rows, d].
        noise: eps_b, float64[rows, noise].
        labels: y_b, int64[rows].
        weights: q, as of `label_weights`.
        classifiers: Of the clients.
        teacher: alpha.
        diversity: eta; 0 leaves the term out.

    Source: arXiv:2105.10056, Equation 5, and the authors' diversity term.
    """
    rows = len(features)
    taught, gradient = 0.0, np.zeros_like(features)
    for k, (weight, bias) in enumerate(zip(*classifiers, strict=True)):
        logits = features @ weight.T + bias
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        share = teacher * weights[labels, k] / rows
        taught -= float(share @ log_p[np.arange(rows), labels])
        wrong = np.exp(log_p)
        wrong[np.arange(rows), labels] -= 1
        gradient += (share[:, None] * wrong) @ weight
    if not diversity:
        return Loss(taught, 0.0, gradient)
    apart = features[:, None] - features[None]
    spread = ((noise[:, None] - noise[None]) ** 2).mean(axis=2)
    term = diversity * float(np.exp(-(spread * np.abs(apart).mean(axis=2)).mean()))
    # Each pair counts twice, as (i, j) and as (j, i).
    gradient -= term * 2 * (spread[:, :, None] * np.sign(apart)).sum(axis=1) / (rows**2 * features.shape[1])
    return Loss(taught, term, gradient)


def fresh(generator: np.random.Generator, classes: int, noise: int, hidden: int, features: int) -> Weights:
    """A generator before its training: layers as torch makes them, BatchNorm without effect."""

    def layer(name: str, outputs: int, inputs: int) -> Weights:
        bound = 1 / np.sqrt(inputs)
        weight = generator.uniform(-bound, bound, (outputs, inputs))
        return {f"{name}.weight": weight, f"{name}.bias": generator.uniform(-bound, bound, outputs)}

    norm = {"norm.weight": np.ones(hidden), "norm.bias": np.zeros(hidden)}
    statistics = dict(zip(STATISTICS, (np.zeros(hidden), np.ones(hidden)), strict=True))
    return {**layer("hidden", hidden, noise + classes), **norm, **statistics, **layer("output", features, hidden)}


@dataclass(frozen=True)
class Pass:
    """A forward pass in training mode, with what its gradient needs."""

    weights: Weights
    inputs: Floats  # [rows, noise + classes]
    entered: Floats  # BatchNorm's input, [rows, hidden]
    normal: Floats  # that with mean 0 and variance 1
    scale: Floats  # 1 / standard deviation, [hidden]
    active: Floats  # after the ReLU
    features: Floats

    def gradients(self, by_features: Floats) -> Weights:
        """The gradient of a loss by the trained weights, given that by the features."""
        weights, rows = self.weights, len(self.inputs)
        by_active = (by_features @ weights["output.weight"]) * (self.active > 0)
        by_normal = by_active * weights["norm.weight"]
        centred = by_normal - by_normal.mean(axis=0) - self.normal * (by_normal * self.normal).sum(axis=0) / rows
        by_entered = self.scale * centred
        return {
            "hidden.weight": by_entered.T @ self.inputs,
            "hidden.bias": by_entered.sum(axis=0),
            "norm.weight": (by_active * self.normal).sum(axis=0),
            "norm.bias": by_active.sum(axis=0),
            "output.weight": by_features.T @ self.active,
            "output.bias": by_features.sum(axis=0),
        }

    def statistics(self) -> Weights:
        """BatchNorm's running statistics after the pass; their variance is divided by rows - 1."""
        found = (self.entered.mean(axis=0), self.entered.var(axis=0, ddof=1))
        kept = 1 - NORM_MOMENTUM
        return {n: kept * self.weights[n] + NORM_MOMENTUM * new for n, new in zip(STATISTICS, found, strict=True)}


def forward(weights: Weights, noise: Floats, labels: Labels) -> Pass:
    """G(y) in training mode: with the mean and variance of its batch."""
    classes = weights["hidden.weight"].shape[1] - noise.shape[1]
    inputs = np.concatenate([noise, np.eye(classes)[labels]], axis=1)
    entered = inputs @ weights["hidden.weight"].T + weights["hidden.bias"]
    scale = 1 / np.sqrt(entered.var(axis=0) + NORM_EPSILON)
    normal = (entered - entered.mean(axis=0)) * scale
    active = np.maximum(normal * weights["norm.weight"] + weights["norm.bias"], 0)
    features = active @ weights["output.weight"].T + weights["output.bias"]
    return Pass(weights, inputs, entered, normal, scale, active, features)


def folded(weights: Mapping[str, Array]) -> dict[str, Array]:
    """The generator in evaluation mode as two layers, float32: BatchNorm with running statistics is in the first."""
    mean, variance = (np.asarray(weights[name], np.float64) for name in STATISTICS)
    factor = weights["norm.weight"] / np.sqrt(variance + NORM_EPSILON)
    layers = {
        "hidden.weight": weights["hidden.weight"] * factor[:, None],
        "hidden.bias": (weights["hidden.bias"] - mean) * factor + weights["norm.bias"],
        "output.weight": weights["output.weight"],
        "output.bias": weights["output.bias"],
    }
    return {name: np.asarray(value, np.float32) for name, value in layers.items()}


def adam(weights: Weights, moments: Weights, gradients: Weights, rate: float, step: int) -> None:
    """One step of Adam, in place; `step` counts from 1.

    Source: Kingma, Ba, ICLR 2015, https://arxiv.org/abs/1412.6980, Algorithm 1.
    """
    for name, gradient in gradients.items():
        first, second = moments[f"first/{name}"], moments[f"second/{name}"]
        first += (1 - FIRST_MOMENT) * (gradient - first)
        second += (1 - SECOND_MOMENT) * (gradient**2 - second)
        spread = np.sqrt(second / (1 - SECOND_MOMENT**step)) + ADAM_EPSILON
        weights[name] = weights[name] - rate * first / (1 - FIRST_MOMENT**step) / spread


@dataclass(frozen=True, kw_only=True)
class _FedGen:
    """The options of the method, the sizes of its generator, and its three functions."""

    iterations: int
    rows: int
    teacher: float
    diversity: float
    alpha: float
    beta: float
    classes: int
    noise: int
    hidden: int
    features: int
    weight: str  # the classifier's tensors
    bias: str

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The initial model and a generator that has not been trained."""
        weights = fresh(tools.generator, self.classes, self.noise, self.hidden, self.features)
        trained = [name for name in weights if name not in STATISTICS]
        moments = {
            f"{moment}/{name}": np.zeros_like(weights[name]) for moment in ("first", "second") for name in trained
        }
        training = {**weights, **moments, "qualified": np.zeros(self.classes), "steps": np.zeros(1)}
        return State(shared={GLOBAL: tools.initial, TRAINING: _rounded(training), ROUND: 0})

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The model and, once there is one, the generator; for evaluators the model."""
        names = (GLOBAL,) if client is None else (GLOBAL, GENERATOR)
        return {name: state.shared[name] for name in names if name in state.shared}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The generator after its training, then FedAvg's mean."""
        averaged = with_mean(phase, state, updates, tools)
        ordered = with_photos(updates)
        number = state.shared[ROUND] + 1
        training = self._trained(state, ordered, tools.generator)
        known = training["qualified"]
        if not known.any():
            return averaged.with_shared(**{ROUND: number})
        generator = {
            **folded(training),
            "classes": known,
            "alpha": np.float32(max(LEAST, self.alpha * DECAY**number)).reshape(()),
            "beta": np.float32(max(LEAST, self.beta * DECAY**number)).reshape(()),
        }
        return averaged.with_shared(**{TRAINING: training, GENERATOR: generator, ROUND: number})

    def _trained(self, state: State, updates: Sequence[Update], generator: np.random.Generator) -> dict[str, Array]:
        """The generator, with Adam's moments, after the training of a round."""
        training = {name: np.array(value, np.float64) for name, value in state.shared[TRAINING].items()}
        counts = class_counts_of(updates)
        labels = np.flatnonzero(qualified(counts))
        if len(labels):
            training["qualified"][labels] = 1
            share, rate = label_weights(counts), RATE * DECAY ** state.shared[ROUND]
            sets = [update.values[WEIGHTS] for update in updates]
            weight, bias = (np.array([each[name] for each in sets], np.float64) for name in (self.weight, self.bias))
            models = Classifiers(weight, bias)
            for _ in range(self.iterations):
                noise, drawn = generator.random((self.rows, self.noise)), generator.choice(labels, self.rows)
                now = forward(training, noise, drawn)
                loss = generator_loss(now.features, noise, drawn, share, models, self.teacher, self.diversity)
                training["steps"] += 1
                training |= now.statistics()
                adam(training, training, now.gradients(loss.gradient), rate, int(training["steps"][0]))
        return _rounded(training)


def for_task(task: TaskPlan) -> Method:
    """FedGen for a task.

    Raises:
        SettingsError: The bundles have another objective, cannot be averaged, or have a classifier that is not one FC
            layer with a bias.
    """
    chosen = task.options
    bundles.need_objective(task, [OBJECTIVE])
    bundles.need_equal(task)
    manifest = task.ordinary[0]
    classes = len(manifest.class_names)
    tables = slots.references(program(manifest, "step"))[GENERATOR]
    shapes = {slots.tensor_of(slot): tuple(slot.shape) for slot in tables}
    hidden, inputs = shapes["hidden.weight"]
    features = shapes["output.bias"][0]
    found = {tuple(each.shape): each.name for each in select(manifest.tensors, bundles.CLASSIFIER)}
    if found.keys() != {(classes, features), (classes,)}:
        raise SettingsError("manifests[0]", "another classifier", "one of an FC layer with a bias for fedgen")
    method = _FedGen(
        **chosen,
        classes=classes,
        noise=inputs - classes,
        hidden=hidden,
        features=features,
        weight=found[classes, features],
        bias=found[classes,],
    )
    bindings = [
        bind(GENERATOR, source(download=GENERATOR)),
        bind(slots.LABEL_COUNTS, pb.Source(label_counts=True)),
    ]
    local_plan = plan(
        assemble(START, rule(source(download=GLOBAL))),
        train(task.settings, hyper=bundles.hyper_of(task, "step"), bindings=bindings),
        uploads=[upload(task.settings, base=GLOBAL)],
        statistics=[CLASS_COUNTS],
    )
    phases = single_phase(task, local_plan)
    return Method(phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate)


def _rounded(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors as a state keeps them, float32."""
    return {name: np.asarray(value, np.float32) for name, value in tensors.items()}
