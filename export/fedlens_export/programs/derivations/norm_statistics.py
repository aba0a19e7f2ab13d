"""Mean and variance of what enters each BatchNorm layer, on a client's photos, for f-FedAP's distances.

Paper: Lu et al., IEEE Trans. Big Data 2022, arXiv:2112.00734; recomputed on photos as in FL-bench, the code with which
pFedSim's paper compared.

    paper      here                                meaning
    mu_l       norm_statistics["l.running_mean"]   mean over photos and positions, for each channel
    sigma_l    norm_statistics["l.running_var"]    their variance, divided by n - 1 as in BatchNorm's own statistics
    -          norm_sums["l.sum"], ["l.square"]    sums of x and x^2, for each channel
    -          norm_sums["l.count"]                n, photos times positions

The model runs in evaluation mode, so layer l sees what the layers before make of their running statistics. The table's
names are those of running statistics, so that a server treats both alike. A variance below 0 by rounding is 0.
"""

from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from fedlens_export.errors import NotExportable
from fedlens_export.network import Tensors
from fedlens_export.objectives.objective import without_padding
from fedlens_export.programs.derivations.derivation import Derivation, Setting, float_slots, model, program, table
from fedlens_export.programs.steps import Arguments, ProgramSource
from fedlens_proto.v1 import manifest_pb2 as pb

SUMS = "norm_sums"
MODEL = model("model")


def sums(setting: Setting) -> ProgramSource:
    """The program `norm_sums`."""
    outputs = float_slots(pb.SLOT_KIND_ACCUMULATOR, _shapes(setting))

    def compute(given: Arguments) -> dict[str, Tensor]:
        mask = given.one(pb.SLOT_KIND_MASK)
        rows = without_padding(given.one(pb.SLOT_KIND_INPUT), mask)
        found = dict(given.named(pb.SLOT_KIND_ACCUMULATOR))

        def count(name: str, _layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            (entered,) = arguments
            real = entered * mask.reshape(-1, *[1] * (entered.dim() - 1))
            others = [i for i in range(entered.dim()) if i != 1]
            found[f"{name}.sum"] = found[f"{name}.sum"] + real.sum(others)
            found[f"{name}.square"] = found[f"{name}.square"] + (real * real).sum(others)
            positions = entered.numel() // (entered.shape[0] * entered.shape[1])
            found[f"{name}.count"] = found[f"{name}.count"] + mask.sum() * positions

        with ExitStack() as hooks:
            for name, layer in _layers(setting).items():
                hooks.callback(layer.register_forward_pre_hook(partial(count, name)).remove)
            setting.logits(given.references()[MODEL.name], rows)
        return found

    return program(setting, "norm_sums", SUMS, [MODEL], outputs, compute, over_rows=True)


def statistics(setting: Setting) -> ProgramSource:
    """The program `norm_statistics`."""

    def compute(given: Arguments) -> dict[str, Tensor]:
        sums, found = given.references()[SUMS], Tensors()
        for name in _layers(setting):
            count = sums[f"{name}.count"]
            mean = sums[f"{name}.sum"] / count.clamp(min=1)
            spread = (sums[f"{name}.square"] - mean * sums[f"{name}.sum"]).clamp(min=0)
            found |= {f"{name}.running_mean": mean, f"{name}.running_var": spread / (count - 1).clamp(min=1)}
        return found

    shapes = {
        f"{name}.{statistic}": (layer.num_features,)
        for name, layer in _layers(setting).items()
        for statistic in ("running_mean", "running_var")
    }
    outputs = float_slots(pb.SLOT_KIND_RESULT, shapes)
    return program(setting, "norm_statistics", "norm_statistics", [table(SUMS, _shapes(setting))], outputs, compute)


def _layers(setting: Setting) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    named = setting.network.module.named_modules()
    found = {name: layer for name, layer in named if isinstance(layer, nn.modules.batchnorm._BatchNorm)}
    if not found:
        raise NotExportable("the model has no BatchNorm that trains, so there are no statistics of it")
    return found


def _shapes(setting: Setting) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for name, layer in _layers(setting).items():
        channels = (layer.num_features,)
        shapes |= {f"{name}.sum": channels, f"{name}.square": channels, f"{name}.count": ()}
    return shapes


NORM_SUMS = Derivation("norm_sums", sums)
NORM_STATISTICS = Derivation("norm_statistics", statistics)
