"""FedDyn: each client's loss is corrected by a dual, so that the minima of clients and server agree.

Paper: Acar et al., ICLR 2021, https://arxiv.org/abs/2111.04263, Algorithm 1.

    paper           here                        meaning
    theta^{t-1}     shared[GLOBAL]              model at the start of the round; the reference `global`
    theta_k^t       values["weights"]           model of client k after its local training
    grad L_k        clients[id]["dual"]         client k's dual, 0 at first; the reference `dual`; objective `dynamic`
    h^t             shared["duals"] / m         mean of all duals
    m               clients_of_mean             all clients of the task
    P_t             updates                     clients whose updates arrived
    alpha           hyper-parameter alpha       strength of the pull, > 0; the same for the clients of all bundles

Client: minimise `L_k(theta) - <grad L_k, theta> + alpha/2 |theta - theta^{t-1}|^2`; then
`grad L_k := grad L_k - alpha (theta_k^t - theta^{t-1})`. Server: `h := h - alpha/m sum_k (theta_k^t - theta^{t-1})`;
`theta^t := mean_k theta_k^t - h / alpha`. The mean over the clients of a round is plain.

The server computes the duals from what it has anyway and sends each client its own; with `dual = "client"` program
`dual_update` does so on the device, and nothing more is downloaded.

Deviations: BatchNorm's statistics are the plain mean without correction, and integers the maximum. A client without
photos in the round is left out. A forgotten client's dual leaves h; with duals on the clients the server cannot take it
out. The authors' code scales alpha by the numbers of photos and clips gradients; here neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.arithmetic.client_sums import COUNTED, Computed, clients_of_mean, current_sum
from fedlens_server.methods.arithmetic.linear_combination import (
    LazyTensor,
    Tensor,
    linear_combination,
    uploaded,
    with_photos,
)
from fedlens_server.methods.fedavg import average_set, single_phase, whole_model_plan
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import (
    START,
    TRAINED,
    WEIGHTS,
    bind,
    derive,
    keep,
    source,
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

OBJECTIVE = "dynamic"
DUAL = "dual"  # entry of each client, download, reference and client state
DUALS = "duals"
SERVER, CLIENT = "server", "client"
OPTIONS = {DUAL: options.choice(SERVER, CLIENT)}


def with_changes(duals: Array, changes: Sequence[Tensor], sent: Sequence[Tensor], alpha: float) -> Array:
    """The sum of all duals after a round, `H - alpha sum_k (theta_k - w)`, of one tensor, float32.

    Args:
        duals: H before the round, float; `h = H / m`.
        changes: theta_k of the clients of the round.
        sent: The w that each of them started from.
        alpha: Strength of the pull.

    Source: arXiv:2111.04263, Algorithm 1, the server's h.
    """
    weights = np.concatenate([[1.0], np.full(len(changes), -alpha), np.full(len(sent), alpha)])
    return linear_combination([duals, *changes, *sent], weights)


def corrected(mean: Array, duals: Array, m: int, alpha: float) -> Array:
    """The next model, `mean_k theta_k - h / alpha` with `h = H / m`, of one tensor, float32.

    Source: arXiv:2111.04263, Algorithm 1, the server's theta.
    """
    return linear_combination([mean, duals], np.array([1.0, -1.0 / (m * alpha)]))


def next_dual(dual: Array, trained: Array, sent: Array, alpha: float) -> Array:
    """A client's dual after a round, `g_k - alpha (theta_k - w)`, in float32 as on the device.

    Source: arXiv:2111.04263, Algorithm 1, the client's last line.
    """
    result: Array = dual - np.float32(alpha) * (trained - sent)
    return result


@dataclass(frozen=True, kw_only=True)
class _FedDyn:
    """The options of the method, and its three functions."""

    alpha: float
    on_server: bool
    trained: tuple[str, ...]  # tensors that have a dual

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The initial model and no duals."""
        nothing = {name: np.zeros_like(tools.initial[name]) for name in self.trained}
        return State(shared={GLOBAL: tools.initial, DUALS: nothing, COUNTED: 0})

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The global model; of a client that has been in a round its dual too."""
        own = {} if client is None else state.of(client)
        return {GLOBAL: state.shared[GLOBAL]} | ({DUAL: own[DUAL]} if DUAL in own else {})

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The duals, their sum, and the corrected plain mean."""
        taken = [replace(update, num_examples=1) for update in with_photos(updates)]
        before, duals = state.shared[GLOBAL], dict(current_sum(state, DUALS, DUAL))
        new = average_set(taken, before)
        own = {update.client: {DUAL: self._dual(state, update)} for update in taken} if self.on_server else {}
        after = state.with_clients(own)
        m = clients_of_mean(after, DUAL, {*tools.population, *(update.client for update in taken)})
        for name in self.trained:
            like = before[name]
            sent = [LazyTensor(update.sent[GLOBAL], name, like.shape, like.dtype) for update in taken]
            duals[name] = with_changes(duals[name], uploaded(taken, name, like), sent, self.alpha)
            new[name] = corrected(new[name], duals[name], m, self.alpha)
        counted = sum(DUAL in entries for entries in after.clients.values())
        return after.with_shared(**{GLOBAL: new, DUALS: duals, COUNTED: counted})

    def _dual(self, state: State, update: Update) -> TensorSet:
        before, sent, weights = state.of(update.client).get(DUAL), update.sent[GLOBAL], update.values[WEIGHTS]

        def computed(name: str) -> Array:
            start = sent[name]
            return next_dual(np.zeros_like(start) if before is None else before[name], weights[name], start, self.alpha)

        return Computed(self.trained, computed)


def local_plan(task: TaskPlan, alpha: float, *, on_server: bool) -> pb.LocalPlan:
    """The local plan: FedAvg's, with the client's dual from the server or from its own state."""
    start = source(value=START)
    dual = source(download=DUAL) if on_server else source(state=DUAL)
    found = whole_model_plan(
        task,
        bindings=[bind(GLOBAL, start), bind(DUAL, dual)],
        hyper={**bundles.hyper_of(task, "step"), "alpha": alpha},
        keeps=[] if on_server else [keep(DUAL, DUAL)],
    )
    if on_server:
        return found
    update = derive(
        DUAL,
        "dual_update",
        bind("start", start),
        bind("trained", source(value=TRAINED)),
        bind(DUAL, dual),
        hyper={**bundles.hyper_of(task, "dual_update"), "alpha": alpha},
    )
    found.instructions.append(update)
    return found


def for_task(task: TaskPlan) -> Method:
    """FedDyn for a task.

    Raises:
        SettingsError: `alpha` is 0, or the bundles have another objective, lack the program for duals on the clients,
            or cannot be averaged.
    """
    on_server = task.options[DUAL] == SERVER
    bundles.need_objective(task, [OBJECTIVE])
    if not on_server:
        bundles.need_programs(task, ["dual_update"], f"--objective {OBJECTIVE}")
    bundles.need_equal(task)
    first = task.ordinary[0]
    alpha = bundles.hyper_value(task.settings, first, "alpha")
    if alpha <= 0:
        raise SettingsError("hyper.alpha", f"{alpha:g}", "above 0 for feddyn, which divides by it")
    trained = tuple(t.name for t in first.tensors if t.kind != manifest_pb2.TENSOR_KIND_BUFFER)
    method = _FedDyn(alpha=alpha, on_server=on_server, trained=trained)
    phases = single_phase(task, local_plan(task, alpha, on_server=on_server))
    return Method(
        phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate, per_client=True
    )
