"""The methods by name: the only place that lists them. One file a method; `arithmetic/` holds what several share.

They may import `planning`. Begin with `fedavg.py`.
"""

from collections.abc import Callable

from fedlens_server.methods import (
    fedavg,
    fedavg_last_fc,
    fedclassavg,
    fedconcat,
    fedns,
    fedper,
    fedprox,
    fedrep,
    local_only,
    pfedsim,
)
from fedlens_server.planning.method import Method, TaskPlan

# Each makes the method for a task, or raises `SettingsError`.
METHODS: dict[str, Callable[[TaskPlan], Method]] = {
    "fedavg": fedavg.for_task,
    "fedavg_last_fc": fedavg_last_fc.for_task,
    "fedclassavg": fedclassavg.for_task,
    "fedconcat": fedconcat.for_task,
    "fedns": fedns.for_task,
    "fedper": fedper.for_task,
    "fedprox": fedprox.for_task,
    "fedrep": fedrep.for_task,
    "local_only": local_only.for_task,
    "pfedsim": pfedsim.for_task,
}
