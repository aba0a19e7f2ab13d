"""Quantisation of a frozen backbone to int8 for phones, and its emulation in float32 for all other engines.

Weights are int8 by channel, symmetric; activations are int8 by tensor, with ranges from photos. On a phone XNNPACK
computes with integers. `.pt2` and ONNX have a network of float32 tensors on the same grids: weights are multiples of
their channel's step, biases are multiples of the input's step times the weight's (XNNPACK has them as int32), and each
activation is rounded to its grid as in XNNPACK, to the nearest level, halves to even. They differ in the last bit of
float32 sums: a sum between two levels can fall either way.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

from fedlens_export.errors import NotExportable
from fedlens_export.network import Normalisation
from fedlens_export.programs import pte_program

SCHEMES = ("int8",)

_NAMESPACE = "quantized_decomposed."
_WEIGHT = _NAMESPACE + "dequantize_per_channel.default"
_TO_GRID = _NAMESPACE + "quantize_per_tensor.default"
_FROM_GRID = _NAMESPACE + "dequantize_per_tensor.default"
_MEANS = ("aten.mean.dim", "aten.adaptive_avg_pool2d.default", "aten.avg_pool2d.default")
_CLAMPS = ("aten.hardtanh.default", "aten.hardtanh_.default", "aten.relu6.default")
_SUMS = ("aten.conv2d.default", "aten.linear.default")

_FINER = 1 << 14
"""Parts of a level; float32 still represents 128 levels of them exactly."""


@dataclass(frozen=True)
class Quantised:
    """A quantised backbone, from normalised photos to features.

    Attributes:
        emulated: In float32, with the backbone's names of tensors; BatchNorm is folded into convolutions.
        integers: In int8, in the form that ExecuTorch's compiler needs.
    """

    emulated: nn.Module
    integers: nn.Module

    def program(self, normalisation: Normalisation, photo_shape: tuple[int, int, int]) -> ExportedProgram:
        """The input of `pte_program.lower`: from a photo [1, 3, H, W] in 0..1 to features [1, F]."""
        with torch.no_grad(), pte_program.quietly():
            return torch.export.export(_Normalised(normalisation, self.integers), (torch.zeros(1, *photo_shape),))


@dataclass(frozen=True)
class ForPhones:
    """The parts of a quantised backbone that a draft needs besides its emulation.

    Attributes:
        integers: The program for phones, from `Quantised.program`.
        backbone: The float backbone, in evaluation mode, from normalised photos to features.
        normalisation: Normalisation of photos before it.
    """

    integers: ExportedProgram
    backbone: nn.Module
    normalisation: Normalisation

    def original(self, photo: Tensor) -> Tensor:
        """Features [1, F] of a photo [1, 3, H, W] in 0..1 by the float backbone."""
        features: Tensor = self.backbone(self.normalisation(photo))
        return features


def quantise(backbone: nn.Module, photos: Sequence[Tensor]) -> Quantised:
    """Quantise a copy of `backbone` to int8; the same photos give the same numbers.

    Args:
        backbone: In evaluation mode.
        photos: Normalised, each float32 [1, 3, H, W], at least one; they determine each activation's range.

    Raises:
        NotExportable: ExecuTorch is not installed, or the backbone has a layer that cannot be quantised.
    """
    pte_program.check_installed()
    with torch.no_grad(), pte_program.quietly(), _one_thread():
        pt2e: Any = import_module("torchao.quantization.pt2e.quantize_pt2e")
        try:
            # A copy, because biases are corrected in place.
            graph = deepcopy(torch.export.export(backbone.eval(), (photos[0],)).module(check_guards=False))
            observed = pt2e.prepare_pt2e(graph, _quantiser())
            names = _weight_names(observed)
            _observe(observed, photos)
            integers = pt2e.convert_pt2e(observed)
        except Exception as error:  # whatever the quantiser raises for a layer that it does not know
            raise NotExportable(f"the backbone cannot be quantised: {error}") from error
        return Quantised(_emulated(integers, names), integers)


class _Normalised(nn.Module):
    def __init__(self, normalisation: Normalisation, backbone: nn.Module) -> None:
        super().__init__()
        self.normalisation = normalisation
        self.backbone = backbone

    def forward(self, photo: Tensor) -> tuple[Tensor, ...]:
        return (self.backbone(self.normalisation(photo)),)


def _quantiser() -> Any:
    """XNNPACK's quantiser, which fuses a convolution and a ReLU, extended to fuse a convolution and any clamp.

    Otherwise the sum would be quantised before it is clamped, with few levels left for 0..6.
    """
    library: Any = import_module("executorch.backends.xnnpack.quantizer.xnnpack_quantizer")
    utils: Any = import_module("executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils")
    quantizer: Any = import_module("torchao.quantization.pt2e.quantizer")
    config = library.get_symmetric_quantization_config(is_per_channel=True)

    class Quantiser(library.XNNPACKQuantizer):  # type: ignore[misc]  # known only once it is imported
        def annotate(self, model: fx.GraphModule) -> Any:
            nodes: list[Any] = list(model.graph.nodes)
            for clamp in nodes:
                summed = clamp.args[0] if str(clamp.target) in _CLAMPS else None
                if summed is None or str(summed.target) not in _SUMS or len(summed.users) > 1:
                    continue
                inputs, weight, *bias = summed.args[:3]
                given = {inputs: config.input_activation, weight: config.weight, **dict.fromkeys(bias)}
                summed.meta[utils.Q_ANNOTATION_KEY] = quantizer.QuantizationAnnotation(given, _annotated=True)
                clamp.meta[utils.Q_ANNOTATION_KEY] = quantizer.QuantizationAnnotation(
                    output_qspec=config.output_activation, _annotated=True
                )
            return super().annotate(model)

    return Quantiser().set_global(config)


def _observe(observed: fx.GraphModule, photos: Sequence[Tensor]) -> None:
    """Run the observed network on the photos, and correct each bias for the mean error of its rounded weight.

    Source: Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019,
    https://arxiv.org/abs/1906.04721, section 4.2, with the means of the photos instead of BatchNorm's.
    """
    lost: dict[str, list[Tensor]] = {}

    class Observer(fx.Interpreter):
        def run_node(self, n: Any) -> Any:
            found = super().run_node(n)
            if str(n.target) in _SUMS and len(n.args) > 2 and n.args[2] is not None:
                (inputs, weight, *others), options = self.fetch_args_kwargs_from_env(n)
                weights: Any = self.fetch_attr(n.args[1].target)
                step, zero = weights.calculate_qparams()
                rounded = torch.fake_quantize_per_channel_affine(
                    weight, step, zero.int(), weights.ch_axis, weights.quant_min, weights.quant_max
                )
                difference = found - n.target(inputs, rounded, *others, **options)
                lost.setdefault(n.args[2].target, []).append(difference.transpose(0, 1).flatten(1).mean(1))
            return found

    observer = Observer(observed)
    for photo in photos:
        observer.run(photo)
    for name, differences in lost.items():
        bias: Any = observer.fetch_attr(name)
        bias.add_(torch.stack(differences).mean(0))


def _weight_names(observed: fx.GraphModule) -> dict[str, str]:
    """Names of weights, which quantising loses, by name of the convolution or FC layer's node."""
    found = {}
    nodes: list[Any] = list(observed.graph.nodes)
    for node in nodes:
        if str(node.target) in _SUMS:
            source = node.args[1]
            while source.op != "get_attr":
                source = source.args[0]
            found[node.name] = source.target
    return found


