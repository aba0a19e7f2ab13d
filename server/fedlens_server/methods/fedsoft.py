"""FedSoft: every client trains one model that is pulled towards several centres, by how well each fits its photos.

Paper: Ruan and Joe-Wong, AAAI 2022, https://arxiv.org/abs/2112.06053, Algorithm 1.

    paper      here                      meaning
    S          options.clusters          number of centres; default: the candidates of the bundle
    c_s        shared["centre-<s>"]      centre s
    u_ks       values["importance"]      share of client k's photos on which centre s has the least loss, float32[S]
    sigma      hyper-parameter sigma     takes the place of a share of 0; the others are not scaled down for it
    v_sk       `client_shares`           weight of client k in centre s: u_ks n_k / sum_k u_ks n_k
    w_k        client state `model`      model of client k, from which it continues
    lambda     hyper-parameter mu        strength of the pull; objective `proximal`

The pull `lambda/2 sum_s u_ks |w - c_s|^2` has the gradient of one pull of strength `lambda sum_s u_ks` towards the mean
of the centres by u, so that it needs one reference; mu is lambda, as the u add up to 1 but for the sigmas.
With `start = "best"`, FedConcat's reading, a client starts each round from the centre in which its last answer had the
greatest share; the lowest at first.

Deviations: one cohort a round for all centres, each the mean of the clients' models by v, in place of a draw of clients
for each centre with these probabilities. u is estimated in every round. Centres begin different, as in IFCA.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.centres import centre, centres_of, mean_set, permuted
from fedlens_server.methods.arithmetic.linear_combination import with_photos
from fedlens_server.methods.fedavg import single_phase
from fedlens_server.methods.ifca import LOSSES, OWN_MODEL, comparison, model_rules, need_comparison
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import (
    START,
    WEIGHTS,
    assemble,
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

OBJECTIVE = "proximal"
IMPORTANCE, MEAN = "importance", "mean"
LEAST = 1e-12
MOST_SUM = 1.001  # of an honest client's shares, with room for float32
BEST = "best"  # download and option; also the entry of each client: the number of that centre
OWN = "own"
OPTIONS = {
    "clusters": options.whole(1, 64),
    "start": options.choice(OWN, BEST),
}


def client_shares(importance: ArrayLike, counts: Sequence[int]) -> NDArray[np.float64]:
    """The weight of each client in each centre, `v_ks = u_ks n_k / sum_k u_ks n_k`, float64[clients, S].

    Args:
        importance: u, float[clients, S], above 0.
        counts: n_k of each client, not all 0.

    Source: arXiv:2112.06053, Section 3, Equation 6.
    """
    weights = np.asarray(importance, np.float64) * np.asarray(counts, np.float64)[:, None]
    result: NDArray[np.float64] = weights / weights.sum(axis=0)
    return result


@dataclass(frozen=True, kw_only=True)
class FedSoft:
    """The options of the method, and its three functions."""

    clusters: int
    start: str = OWN

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """Different centres."""
        return State(shared=permuted(tools.initial, self.clusters, tools.generator))

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """All centres; with `best` also the one that the client starts from."""
        if client is None:
            return None
        found = centres_of(state, self.clusters)
        return found | ({BEST: found[centre(state.of(client).get(BEST, 0))]} if self.start == BEST else {})

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """Each centre is the mean of all models, by importance and numbers of examples."""
        trained = with_photos(updates)
        # Shares are at most 1, and add up to 1; others would make a single client's model the centre, or every centre.
        importance = np.clip([update.values[IMPORTANCE]["score"] for update in trained], LEAST, 1.0).astype(np.float64)
        sums = importance.sum(axis=1, keepdims=True)
        importance = np.where(sums > MOST_SUM, importance / sums, importance)
        shares = client_shares(importance, [update.num_examples for update in trained])
        models = [update.values[WEIGHTS] for update in trained]
        new = {
            centre(k): mean_set(models, shares[:, k].tolist(), state.shared[centre(k)]) for k in range(self.clusters)
        }
        if self.start == BEST:
            best = importance[:, : self.clusters].argmax(axis=1).tolist()
            state = state.with_clients({u.client: {BEST: k} for u, k in zip(trained, best, strict=True)})
        return state.with_shared(**new)


def local_plan(task: TaskPlan, clusters: int, start: str) -> pb.LocalPlan:
    """The local plan: weigh the centres, train with the pull to their mean, upload model and weights."""
    models, losses = comparison(clusters)
    mean = source(value=MEAN)
    return plan(
        losses,
        derive(
            IMPORTANCE,
            "importance",
            bind("losses", source(value=LOSSES)),
            hyper=bundles.hyper_of(task, "importance"),
        ),
        derive(MEAN, "blend", bind("scores", source(value=IMPORTANCE)), *models),
        assemble(START, rule(source(download=BEST) if start == BEST else source(state=OWN_MODEL, value=MEAN))),
        train(task.settings, hyper=bundles.hyper_of(task, "step"), bindings=[bind(GLOBAL, mean)]),
        keeps=[keep(OWN_MODEL)],
        uploads=[upload(task.settings), upload_table(IMPORTANCE, IMPORTANCE)],
    )


def for_task(task: TaskPlan) -> Method:
    """FedSoft for a task; there is no global model.

    Raises:
        SettingsError: Uploads are to be differences, or the bundles have another objective, differ, lack a program or
            compare fewer models.
    """
    chosen = task.options
    bundles.need_objective(task, [OBJECTIVE])
    need_comparison(task, "importance")
    method = FedSoft(clusters=bundles.room(task, "clusters", chosen["clusters"]), start=chosen["start"])
    phases = single_phase(task, local_plan(task, method.clusters, method.start), model_rules())
    return Method(
        phases=phases,
        begin=method.begin,
        download=method.download,
        aggregate=method.aggregate,
        per_client=method.start == BEST,
    )
