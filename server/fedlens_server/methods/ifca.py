"""IFCA: each client trains the one of several centres that has the least loss on its photos.

Paper: Ghosh et al., NeurIPS 2020, https://arxiv.org/abs/2006.04088, Algorithm 1.

    paper       here                      meaning
    k           options.clusters          number of centres; default: the candidates of the bundle
    theta_j     shared["centre-<j>"]      centre j
    j^          values["choice"]          1 for the client's centre, 0 for all others, float32[K]
    theta~_i    values["weights"]         model of client i after training its centre
    -           sent["centre-<j>"]        theta_j as client i decoded it; the codec of downloads may round
    M_t         updates                   clients whose updates arrived
    gamma       options.server_rate       step of gradient averaging

Client: program `compare` sums the losses of all centres over the train photos, `least` chooses, ties to the lowest; a
loss that is not finite is never chosen. Server, model averaging (option II): a centre is the mean of the clients that
chose it, weighted by their numbers of examples; nobody: it stays. Gradient averaging (option I) moves a centre by
`-(gamma / |M_t|) sum_i g_i` over those that chose it; the divisor is the number of all clients of the round. With
`share_extractor` the extractor is averaged over all, and only classifiers form clusters.

Centre 0 begins as the initial model; the others as that model with the entries of each tensor of two or more dimensions
permuted, because equal centres would send all clients to centre 0.

Deviation: the gradient of option I is the whole change of the weights, theta_j - theta~_i, with theta_j as the client
had it; with `steps` 1 and a batch that holds all photos it is the paper's, times the learning rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.centres import (
    centre,
    centres_of,
    lazily,
    mean_set,
    permuted,
    weighted_mean,
)
from fedlens_server.methods.arithmetic.linear_combination import (
    Tensor,
    linear_combination,
    maximum,
    with_photos,
)
from fedlens_server.methods.fedavg import single_phase
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import (
    START,
    WEIGHTS,
    bind,
    derive,
    keep,
    plan,
    rule,
    source,
    train,
    upload,
    upload_table,
)
from fedlens_server.planning.method import Method, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError

LOSSES, CHOICE = "losses", "choice"
OWN_MODEL = "model"  # client state
MODELS, GRADIENTS = "models", "gradients"
OPTIONS = {
    "clusters": options.whole(1, 64),
    "averaging": options.choice(MODELS, GRADIENTS),
    "server_rate": options.number(1e-6, 1000, default=1.0),
    "share_extractor": options.flag(default=False),
}


def chosen_centre(scores: Array) -> int:
    """The centre that a client chose, of its one-hot answer, float[K]."""
    return int(np.argmax(scores))


def gradient_step(
    tensor: Array, trained: Sequence[Tensor], sent: Sequence[Tensor], rate: float, clients: int
) -> NDArray[np.float32]:
    """One tensor of a centre after gradient averaging, `theta_j - (gamma / |M|) sum_i g_i`, float32.

    Args:
        tensor: theta_j before the round, float.
        trained: theta~_i of the clients that chose the centre; `g_i` is what each started from less this.
        sent: The theta_j that each of them started from.
        rate: gamma.
        clients: |M|, all clients of the round.

    Source: arXiv:2006.04088, Algorithm 1, option I.
    """
    step = rate / clients
    weights = np.concatenate([[1.0], np.full(len(trained), step), np.full(len(sent), -step)])
    return linear_combination([tensor, *trained, *sent], weights)


@dataclass(frozen=True, kw_only=True)
class Ifca:
    """The options of the method, and its three functions."""

    clusters: int
    averaging: str = MODELS
    server_rate: float = 1.0
    shared: frozenset[str] = frozenset()  # tensors that are averaged over all clients

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """Different centres; tensors that are shared begin equal."""
        found = permuted(tools.initial, self.clusters, tools.generator)
        return State(
            shared={
                name: {key: (tools.initial if key in self.shared else model)[key] for key in model}
                for name, model in found.items()
            }
        )

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """All centres."""
        return None if client is None else centres_of(state, self.clusters)

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """Each centre by the clients that chose it."""
        trained = with_photos(updates)
        choices = [chosen_centre(update.values[CHOICE]["score"]) for update in trained]
        models, counts = [u.values[WEIGHTS] for u in trained], [float(u.num_examples) for u in trained]
        new = {}
        for k in range(self.clusters):
            before = state.shared[centre(k)]
            members = [i for i, choice in enumerate(choices) if choice == k]
            theirs = [models[i] for i in members]
            if self.averaging == MODELS:
                new[centre(k)] = mean_set(theirs, [counts[i] for i in members], before)
            else:
                sent = [trained[i].sent[centre(k)] for i in members]
                new[centre(k)] = self._moved(before, theirs, sent, len(trained))
        if self.shared:
            like = state.shared[centre(0)]
            common = {name: weighted_mean(lazily(models, name, like[name]), counts) for name in sorted(self.shared)}
            new = {name: {**model, **common} for name, model in new.items()}
        return state.with_shared(**new)

    def _moved(
        self, before: TensorSet, models: Sequence[TensorSet], sent: Sequence[TensorSet], clients: int
    ) -> TensorSet:
        if not models:
            return before
        found = {}
        for name in before:
            tensor, theirs = before[name], lazily(models, name, before[name])
            if tensor.dtype.kind == "f":
                found[name] = gradient_step(tensor, theirs, lazily(sent, name, tensor), self.server_rate, clients)
            else:
                found[name] = maximum(theirs, [1] * len(theirs))
        return found


def comparison(clusters: int) -> tuple[list[pb.Binding], pb.Instruction]:
    """The centres as candidates, and the instruction that sums their losses over the train photos."""
    models = [bind(f"candidate-{k}", source(download=centre(k))) for k in range(clusters)]
    return models, derive(LOSSES, "compare", *models, rows=pb.ROWS_TRAIN)


def local_plan(task: TaskPlan, clusters: int) -> pb.LocalPlan:
    """The local plan: compare the centres, train the best one, upload it and the choice."""
    models, losses = comparison(clusters)
    return plan(
        losses,
        derive(CHOICE, "least", bind("losses", source(value=LOSSES))),
        derive(START, "blend", bind("scores", source(value=CHOICE)), *models),
        train(task.settings, hyper=bundles.hyper_of(task, "step")),
        keeps=[keep(OWN_MODEL)],
        uploads=[upload(task.settings), upload_table(CHOICE, CHOICE)],
    )


def model_rules() -> tuple[pb.Rule, ...]:
    """The model to predict with: the client's last one, else the first centre."""
    return (rule(source(state=OWN_MODEL, download=centre(0))),)


