"""FedFomo: each client gets models of others and starts from a sum of those that fit its own photos better.

Paper: Zhang et al., ICLR 2021, https://arxiv.org/abs/2012.08565, Equations 4 and 5, Algorithm 1.

    paper      here                      meaning
    theta_i    client state `model`      client i's own model, the base of the comparison
    theta_n    downloads `other-<j>`     models of other clients, as last uploaded; entry `model` of each client
    M          options.others            most models that a client gets
    w_n        values["gain"]["score"]   (L(theta_i) - L(theta_n)) / |theta_n - theta_i|, on validation photos
    P          `preferences`             sums of w_n by client and other client, float[N, N]; the identity at first
    epsilon    options.random            probability with which a client gets random models instead

The client derives w_n and its next start, the sum of the models with w_n > 0 in proportion to w_n, else its own model,
by the bundle's programs `compare`, `gain` and `blend`. It never trains on validation photos. The server adds w_n to P
and sends i the M participants of the last round with the greatest P_in; ties: the lowest id. A client that enrols after
that round prefers nobody yet, so it gets the M with the lowest ids.

**It gives the models of clients to other clients.** A task must therefore say `share_models = true`.

Deviations: the base is the client's own model of its last round (one of the choices in the authors' code), and is no
candidate. Epsilon falls by 0.05 a round, as in that code. The mean over clients of a sub-federation is no candidate.

State: the arrays `preferences` and `others`, the rows of clients whose models each client gets, -1 for none, the last
row for all who have no slot yet; of each client its `slot` in both and, if it took part in the last round, `model`, the
uploaded blob itself. Who was forgotten is in no download from then on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Array
from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.arithmetic.client_matrix import SLOT, Matrix, grown, size_of, slots_of, with_new
from fedlens_server.methods.arithmetic.linear_combination import with_photos
from fedlens_server.methods.fedavg import single_phase
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
from fedlens_server.planning.method import Method, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.planning.task_settings import SettingsError

MODEL = "model"  # client state; also an entry of each client of the last round
PREFERENCES, OTHERS, ROUND = "preferences", "others", "round"
OWN, LOSSES, GAIN = "own", "losses", "gain"
LESS_RANDOM = 0.05
MOST = 1e30  # of a preference: float32 holds it, whatever gains a client claims
NOBODY = -1
NEWCOMER = -1  # row of `others` for clients without a slot: the last one
OPTIONS = {
    "share_models": options.flag(default=False),
    "others": options.whole(1, 64),
    "random": options.number(0, 1, default=0.0),
    "validation_percent": options.whole(1, 50, default=20),
}


def preferred(preferences: Array, candidates: Sequence[int], most: int) -> list[int]:
    """The candidates with the greatest preferences, at most so many; ties: the first ones.

    Args:
        preferences: Of one client, by the row of each other client, float[N].
        candidates: Rows of the clients that may be chosen, ascending by client id.
        most: Largest number M.

    Source: arXiv:2012.08565, Section 3, "sampling".
    """
    return sorted(candidates, key=lambda row: -float(preferences[row]))[:most]


def with_gains(preferences: Matrix, row: int, others: Sequence[int], gains: Array) -> Matrix:
    """The preferences after a client's answer: each gain added for the client whose model it is of.

    Args:
        preferences: float64[N, N].
        row: Of the client.
        others: The row of the client whose model each of its downloads was; `NOBODY`: there was none.
        gains: float[K], K at least as many; one that is not finite counts 0, and sums stay within `MOST`.
    """
    result = preferences.copy()
    for other, gain in zip(others, gains, strict=False):
        if other != NOBODY and np.isfinite(gain):
            result[row, other] = np.clip(result[row, other] + float(gain), -MOST, MOST)
    return result


@dataclass(frozen=True, kw_only=True)
class _FedFomo:
    """The options of the method, and its three functions."""

    others: int  # M
    random: float  # epsilon of the first round

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """Nothing: every client starts from the bundle's initial weights."""
        return State(shared={ROUND: 0})

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The models that the server chose for the client at the end of the last round."""
        if client is None:
            return None
        slots = slots_of(state)
        models = {slots[each]: own[MODEL] for each, own in state.clients.items() if MODEL in own}
        return {name: models[row] for name, row in self._sent(state, slots, client).items() if row in models}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The clients' last models, their preferences, and whose models each gets next."""
        trained = with_photos(updates)
        known, number = slots_of(state), state.shared[ROUND]
        slots = with_new(known, [*tools.population, *(update.client for update in trained)])
        preferences = grown(state.shared.get(PREFERENCES), known, np.eye(size_of(slots)))
        for update in trained:
            rows = self._sent(state, known, update.client)
            sent = [rows.get(_other(j), NOBODY) for j in range(self.others)]
            preferences = with_gains(preferences, slots[update.client], sent, update.values[GAIN]["score"])
        taking_part = [slots[update.client] for update in trained]
        chance = max(0.0, self.random - LESS_RANDOM * number)
        others = np.full((size_of(slots) + 1, self.others), NOBODY, np.int64)
        liking = [(row, preferences[row]) for _, row in sorted(slots.items())]
        for row, own in [*liking, (NEWCOMER, np.zeros(size_of(slots)))]:
            candidates = [each for each in taking_part if each != row]
            chosen = preferred(own, candidates, self.others)
            if chance > 0 and tools.generator.random() < chance:
                chosen = tools.generator.permutation(candidates)[: self.others].tolist()
            others[row, : len(chosen)] = chosen
        models = {update.client: {MODEL: update.values[WEIGHTS]} for update in trained}
        return State(
            shared={PREFERENCES: preferences.astype(np.float32), OTHERS: others, ROUND: number + 1},
            clients={client: {SLOT: row, **models.get(client, {})} for client, row in slots.items()},
        )

    def _sent(self, state: State, slots: Mapping[bytes, int], client: bytes) -> dict[str, int]:
        """The row of the client whose model each download of a client is; rows of forgotten clients are left out."""
        if OTHERS not in state.shared:
            return {}
        chosen: NDArray[np.int64] = state.shared[OTHERS][slots.get(client, NEWCOMER)]
        there = set(slots.values())
        return {_other(j): int(row) for j, row in enumerate(chosen) if int(row) in there}


