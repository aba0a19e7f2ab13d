"""FeSEM: each client trains the nearest of several centres, and each centre is the mean of its clients' models.

Paper: Long et al., World Wide Web 2023, https://arxiv.org/abs/2108.08647, Algorithm 1.

    paper       here                       meaning
    K           options.clusters           number of centres
    W~^(k)      shared["centre-<k>"]       centre k
    r_i^(k)     clients[id]["cluster"]     the centre of client i
    W_i         clients[id]["model"]       last upload of client i, the uploaded blob itself
    mu          hyper-parameter mu         pull towards the centre, objective `proximal`; 0: plain local training
    n_k         num_examples               photos that a client trained on in this round

Round: a client trains its centre; M step: a centre is the mean of the clients of the round that trained it, weighted
by n_k; E step: every client with an upload goes to the nearest centre, over all float tensors, ties to the lowest.
The first assignment is random and balanced; all centres begin as the initial model. A client that enrols later begins
at the centre that its id, a hash, gives modulo K: whoever comes or goes during a round, it is the centre that it
trains. A client that never uploaded keeps its first assignment, and a centre without clients stays. A forgotten
client's upload is in no step from then on.

Variant `paper` has the printed order: E with the old centres, then M with the new assignment, the plain mean of the
last uploads of all its clients, then training.

Deviations: by default the order and weights of FedConcat's code, whose results are in that paper's tables. Its pull has
no gradient; mu = 0 gives the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.centres import centre, centres_of, mean_set, nearest, squared_distances
from fedlens_server.methods.arithmetic.linear_combination import with_photos
from fedlens_server.methods.fedavg import single_phase, whole_model_plan
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import WEIGHTS
from fedlens_server.planning.method import (
    OWN_CLUSTER,
    Method,
    Phase,
    State,
    TaskPlan,
    TensorSet,
    Tools,
    Update,
)

OBJECTIVE = "proximal"
CENTRE = "centre"  # download
MODEL = "model"
REFERENCE, PAPER = "reference", "paper"
OPTIONS = {
    "clusters": options.whole(1, 64, default=5),
    "variant": options.choice(REFERENCE, PAPER),
}


def balanced(clients: Sequence[bytes], clusters: int, generator: np.random.Generator) -> dict[bytes, int]:
    """A random assignment, in which the numbers of clients of two centres differ by at most 1."""
    order = generator.permutation(len(clients)).tolist()
    return {clients[row]: i % clusters for i, row in enumerate(order)}


@dataclass(frozen=True, kw_only=True)
class FeSEM:
    """The options of the method, and its three functions."""

    clusters: int
    variant: str = REFERENCE

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The initial model as every centre, and a random balanced assignment."""
        places = balanced(tools.population, self.clusters, tools.generator)
        return State(
            shared={centre(k): tools.initial for k in range(self.clusters)},
            clients={client: {OWN_CLUSTER: place} for client, place in places.items()},
        )

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The client's centre."""
        return None if client is None else {CENTRE: state.shared[centre(self.place(state, client))]}

    def place(self, state: State, client: bytes) -> int:
        """The centre of a client; of one without an entry by its id alone, so that it is the same all round."""
        return int(state.of(client).get(OWN_CLUSTER, int.from_bytes(client) % self.clusters))

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The centres and the clients' places."""
        trained = with_photos(updates)
        places = {update.client: self.place(state, update.client) for update in trained}
        entries = {u.client: {OWN_CLUSTER: places[u.client], MODEL: u.values[WEIGHTS]} for u in trained}
        state = state.with_clients(entries)
        if self.variant == PAPER:
            state = self._assigned(state)
            members = [(own[OWN_CLUSTER], own[MODEL], 1) for _, own in sorted(state.clients.items()) if MODEL in own]
            return self._averaged(state, members)
        members = [(places[u.client], u.values[WEIGHTS], u.num_examples) for u in trained]
        return self._assigned(self._averaged(state, members))

    def _averaged(self, state: State, members: Sequence[tuple[int, TensorSet, int]]) -> State:
        """The state with each centre the weighted mean of its members: the M step."""
        new = {}
        for k in range(self.clusters):
            models = [(model, weight) for place, model, weight in members if place == k]
            before = state.shared[centre(k)]
            new[centre(k)] = mean_set([model for model, _ in models], [weight for _, weight in models], before)
        return state.with_shared(**new)

    def _assigned(self, state: State) -> State:
        """The state with each client that has an upload at the nearest centre: the E step."""
        centres = list(centres_of(state, self.clusters).values())
        like = {name: centres[0][name] for name in centres[0]}
        places = {
            client: {OWN_CLUSTER: nearest(squared_distances(own[MODEL], centres, like))}
            for client, own in sorted(state.clients.items())
            if MODEL in own
        }
        return state.with_clients(places)


def local_plan(task: TaskPlan) -> pb.LocalPlan:
    """The local plan: FedAvg's from the client's centre, towards which it is pulled."""
    return whole_model_plan(task, CENTRE, hyper=bundles.hyper_of(task, "step"))


def for_task(task: TaskPlan) -> Method:
    """FeSEM for a task; there is no global model.

    Raises:
        SettingsError: The bundles have another objective or cannot be averaged.
    """
    chosen = task.options
    bundles.need_objective(task, [OBJECTIVE])
    bundles.need_equal(task)
    method = FeSEM(clusters=chosen["clusters"], variant=chosen["variant"])
    phases = single_phase(task, local_plan(task))
    return Method(
        phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate, per_client=True
    )