def need_comparison(task: TaskPlan, scoring: str) -> None:
    """Require programs that compare centres, equal bundles, and uploads that are not differences.

    Raises:
        SettingsError: A bundle lacks a program or differs, or uploads are to be differences.
    """
    if task.settings.difference:
        allowed = f"false for {task.settings.method}: clients start from what they choose, which is no download"
        raise SettingsError("difference", "true", allowed)
    bundles.need_equal(task)
    bundles.need_programs(task, ["compare", scoring, "blend"], "--candidates K")


def for_task(task: TaskPlan) -> Method:
    """IFCA for a task; there is no global model.

    Raises:
        SettingsError: Uploads are to be differences, or the bundles differ, have an objective with references, lack a
            program or compare fewer models.
    """
    chosen = task.options
    bundles.need_no_references(task)
    need_comparison(task, "least")
    if chosen["averaging"] == MODELS:
        options.need_default(chosen, OPTIONS, ["server_rate"], f'options.averaging is "{MODELS}"')
    clusters = bundles.room(task, "clusters", chosen["clusters"])
    if chosen["share_extractor"]:
        bundles.need_tensors(task, bundles.EXTRACTOR, "layers before the classifier")
    method = Ifca(
        clusters=clusters,
        averaging=chosen["averaging"],
        server_rate=float(chosen["server_rate"]),
        shared=bundles.names(task, bundles.EXTRACTOR) if chosen["share_extractor"] else frozenset(),
    )
    phases = single_phase(task, local_plan(task, clusters), model_rules())
    return Method(phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate)
