"""Lowering of functions over tensors to `.pt2` programs, and loading of such programs."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from fedlens_export.errors import NotExportable
from fedlens_proto import plugins
from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pt2_loading, pt2_values

Function = Callable[..., tuple[Tensor, ...]]

# torch's numbers of reductions.
_EACH, _MEAN = 0, 1


def lower(name: str, function: Function, examples: Sequence[Tensor]) -> bytes:
    """The canonical `.pt2` of `function`, for tensors shaped and typed like `examples`.

    Raises:
        NotExportable: It cannot be traced, or is no program that clients take.
    """
    return save(name, trace(name, function, examples))


def trace(name: str, function: Function, examples: Sequence[Tensor]) -> ExportedProgram:
    """`function` as a graph of operators, for tensors shaped and typed like `examples`.

    Raises:
        NotExportable: It cannot be traced.
    """
    try:
        # torch.export fails for a module that differentiates; tracing first leaves plain operators.
        traced = make_fx(functionalize(function), tracing_mode="fake", decomposition_table=_DECOMPOSITIONS)(*examples)
        program = torch.export.export(_Flat(traced), tuple(examples))
    except Exception as error:  # whatever a foreign model raises while it is traced
        raise NotExportable(f"program {name!r} cannot be traced: {plugins.told(error)}") from error
    program.graph_module.graph.eliminate_dead_code()
    # Otherwise torch stores the examples too, as a pickle.
    program._example_inputs = None
    return program


def save(name: str, program: ExportedProgram) -> bytes:
    """The canonical `.pt2` of a traced function.

    Raises:
        NotExportable: It is no program that clients take: it has another operator, or needs too much memory or work.
    """
    stream = io.BytesIO()
    torch.export.save(program, stream)
    try:
        return pt2_values.vetted(stream.getvalue())
    except ProgramRefused as error:
        raise NotExportable(f"program {name!r} cannot be part of a bundle: {error}") from error


def load(raw: bytes) -> GraphModule:
    """Vet a `.pt2` and load its function.

    Raises:
        ProgramRefused: It is not safe to load.
    """
    function: GraphModule = pt2_loading.load(pt2_values.vetted(raw)).graph_module
    return function


class _Flat(nn.Module):
    """A module, as torch.export needs it, whose arguments are a flat tuple."""

    def __init__(self, traced: nn.Module) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = self.traced(*tensors)
        return result


def _mm(left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left.unsqueeze(0), right.unsqueeze(0)).squeeze(0)


def _addmm(bias: Tensor, left: Tensor, right: Tensor) -> Tensor:
    return _mm(left, right) + bias


def _split(whole: Tensor, size: int, dim: int = 0) -> list[Tensor]:
    starts = range(0, whole.shape[dim], size)
    return [torch.narrow(whole, dim, start, min(size, whole.shape[dim] - start)) for start in starts]


def _slice_backward(gradient: Tensor, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Tensor:
    assert step == 1, step
    after = sizes[dim] - min(end, sizes[dim])
    return torch.constant_pad_nd(gradient, [0, 0] * (len(sizes) - 1 - dim) + [start, after])


def _chosen(scores: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """True at each row's label, bool of the shape of `scores`; nowhere in a row whose label is to be ignored."""
    classes = scores.shape[-1]
    found = target.unsqueeze(-1) == torch.arange(classes)
    return found & (target != ignore_index).unsqueeze(-1) if 0 <= ignore_index < classes else found


def _nll_loss_forward(
    scores: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    chosen = _chosen(scores, target, ignore_index)
    losses = -torch.where(chosen, scores if weight is None else scores * weight, 0.0).sum(-1)
    total = torch.where(chosen, 1.0 if weight is None else weight, 0.0).sum()
    if reduction == _EACH:
        return losses, total
    return losses.sum() / total if reduction == _MEAN else losses.sum(), total


def _nll_loss_backward(
    gradient: Tensor,
    scores: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total: Tensor,
) -> Tensor:
    gradient = -(gradient / total if reduction == _MEAN else gradient).unsqueeze(-1)
    return torch.where(_chosen(scores, target, ignore_index), gradient if weight is None else gradient * weight, 0.0)


# XNNPACK on phones delegates products of two inputs only in their batched form. On a CPU both are equally fast.
_DECOMPOSITIONS: dict[torch._ops.OpOverload[..., Any], Callable[..., Any]] = {
    torch.ops.aten.mm.default: _mm,
    torch.ops.aten.addmm.default: _addmm,
    # So that each result of an operator is one tensor, never a list.
    torch.ops.aten.split.Tensor: _split,
    # Only a second derivative has it, of concatenation; its own decompositions write into a tensor.
    torch.ops.aten.slice_backward.default: _slice_backward,
    # They read and write at each row's label, which the vetting cannot know to be in range. Row by row these give the
    # same bits.
    torch.ops.aten.nll_loss_forward.default: _nll_loss_forward,
    torch.ops.aten.nll_loss_backward.default: _nll_loss_backward,
}
