"""Engines by name; the library that an engine needs is imported only when the engine is made."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from fedlens_edge_client.engines import Engine
from fedlens_edge_client.engines.child import confinement
from fedlens_edge_client.engines.installed import runtime_version
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb

if TYPE_CHECKING:
    from fedlens_edge_client.engines.child.children import Children, CrashLog

TRIED = "tried"
"""The folder in a cache that records which programs have passed their trial."""


class EngineName(StrEnum):
    """The engines that a user can choose."""

    TORCH = "torch"
    EXECUTORCH = "executorch"


@dataclass(frozen=True)
class Abilities:
    """Programs and bundles that an engine supports.

    Attributes:
        program_format: The only format that it loads.
        bundle_classes: The classes of bundles that it takes.
    """

    program_format: pb.ProgramFormat
    bundle_classes: tuple[pb.BundleClass, ...]


ABILITIES: Mapping[EngineName, Abilities] = {
    EngineName.TORCH: Abilities(pb.PROGRAM_FORMAT_PT2, (pb.BUNDLE_CLASS_FROZEN_BACKBONE, pb.BUNDLE_CLASS_WHOLE_MODEL)),
    EngineName.EXECUTORCH: Abilities(pb.PROGRAM_FORMAT_PTE, (pb.BUNDLE_CLASS_FROZEN_BACKBONE,)),
}
"""ExecuTorch takes no whole-model bundles: training all layers takes it a hundred times as long as torch."""


def make_engine(name: EngineName, bundle: Bundle, tried: Path | None = None) -> Engine:
    """Make the engine of that name for a bundle; this may import torch, which takes seconds.

    Args:
        name: Of the engine.
        bundle: Whose programs run.
        tried: As in `ExecutorchEngine`.

    Raises:
        RuntimeMissing: The engine's library is not installed.
    """
    if name == EngineName.TORCH:
        from fedlens_edge_client.engines.torch import TorchEngine

        return TorchEngine(bundle)
    from fedlens_edge_client.engines.executorch import ExecutorchEngine

    return ExecutorchEngine(bundle, tried)


def make_children(name: EngineName, crashes: "CrashLog", check: Callable[[], None]) -> "Children":
    """Make the children that run the programs of one client, as in `Children`."""
    from fedlens_edge_client.engines.child.children import Children

    return Children(ABILITIES[name].program_format, crashes, check)


def check_installed(name: EngineName, *, in_process: bool = True) -> None:
    """Check, without importing it, that the library of an engine is installed, and what confines its programs.

    Raises:
        RuntimeMissing: It is not.
    """
    if name == EngineName.EXECUTORCH:
        runtime_version()
    if not in_process and sys.platform.startswith("linux"):
        confinement.library()
