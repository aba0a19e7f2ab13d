"""The methods by name: the only place that lists them."""

from collections.abc import Callable

from fedlens_server.methods.fedavg import FedAvg
from fedlens_server.methods.method import Method, NothingToAggregate, Phase, State, TaskPlan, TensorSet, Tools, Update
from fedlens_server.methods.mixture import Mixture

__all__ = [
    "METHODS",
    "Method",
    "Mixture",
    "NothingToAggregate",
    "Phase",
    "State",
    "TaskPlan",
    "TensorSet",
    "Tools",
    "Update",
]

# Each makes the method for a task, or raises `SettingsError`.
METHODS: dict[str, Callable[[TaskPlan], Method]] = {
    "fedavg": FedAvg.for_task,
}
