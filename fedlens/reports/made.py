"""What results were made with and where: versions, the commit of a checkout, and the processor."""

import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from fedlens_proto import plugins

_PLUGIN_GROUPS = ("fedlens.methods", "fedlens.objectives", "fedlens.programs")
_CPU_INFO = Path("/proc/cpuinfo")
_ROOT = Path(__file__).parents[2]  # of a checkout


def made() -> Mapping[str, str]:
    """Versions of FedLens, torch, numpy, Python and packages with plug-ins; the processor; a checkout's commit."""
    found = {name: version(name) for name in ("fedlens", "torch", "numpy")}
    entries = (entry for group in _PLUGIN_GROUPS for entry in plugins.installed(group))
    found |= {entry.dist.name: entry.dist.version for entry in entries if entry.dist is not None}
    found |= {"python": platform.python_version(), "system": f"{platform.system()} on {platform.machine()}"}
    cores, name = processor()
    found["processor"] = f"{cores} x {name}"
    if (_ROOT / "pyproject.toml").is_file() and (commit := _commit(_ROOT)) is not None:
        found["commit"] = commit
    return found


def processor() -> tuple[int, str]:
    """The number of cores, and the processor's name, or its architecture if that is unknown, with its instruction set.

    Processors of one name can differ in the instructions that torch uses, and so in the last bits of what it computes.
    """
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines() if _CPU_INFO.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return os.cpu_count() or 1, f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def _commit(folder: Path) -> str | None:
    """The commit of the checkout that holds this folder, marked if tracked files have changed since; else None."""
    describe = ("git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    try:
        found = subprocess.run(describe, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
