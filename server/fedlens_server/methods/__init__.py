"""The methods by name: the only place that lists ours. One file a method; `arithmetic/` holds what several share.

They may import `planning`. Begin with `fedavg.py`.
"""

import difflib

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
    fedconcat_settings,
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
from fedlens_server.planning import options
from fedlens_server.planning.bundle_settings import BundleSettings, always, comparing
from fedlens_server.planning.method import MethodDefinition, Shared
from fedlens_server.planning.task_settings import SettingsError, TaskSettings

GROUP = "fedlens.methods"
"""The entry points of other packages' methods."""

METHODS: dict[str, MethodDefinition] = {
    "ditto": MethodDefinition(ditto.for_task, always("proximal"), options=ditto.OPTIONS, shares=Shared.ONLY_MEAN),
    "fedap": MethodDefinition(fedap.for_task, fedap.bundle_settings, options=fedap.OPTIONS),
    "fedavg": MethodDefinition(fedavg.for_task, shares=Shared.ONLY_MEAN),
    "fedavg_last_fc": MethodDefinition(fedavg_last_fc.for_task, shares=Shared.MODEL),
    "fedavgm": MethodDefinition(fedavgm.for_task, options=fedavgm.OPTIONS, shares=Shared.MEAN),
    "fedbn": MethodDefinition(fedbn.for_task, shares=Shared.ONLY_MEAN),
    "fedclassavg": MethodDefinition(fedclassavg.for_task, options=fedclassavg.OPTIONS, shares=Shared.ONLY_MEAN),
    "fedconcat": MethodDefinition(fedconcat.for_task, fedconcat.bundle_settings, options=fedconcat_settings.OPTIONS),
    "feddyn": MethodDefinition(feddyn.for_task, always("dynamic"), options=feddyn.OPTIONS, shares=Shared.MODEL),
    "fedfomo": MethodDefinition(fedfomo.for_task, comparing("others"), options=fedfomo.OPTIONS),
    "fedgen": MethodDefinition(fedgen.for_task, always("generated"), options=fedgen.OPTIONS, shares=Shared.MODEL),
    "fedlc": MethodDefinition(fedlc.for_task, always("calibrated_logits"), shares=Shared.ONLY_MEAN),
    "fedmd": MethodDefinition(
        fedmd.for_task, always("distil_scores", public=True), options=fedmd.OPTIONS, middles=True
    ),
    "fedns": MethodDefinition(fedns.for_task, shares=Shared.MODEL),
    "fedper": MethodDefinition(fedper.for_task, shares=Shared.ONLY_MEAN),
    "fedproto": MethodDefinition(fedproto.for_task, always("prototypes"), middles=True),
    "fedprox": MethodDefinition(fedprox.for_task, always("proximal"), shares=Shared.ONLY_MEAN),
    "fedrep": MethodDefinition(fedrep.for_task, options=fedrep.OPTIONS, shares=Shared.ONLY_MEAN),
    "fedrs": MethodDefinition(
        fedrs.for_task, always("restricted_softmax"), options=fedrs.OPTIONS, shares=Shared.ONLY_MEAN
    ),
    "fedsoft": MethodDefinition(fedsoft.for_task, comparing("clusters", "proximal"), options=fedsoft.OPTIONS),
    "fesem": MethodDefinition(fesem.for_task, always("proximal"), options=fesem.OPTIONS),
    "ifca": MethodDefinition(ifca.for_task, comparing("clusters"), options=ifca.OPTIONS),
    "kt_pfl": MethodDefinition(kt_pfl.for_task, kt_pfl.bundle_settings, options=kt_pfl.OPTIONS),
    "local_only": MethodDefinition(local_only.for_task),
    "moon": MethodDefinition(moon.for_task, always("moon"), shares=Shared.ONLY_MEAN),
    "per_fedavg": MethodDefinition(per_fedavg.for_task, always("meta_fo"), shares=Shared.MEAN),
    "pfedsim": MethodDefinition(pfedsim.for_task, options=pfedsim.OPTIONS),
    "scaffold": MethodDefinition(scaffold.for_task, always("dynamic"), options=scaffold.OPTIONS, shares=Shared.MODEL),
}


def by_name(name: str) -> MethodDefinition:
    """A method of ours, of an installed package, or `module:NAME`, whose module is imported.

    Raises:
        SettingsError: There is no such method.
        Malformed: Its package is missing or faulty.
    """
    try:
        found = plugins.find(GROUP, name, MethodDefinition, METHODS)
    except PluginError as error:
        raise Malformed(f"task settings: method: {error}") from error
    if found is None:
        names = plugins.names(GROUP, METHODS)
        meant = "".join(f" (did you mean {near}?)" for near in difflib.get_close_matches(name, names, n=1, cutoff=0.75))
        allowed = f"one of {', '.join(names)}; or install the package that has it"
        raise SettingsError("method", f"{name[:80]!r}{meant}", allowed)
    return found


def bundle_settings(settings: TaskSettings) -> BundleSettings:
    """The settings with which bundles for a task are exported.

    Raises:
        SettingsError: There is no such method, it is faulty, or it has no such option or value of one.
        Malformed: The method's package is missing or faulty.
    """
    definition = by_name(settings.method)
    chosen = options.read(settings, definition.options)
    try:
        found = definition.bundle_settings(chosen)
        if not isinstance(found, BundleSettings):
            raise TypeError(f"a {type(found).__name__} is no BundleSettings")
    except Exception as error:  # whatever a foreign function raises
        what = f"{settings.method!r}, whose bundle_settings failed: {plugins.told(error)}"
        raise SettingsError("method", what, "one that says how its bundles are exported") from error
    return found
