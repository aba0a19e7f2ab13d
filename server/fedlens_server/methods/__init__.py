"""The methods by name: the only place that lists them."""

from collections.abc import Callable

from fedlens_server.methods.arithmetic.weighted_sum import WeightedSum
from fedlens_server.methods.fedavg import FedAvg
from fedlens_server.methods.fedavg_last_fc import FedAvgLastFC
from fedlens_server.methods.fedclassavg import FedClassAvg
from fedlens_server.methods.fedconcat import FedConcat
from fedlens_server.methods.fedns import FedNS
from fedlens_server.methods.fedper import FedPer
from fedlens_server.methods.fedprox import FedProx
from fedlens_server.methods.fedrep import FedRep
from fedlens_server.methods.local_only import LocalOnly
from fedlens_server.methods.pfedsim import PFedSim
from fedlens_server.planning.method import Method, NothingToAggregate, Phase, State, TaskPlan, TensorSet, Tools, Update

__all__ = [
    "METHODS",
    "Method",
    "NothingToAggregate",
    "Phase",
    "State",
    "TaskPlan",
    "TensorSet",
    "Tools",
    "Update",
    "WeightedSum",
]

# Each makes the method for a task, or raises `SettingsError`.
METHODS: dict[str, Callable[[TaskPlan], Method]] = {
    "fedavg": FedAvg.for_task,
    "fedavg_last_fc": FedAvgLastFC.for_task,
    "fedclassavg": FedClassAvg.for_task,
    "fedconcat": FedConcat.for_task,
    "fedns": FedNS.for_task,
    "fedper": FedPer.for_task,
    "fedprox": FedProx.for_task,
    "fedrep": FedRep.for_task,
    "local_only": LocalOnly.for_task,
    "pfedsim": PFedSim.for_task,
}
