"""The methods by name: the only place that lists ours. One file a method; `arithmetic/` holds what several share.

They may import `planning`. Begin with `fedavg.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fedlens_proto import plugins
from fedlens_proto.errors import PluginError
from fedlens_server.errors import Malformed
from fedlens_server.methods import (
    ditto,
    fedap,
    fedavg,
    fedavg_last_fc,
    fedavgm,
    fedbn,
    fedclassavg,
    fedconcat,
    feddyn,
    fedfomo,
    fedgen,
    fedlc,
    fedmd,
    fedns,
    fedper,
    fedproto,
    fedprox,
    fedrep,
    fedrs,
    fedsoft,
    fesem,
    ifca,
    kt_pfl,
    local_only,
    moon,
    per_fedavg,
    pfedsim,
    scaffold,
)
from fedlens_server.planning.bundle_settings import BundleSettings, ByOptions, always, comparing
from fedlens_server.planning.method import Method, MethodDefinition, TaskPlan
from fedlens_server.planning.task_settings import SettingsError

GROUP = "fedlens.methods"
"""The entry points of other packages' methods."""

# Each makes the method for a task, or raises `SettingsError`.
METHODS: dict[str, Callable[[TaskPlan], Method]] = {
    "ditto": ditto.for_task,
    "fedap": fedap.for_task,
    "fedavg": fedavg.for_task,
    "fedavg_last_fc": fedavg_last_fc.for_task,
    "fedavgm": fedavgm.for_task,
    "fedbn": fedbn.for_task,
    "fedclassavg": fedclassavg.for_task,
    "fedconcat": fedconcat.for_task,
    "feddyn": feddyn.for_task,
    "fedfomo": fedfomo.for_task,
    "fedgen": fedgen.for_task,
    "fedlc": fedlc.for_task,
    "fedmd": fedmd.for_task,
    "fedns": fedns.for_task,
    "fedper": fedper.for_task,
    "fedproto": fedproto.for_task,
    "fedprox": fedprox.for_task,
    "fedrep": fedrep.for_task,
    "fedrs": fedrs.for_task,
    "fedsoft": fedsoft.for_task,
    "fesem": fesem.for_task,
    "ifca": ifca.for_task,
    "kt_pfl": kt_pfl.for_task,
    "local_only": local_only.for_task,
    "moon": moon.for_task,
    "per_fedavg": per_fedavg.for_task,
    "pfedsim": pfedsim.for_task,
    "scaffold": scaffold.for_task,
}

# The bundles of methods that need more than cross-entropy.
BUNDLES: dict[str, ByOptions] = {
    "ditto": always("proximal"),
    "fedap": fedap.bundle_settings,
    "fedconcat": fedconcat.bundle_settings,
    "feddyn": always("dynamic"),
    "fedfomo": comparing("others"),
    "fedgen": always("generated"),
    "fedlc": always("calibrated_logits"),
    "fedmd": always("distil_scores", public=True),
    "fedproto": always("prototypes"),
    "fedprox": always("proximal"),
    "fedrs": always("restricted_softmax"),
    "fedsoft": comparing("clusters", "proximal"),
    "fesem": always("proximal"),
    "ifca": comparing("clusters"),
    "kt_pfl": kt_pfl.bundle_settings,
    "moon": always("moon"),
    "per_fedavg": always("meta_fo"),
    "scaffold": always("dynamic"),
}


def by_name(name: str) -> MethodDefinition:
    """A method of ours, of an installed package, or `module:NAME`, whose module is imported.

    Raises:
        SettingsError: There is no such method.
        Malformed: Its package is missing or faulty.
    """
    plain = always("cross_entropy")
    ours = {
        known: MethodDefinition(for_task=make, bundle_settings=BUNDLES.get(known, plain))
        for known, make in sorted(METHODS.items())
    }
    try:
        found = plugins.find(GROUP, name, MethodDefinition, ours)
    except PluginError as error:
        raise Malformed(f"task settings: method: {error}") from error
    if found is None:
        allowed = ", ".join(plugins.names(GROUP, ours))
        raise SettingsError("method", f"{name[:80]!r}", f"one of {allowed}; or install the package that has it")
    return found


def bundle_settings(method: str, options: Mapping[str, Any]) -> BundleSettings:
    """The settings with which bundles for a method with these options are exported. Errors as in `by_name`."""
    return by_name(method).bundle_settings(options)