def local_plan(task: TaskPlan, others: int, validation_percent: int) -> pb.LocalPlan:
    """The local plan: compare own and other models on validation photos, blend, train, upload weights and gains."""
    own = bind("base", source(value=OWN))
    models = [bind(f"candidate-{j}", source(download=_other(j))) for j in range(others)]
    return plan(
        assemble(OWN, rule(source(state=MODEL, download=INITIAL))),
        derive(LOSSES, "compare", own, *models, rows=pb.ROWS_VALIDATION),
        derive(GAIN, "gain", bind("losses", source(value=LOSSES)), own, *models),
        derive(START, "blend", bind("scores", source(value=GAIN)), own, *models),
        train(task.settings, hyper=bundles.hyper_of(task, "step")),
        keeps=[keep(MODEL)],
        uploads=[upload(task.settings), upload_table(GAIN, GAIN)],
        validation_percent=validation_percent,
    )


def for_task(task: TaskPlan) -> Method:
    """FedFomo for a task; there is no global model.

    Raises:
        SettingsError: The task does not allow that clients get others' models; its bundles differ, lack a program or
            compare fewer models; or uploads are to be differences, which have no base here.
    """
    settings = task.settings
    chosen = task.options
    if not chosen["share_models"]:
        allowed = "true for fedfomo, which gives each client's model to other clients"
        raise SettingsError("options.share_models", "false", allowed)
    if settings.difference:
        raise SettingsError("difference", "true", "false for fedfomo: clients start from sums that the server has not")
    bundles.need_equal(task)
    bundles.need_no_references(task)
    bundles.need_programs(task, ["compare", GAIN, "blend"], "--candidates K")
    others = bundles.room(task, "others", chosen["others"])
    method = _FedFomo(others=others, random=chosen["random"])
    phases = single_phase(task, local_plan(task, others, chosen["validation_percent"]))
    return Method(
        phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate, per_client=True
    )


def _other(j: int) -> str:
    """The download in place j."""
    return f"other-{j}"
