"""Packages outside the tree, with entry points, as pip leaves them in a folder of packages."""

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path

from fedlens_proto import plugins


def install(site: Path, package: str, entry_points: Mapping[str, Mapping[str, str]], **modules: str) -> None:
    """Leave a package's metadata, and modules by name, in the folder `site`; entry points by group and name."""
    metadata = _metadata(site, package)
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        line
        for group, found in entry_points.items()
        for line in (f"[{group}]", *(f"{k} = {v}" for k, v in found.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text)
    look_again()


def uninstall(site: Path, package: str) -> None:
    """Remove the metadata of a package; its modules may stay."""
    shutil.rmtree(_metadata(site, package))
    look_again()


def look_again() -> None:
    """Find what a new process would find."""
    importlib.invalidate_caches()
    plugins.installed.cache_clear()


def _metadata(site: Path, package: str) -> Path:
    return site / f"{package.replace('-', '_')}-1.0.dist-info"


HALF = """
from fedlens_server.methods import fedavg
from fedlens_server.planning import bundles, options
from fedlens_server.planning.bundle_settings import always
from fedlens_server.planning.method import GLOBAL, MethodDefinition

OPTIONS = {"part": options.number(0, 1, default=0.5)}


def for_task(task):
    part = task.options["part"]
    bundles.need_equal(task)

    def aggregate(phase, state, updates, tools):
        old = state.shared[GLOBAL]
        new = fedavg.average_set(updates, old)
        moved = {name: (old[name] + part * (new[name] - old[name])).astype(old[name].dtype) for name in old}
        return state.with_shared(**{GLOBAL: moved})

    return fedavg.sharing_global_set(task, fedavg.whole_model_plan(task), aggregate=aggregate)


def broken(task):
    return task.settings.options["nothing"]


METHOD = MethodDefinition(for_task, options=OPTIONS, bundle_settings=always("proximal"))
BROKEN = MethodDefinition(broken)
"""
"""A method that goes a part of the way to the clients' mean."""

METHODS = {"fedlens.methods": {"half": "half_way:METHOD", "broken": "half_way:BROKEN"}}
