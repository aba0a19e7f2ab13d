"""SCAFFOLD: local steps are corrected by the difference of the server's and the client's control variate.

Paper: Karimireddy et al., ICML 2020, https://arxiv.org/abs/1910.06378, Algorithm 1, option II.

    paper     here                         meaning
    x         shared[GLOBAL]               model at the start of the round
    y_i       values["weights"]            model of client i after its local steps along g - c_i + c
    c_i       clients[id]["control"]       control variate of client i, 0 at first
    c         shared["controls"] / N       mean of all control variates
    c_i - c   download `control`           the reference `dual` of objective `dynamic`, with alpha 0
    N         clients_of_mean              all clients of the task
    S         updates                      clients whose updates arrived
    K         plain_sgd.steps_of           local steps, which follow from the client's number of examples
    eta_l     learning rates               of the bundle's SGD, by the role of a tensor
    eta_g     options.server_rate          step of the server along the mean change; 1: the plain mean

Client: `y_i := y_i - eta_l (g_i(y_i) - c_i + c)`. Server: `c_i := c_i - c + (x - y_i) / (K eta_l)`;
`x := x + eta_g mean_i (y_i - x)`; `c` by the new c_i. The mean over the clients of a round is plain.

Deviations: the server computes the control variates, from the upload and the number of steps, so a client keeps none
and cannot disagree with the server about them. BatchNorm's statistics are the plain mean, integers the maximum. A
client without photos in the round is left out, and a forgotten client's control variate leaves c.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedlens_proto.blob import Array
from fedlens_proto.v1 import manifest_pb2
from fedlens_server.methods.arithmetic import plain_sgd
from fedlens_server.methods.arithmetic.client_sums import COUNTED, Computed, clients_of_mean, current_sum
from fedlens_server.methods.arithmetic.linear_combination import linear_combination, with_photos
from fedlens_server.methods.arithmetic.weighted_sum import Terms, WeightedSum
from fedlens_server.methods.fedavg import average_set, single_phase, whole_model_plan
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import START, WEIGHTS, bind, source
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
from fedlens_server.planning.task_settings import TaskSettings

OBJECTIVE = "dynamic"
DUAL = "dual"  # reference
CONTROL = "control"  # download, and entry of each client
CONTROLS = "controls"
OPTIONS = {"server_rate": options.number(1e-6, 10, default=1.0)}


def next_control(difference: Array, before: Array, after: Array, steps: int, rate: float) -> Array:
    """A client's control variate after a round, `c_i - c + (x - y_i) / (K eta_l)`, of one tensor, float32.

    Args:
        difference: c_i - c, as the client had it.
        before: x, the model that it started from.
        after: y_i, its model after the local steps.
        steps: K >= 1.
        rate: eta_l > 0.

    Source: arXiv:1910.06378, Algorithm 1, line 12, option II.
    """
    change = (before.astype(np.float64) - after) / (steps * rate)
    return (difference + change).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class _Scaffold:
    """The settings of the method, and its three functions."""

    settings: TaskSettings
    batch: int
    server_rate: float
    rates: Mapping[str, float]  # of each tensor that has a control variate

    def begin(self, phase: Phase, state: State, tools: Tools) -> State:
        """The initial model and control variates of 0."""
        nothing = {name: np.zeros_like(tools.initial[name]) for name in self.rates}
        return State(shared={GLOBAL: tools.initial, CONTROLS: nothing, COUNTED: 0, "population": 1})

    def download(self, phase: Phase, state: State, client: bytes | None) -> Mapping[str, TensorSet] | None:
        """The global model and the client's correction; without the latter before the first aggregation."""
        model = {GLOBAL: state.shared[GLOBAL]}
        if client is None or not state.shared[COUNTED]:
            return model
        share = -1.0 / state.shared["population"]
        common, own = current_sum(state, CONTROLS, CONTROL), state.of(client).get(CONTROL)
        terms: Terms = [(share, common)] if own is None else [(share, common), (1.0, own)]
        return {**model, CONTROL: WeightedSum(dict.fromkeys(self.rates, terms))}

    def aggregate(self, phase: Phase, state: State, updates: Sequence[Update], tools: Tools) -> State:
        """The control variates of the round's clients, their sum, and the model."""
        taken = with_photos(updates)
        before, total = state.shared[GLOBAL], dict(current_sum(state, CONTROLS, CONTROL))
        new = average_set([replace(update, num_examples=1) for update in taken], before)
        for name in self.rates:
            step = np.array([1.0 - self.server_rate, self.server_rate])
            new[name] = linear_combination([before[name], new[name]], step)
        controls = {update.client: self._control(update) for update in taken}
        for name in self.rates:
            added = total[name].astype(np.float64)
            for client, control in controls.items():
                added += control[name]
                if CONTROL in (known := state.of(client)):
                    added -= known[CONTROL][name]
            total[name] = added.astype(np.float32)
        after = state.with_clients({client: {CONTROL: control} for client, control in controls.items()})
        counted = sum(CONTROL in entries for entries in after.clients.values())
        population = clients_of_mean(after, CONTROL, tools.population)
        return after.with_shared(**{GLOBAL: new, CONTROLS: total, COUNTED: counted, "population": population})

    def _control(self, update: Update) -> TensorSet:
        steps = plain_sgd.steps_of(self.settings, update.num_examples, self.batch)
        sent, weights = update.sent[GLOBAL], update.values[WEIGHTS]

        def computed(name: str) -> Array:
            before = sent[name]
            had = update.sent[CONTROL][name] if CONTROL in update.sent else np.zeros_like(before)
            return next_control(had, before, weights[name], steps, self.rates[name])

        return Computed(self.rates, computed)


def for_task(task: TaskPlan) -> Method:
    """SCAFFOLD for a task.

    Raises:
        SettingsError: A learning rate is 0 or momentum is not, or the bundles have another objective or optimiser, or
            cannot be averaged.
    """
    settings = task.settings
    chosen = task.options
    bundles.need_objective(task, [OBJECTIVE])
    bundles.need_equal(task)
    plain_sgd.need_plain_sgd(task)
    first = task.ordinary[0]
    names = [t.name for t in first.tensors if t.kind != manifest_pb2.TENSOR_KIND_BUFFER]
    method = _Scaffold(
        settings=settings,
        batch=plain_sgd.batch_of(task),
        server_rate=float(chosen["server_rate"]),
        rates=plain_sgd.rates(task, names),
    )
    bindings = [bind(GLOBAL, source(value=START)), bind(DUAL, source(download=CONTROL))]
    hyper = {**plain_sgd.without_momentum(task), "alpha": 0.0}
    local_plan = whole_model_plan(task, bindings=bindings, hyper=hyper)
    phases = single_phase(task, local_plan)
    return Method(
        phases=phases, begin=method.begin, download=method.download, aggregate=method.aggregate, per_client=True
    )
