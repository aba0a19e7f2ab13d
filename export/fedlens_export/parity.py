"""Whether an exported program computes what its source computes, on seeded inputs."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedlens_export import lowering
from fedlens_export.errors import ParityBroken
from fedlens_export.hyper import Hyper
from fedlens_export.programs import ProgramSource
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

TOLERANCE = 1e-5
"""Largest allowed difference, relative to the greatest value of the same output (or to 1 if that is larger)."""

_SEEDS = (1, 2)


def check(source: ProgramSource, raw: bytes, known: Mapping[str, Tensor], hyper: Mapping[str, Hyper]) -> float:
    """Run program and source side by side.

    Args:
        source: What `raw` was lowered from.
        raw: The program.
        known: Values for weights and frozen tensors, by name.
        hyper: The hyper-parameters of the program, by name.

    Returns:
        The largest difference, measured as `TOLERANCE` says.

    Raises:
        ParityBroken: It is larger than `TOLERANCE`, or an output is NaN or infinite.
    """
    return compare(source, lowering.load(raw), known, hyper)


def compare(
    source: ProgramSource, program: lowering.Function, known: Mapping[str, Tensor], hyper: Mapping[str, Hyper]
) -> float:
    """As `check`, for a program that has been loaded."""
    worst = 0.0
    for seed in _SEEDS:
        given = examples(source, known, hyper, seed)
        with torch.no_grad():
            found, expected = program(*given), source.function(*given)
        for slot, left, right in zip(source.outputs, found, expected, strict=True):
            scale = max(1.0, right.abs().max().item())
            difference = (left.double() - right.double()).abs().max().item() / scale
            if not difference <= TOLERANCE:
                raise ParityBroken(
                    f"program {source.name!r} differs from the model by {difference:.2g} in its output "
                    f"{pb.SlotKind.Name(slot.kind)} {slot.name}; at most {TOLERANCE} is allowed"
                )
            worst = max(worst, difference)
    return worst


def examples(
    source: ProgramSource, known: Mapping[str, Tensor], hyper: Mapping[str, Hyper], seed: int
) -> tuple[Tensor, ...]:
    """Arguments for a program; the same seed gives the same ones."""
    generator = torch.Generator().manual_seed(seed)
    classes = next((slot.shape[1] for slot in source.outputs if slot.kind == pb.SLOT_KIND_LOGITS), 1)
    return tuple(_example(slot, known, hyper, int(classes), generator) for slot in source.inputs)


def _example(
    slot: pb.Slot, known: Mapping[str, Tensor], hyper: Mapping[str, Hyper], classes: int, generator: torch.Generator
) -> Tensor:
    shape = tuple(slot.shape)
    match slot.kind:
        case pb.SLOT_KIND_WEIGHT | pb.SLOT_KIND_FROZEN | pb.SLOT_KIND_EXTRACTOR:
            return known[slot.name].clone()
        case pb.SLOT_KIND_REFERENCE:
            return known[slot.name.partition("/")[2]] + 0.01 * torch.rand(shape, generator=generator)
        case pb.SLOT_KIND_OPTIMISER:
            return 1e-3 * torch.rand(shape, generator=generator)
        case pb.SLOT_KIND_COUNTER:
            return torch.tensor(3.0)
        case pb.SLOT_KIND_HYPER:
            return torch.tensor(hyper[slot.name].default)
        case pb.SLOT_KIND_LABEL:
            return torch.randint(0, classes, shape, generator=generator)
        case pb.SLOT_KIND_MASK:
            return torch.ones(shape)
        case _:
            if slot.dtype != blob_pb2.DTYPE_FLOAT32:
                raise TypeError(f"no example for {slot}")
            return torch.rand(shape, generator=generator)