def _emulated(integers: fx.GraphModule, names: dict[str, str]) -> nn.Module:
    """The same graph with float32 on a grid in place of each integer."""
    root = nn.Module()
    graph = fx.Graph()
    new: dict[Any, fx.Node] = {}
    steps = _weight_steps(integers)

    def constant(name: str, value: Tensor) -> fx.Node:
        # Several nodes may read the same tensor.
        if name not in dict(root.named_buffers()):
            _put(root, name, value)
        return graph.get_attr(name)

    nodes: list[Any] = list(integers.graph.nodes)  # arguments of a node can be almost anything
    for node in nodes:
        kind = str(node.target)
        if node.op == "placeholder":
            new[node] = graph.placeholder(node.name)
        elif node.op == "output":
            graph.output(new[node.args[0][0]])
        elif node.op == "get_attr" or kind == _WEIGHT:
            # Added at its use, under the name of its layer.
            continue
        elif kind == _TO_GRID:
            x, step, zero, low, high, *_ = node.args
            to_grid = _mean_on_grid if str(x.target) in _MEANS else _on_grid
            new[node] = graph.call_function(to_grid, (new[x], step, zero, low, high))
        elif kind == _FROM_GRID:
            levels, step, zero, *_ = node.args
            if levels in new:
                new[node] = new[levels]
            else:
                value = (_tensor(integers, levels).to(torch.float32) - zero) * step
                new[node] = constant(f"{node.name}.value", value)
        elif kind.startswith(_NAMESPACE):
            raise NotExportable(f"the backbone cannot be quantised: nothing emulates {kind} of node {node.name!r}")
        else:
            layer = (names.get(node.name) or f"{node.name}.weight").removesuffix("weight")
            replaced: dict[Any, fx.Node] = {}
            for place, source in enumerate(node.all_input_nodes):
                if source in new:
                    replaced[source] = new[source]
                elif source in steps:
                    replaced[source] = constant(layer + "weight", _weight(integers, source))
                else:
                    value = _tensor(integers, source)
                    is_bias = kind in _SUMS and len(node.args) > 2 and node.args[2] is source
                    if is_bias and str(node.args[0].target) == _FROM_GRID and node.args[1] in steps:
                        step = torch.tensor(node.args[0].args[1], dtype=torch.float32) * steps[node.args[1]]
                        value = torch.round(value / step) * step
                    name = layer + "bias" if is_bias else f"{node.name}.{place}"
                    replaced[source] = constant(name, value)
            new[node] = graph.node_copy(node, replaced.__getitem__)
    graph.lint()
    return fx.GraphModule(root, graph).eval()


