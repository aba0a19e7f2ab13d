"""Engines by name; what each needs is imported when one is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fedlens_edge_client.engines import Engine, RuntimeMissing
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb


class EngineName(StrEnum):
    """What runs programs."""

    TORCH = "torch"
    EXECUTORCH = "executorch"


@dataclass(frozen=True)
class Abilities:
    """What an engine can run.

    Attributes:
        program_format: The only format that it loads.
        bundle_classes: Bundles that it takes.
    """

    program_format: pb.ProgramFormat
    bundle_classes: tuple[pb.BundleClass, ...]


ABILITIES: Mapping[EngineName, Abilities] = {
    EngineName.TORCH: Abilities(pb.PROGRAM_FORMAT_PT2, (pb.BUNDLE_CLASS_FROZEN_BACKBONE, pb.BUNDLE_CLASS_WHOLE_MODEL)),
    EngineName.EXECUTORCH: Abilities(pb.PROGRAM_FORMAT_PTE, (pb.BUNDLE_CLASS_FROZEN_BACKBONE,)),
}
"""Training all layers of a model in ExecuTorch takes a hundred times as long, so that it takes no such bundle."""


def make_engine(name: EngineName, bundle: Bundle, tried: Path | None = None) -> Engine:
    """The engine of that name for a bundle; this may import torch, which takes seconds.

    Args:
        name: Which one.
        bundle: Whose programs run.
        tried: As in `ExecutorchEngine`.

    Raises:
        RuntimeMissing: What it runs programs with is not installed.
    """
    if name == EngineName.TORCH:
        from fedlens_edge_client.engines.torch import TorchEngine

        return TorchEngine(bundle)
    from fedlens_edge_client.engines.executorch import ExecutorchEngine

    return ExecutorchEngine(bundle, tried)


def check_installed(name: EngineName) -> None:
    """See early, and without importing it, whether what an engine runs programs with is there.

    Raises:
        RuntimeMissing: It is not.
    """
    if name == EngineName.EXECUTORCH:
        runtime_version()


def runtime_version() -> str:
    """The version of ExecuTorch that is installed.

    Raises:
        RuntimeMissing: None is.
    """
    try:
        return version("executorch")
    except PackageNotFoundError as error:
        raise RuntimeMissing(
            "engine executorch needs ExecuTorch, which is not installed: pip install 'fedlens[executorch]'; "
            "or take engine torch"
        ) from error
