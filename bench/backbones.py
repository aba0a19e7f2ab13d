"""The cost of each frozen backbone on a phone, and the distance of its programs from it.

    python -m bench.backbones [--side 32 --side 224] [NAME ...]

Prints the rows of the table in `docs/backbones.md`. Weights are drawn, and BatchNorm has seen noise: with what
torchvision starts with, features of deep networks are nearly zero, and so would be every difference.
"""

import argparse

import torch
from torch import Tensor, nn

from fedlens_export.errors import ExportError
from fedlens_export.models import backbones
from fedlens_export.programs import lowering, onnx_program, parity, pte_program, steps

SIDES = (32, 224)
NOISE_PHOTOS = 64


def main() -> None:
    """Print a row for each backbone and size named on the command line."""
    parser = argparse.ArgumentParser(description="Export each backbone for computers, phones and servers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(backbones.BACKBONES)}")
    parser.add_argument("--side", type=int, action="append", help="of the photos, in pixels; default: 32 and 224")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names or backbones.BACKBONES:
        for side in arguments.side or SIDES:
            print(row(name, side), flush=True)


def row(name: str, side: int) -> str:
    """One line of the table, or what stands against the backbone at this size."""
    try:
        backbone = seen_noise(name, side)
        source = steps.embed(backbone, backbones.normalisation(name), (3, side, side))
        frozen = steps.frozen_tensors(backbone)
        traced = lowering.trace("embed", source.function, parity.examples(source, frozen, {}, seed=0))
        pt2 = lowering.save("embed", traced)
        pte, delegation = pte_program.lower("embed", pte_program.bind(source, traced, frozen))
        functions: list[lowering.Function | None] = [
            lowering.load(pt2),
            pte_program.load(source, pte),
            onnx_program.load(onnx_program.lower("embed", traced)),
        ]
        differences = [f"{parity.compare(source, run, frozen, {}, rounds=True):.0e}" for run in functions if run]
    except ExportError as error:
        return f"| `{name}` | {side} | {error} |"
    adds, last = _costs(backbone, side)
    portable = sum(delegation.portable.values())
    cells = (
        f"`{name}`",
        str(side),
        str(source.outputs[0].shape[1]),
        f"{sum(tensor.numel() for tensor in frozen.values()) / 1e6:.1f} M",
        f"{adds / 1e6:.0f} M",
        f"{last} x {last}",
        f"{len(pte) / 1e6:.1f} MB",
        f"{delegation.delegated} of {delegation.delegated + portable}",
        ", ".join(differences),
    )
    return f"| {' | '.join(cells)} |"


def seen_noise(name: str, side: int) -> nn.Module:
    """A backbone by name with drawn weights and BatchNorm's statistics of `NOISE_PHOTOS` photos of noise."""
    backbone = backbones.build(name, side, seed=0)
    noise = torch.rand(NOISE_PHOTOS, 3, side, side, generator=torch.Generator().manual_seed(0))
    for module in backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain mean over batches
            module.reset_running_stats()
    with torch.no_grad():
        backbone.train()(backbones.normalisation(name)(noise))
    return backbone.eval()


def _costs(backbone: nn.Module, side: int) -> tuple[int, int]:
    """Multiply-adds of convolutions for one photo, and how many pixels a side the last convolution leaves."""
    total = last = 0

    def count(layer: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal total, last
        assert isinstance(layer, nn.Conv2d)
        total += output.numel() * layer.weight[0].numel()
        last = output.shape[-1]

    hooks = [m.register_forward_hook(count) for m in backbone.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad():
        backbone(torch.zeros(1, 3, side, side))
    for hook in hooks:
        hook.remove()
    return total, last


if __name__ == "__main__":
    main()