def _on_grid(x: Tensor, step: float, zero: int, low: int, high: int) -> Tensor:
    levels = (torch.round(x * (1.0 / step)) + zero).clamp(low, high)
    return (levels - zero) * step


def _mean_on_grid(x: Tensor, step: float, zero: int, low: int, high: int) -> Tensor:
    # One mean of four levels in four lies exactly between two levels, and rounding errors must not decide it. XNNPACK
    # takes the even level, counted with the zero point; elsewhere levels are counted without it.
    finer = torch.round(x * (_FINER / step)) * (1.0 / _FINER)
    levels = torch.round(finer + zero).clamp(low, high)
    return (levels - zero) * step


def _weight_steps(integers: fx.GraphModule) -> dict[fx.Node, Tensor]:
    nodes: list[Any] = list(integers.graph.nodes)
    return {node: _tensor(integers, node.args[1]) for node in nodes if str(node.target) == _WEIGHT}


def _weight(integers: fx.GraphModule, node: Any) -> Tensor:
    levels, steps, zeros, axis = (
        _tensor(integers, source) if isinstance(source, fx.Node) else source for source in node.args[:4]
    )
    shape = [-1 if i == axis else 1 for i in range(levels.dim())]
    return (levels.to(torch.float32) - zeros.reshape(shape).to(torch.float32)) * steps.reshape(shape)


def _tensor(module: nn.Module, node: fx.Node) -> Tensor:
    found: Tensor = attrgetter(str(node.target))(module)
    return found.detach().clone()


def _put(root: nn.Module, name: str, tensor: Tensor) -> None:
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.register_buffer(last, tensor)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread, so that sums have the same order, and ranges the same values, on each machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
