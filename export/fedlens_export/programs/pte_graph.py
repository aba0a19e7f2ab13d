"""Rewriting of traced programs for ExecuTorch: the same numbers up to rounding, without operations that are slow there.

In torch a transposition is a view, and a fused operator saves temporaries. ExecuTorch copies the tensor for a
transposition, decomposes fused operators into more operators than needed, sums slowly, and needs another pass over a
product to scale it. For weights this is most of a step's time.
"""

from math import prod

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten

_SAME_ORDER = (aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default)
_MOVES = (*_SAME_ORDER, aten.permute.default, aten.t.default)


def rewritten(program: ExportedProgram) -> GraphModule:
    """The rewritten function of a traced program, over the same flat inputs; the program itself does not change."""
    graph = Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if node.target == aten.addcmul.default:
            _take_apart(graph, node)
        elif node.target == aten.t.default and (twice := _transposed(node.args[0])) is not None:
            node.replace_all_uses_with(twice)
        elif node.target == aten.bmm.default:
            _turn(graph, node)
        elif node.target == aten.sum.dim_IntList:
            _sum_rows(graph, node)
    graph.eliminate_dead_code()  # replaced nodes would count as users
    for node in graph.nodes:
        if node.target == aten.mul.Tensor:
            _scale_early(graph, node)
    for node in graph.nodes:
        if node.target in _SAME_ORDER and "val" in node.meta:
            # XNNPACK runs views itself; these operators would split its graph in two, with copies between.
            node.target, node.args = aten.view.default, (node.args[0], list(node.meta["val"].shape))
    graph.eliminate_dead_code()
    graph.lint()
    return GraphModule(program.graph_module, graph)


def _take_apart(graph: Graph, node: Node) -> None:
    """Write `addcmul` as `a + value * b * c`, without the product if the value is 1 or -1."""
    value = node.kwargs.get("value", 1)
    total, left, right = node.args
    with graph.inserting_before(node):
        product = _like(node, graph.call_function(aten.mul.Tensor, (left, right)))
        if value not in (1, -1):
            product = graph.call_function(aten.mul.Tensor, (product, value))
        combine = aten.sub.Tensor if value == -1 else aten.add.Tensor
        replacement = graph.call_function(combine, (total, product))
    _replace(node, replacement)


def _turn(graph: Graph, node: Node) -> None:
    """Write `x w^T` as `(w x^T)^T` if x is smaller than w, so that x is copied and packed, not w."""
    rows, weights = (_row(argument) for argument in node.args)
    if rows is None or weights is None or (weights := _transposed(weights)) is None or _size(rows) >= _size(weights):
        return
    with graph.inserting_before(node):
        turned = graph.call_function(aten.unsqueeze.default, (graph.call_function(aten.t.default, (rows,)), 0))
        first = graph.call_function(aten.unsqueeze.default, (weights, 0))
        product = graph.call_function(aten.bmm.default, (first, turned))
        replacement = graph.call_function(aten.permute.default, (product, [0, 2, 1]))
    _replace(node, replacement)


def _sum_rows(graph: Graph, node: Node) -> None:
    """Write the sums of a matrix's rows as its product with ones: XNNPACK has no sum, and portable kernels are slow."""
    matrix, dimensions, *keep = node.args
    if not isinstance(matrix, Node) or dimensions != [-1] or any(keep) or node.kwargs:
        return
    value = matrix.meta["val"]
    if value.ndim != 2 or value.dtype != torch.float32:
        return
    rows, columns = value.shape
    with graph.inserting_before(node):
        ones = graph.call_function(aten.full.default, ([1, columns, 1], 1.0))
        image = graph.call_function(aten.view.default, (matrix, [1, rows, columns]))
        product = graph.call_function(aten.bmm.default, (image, ones))
        _replace(node, graph.call_function(aten.view.default, (product, [rows])))


def _scale_early(graph: Graph, node: Node) -> None:
    """Write `s (x y + m d)` as `(s x) y + (s m) d` if x is smaller than the product and m is a number.

    The results are equal for an s of 1 or 0, which turns the training of a role on or off.
    """
    value, factor = node.args
    if isinstance(factor, Node) and _is_number(factor) and isinstance(value, Node) and _takes_factor(value):
        with graph.inserting_before(node):
            _replace(node, _times(graph, value, factor))


def _takes_factor(node: Node) -> bool:
    """True if scaling the node's inputs costs less than scaling its output."""
    if len(node.users) > 1:
        return False
    if node.target in (aten.add.Tensor, aten.sub.Tensor):
        return all(isinstance(part, Node) and _takes_factor(part) for part in node.args)
    if node.target == aten.mul.Tensor:
        return _is_number(node.args[1])
    if node.target in _MOVES:
        return isinstance(node.args[0], Node) and _takes_factor(node.args[0])
    return node.target == aten.bmm.default and min(map(_size, node.all_input_nodes)) < _size(node)


def _times(graph: Graph, node: Node, factor: Node) -> Node:
    """A new node for the product of a node and a factor; it descends as `_takes_factor` does."""
    args = list(node.args)
    parts = [argument for argument in args if isinstance(argument, Node)]
    if node.target in (aten.add.Tensor, aten.sub.Tensor):
        args = [_times(graph, part, factor) for part in parts]
    elif node.target == aten.mul.Tensor:
        args[1] = _like(factor, graph.call_function(aten.mul.Tensor, (args[1], factor)))
    elif node.target in _MOVES:
        args[0] = _times(graph, parts[0], factor)
    else:
        smaller = min(parts, key=_size)
        args[parts.index(smaller)] = _like(smaller, graph.call_function(aten.mul.Tensor, (smaller, factor)))
    assert callable(node.target)
    return _like(node, graph.call_function(node.target, tuple(args), dict(node.kwargs)))


def _is_number(argument: object) -> bool:
    return isinstance(argument, Node) and "val" in argument.meta and argument.meta["val"].ndim == 0


def _row(argument: object) -> Node | None:
    """The input of `unsqueeze(0)`; None for any other argument."""
    if isinstance(argument, Node) and argument.target == aten.unsqueeze.default and argument.args[1] == 0:
        return argument.args[0] if isinstance(argument.args[0], Node) else None
    return None


def _transposed(argument: object) -> Node | None:
    """The input of a transposition; None for any other argument."""
    if isinstance(argument, Node) and argument.target == aten.t.default and isinstance(argument.args[0], Node):
        return argument.args[0]
    return None


def _size(node: Node) -> int:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return prod(value.shape)


def _replace(node: Node, replacement: Node) -> None:
    node.replace_all_uses_with(_like(node, replacement))


def _like(node: Node, made: Node) -> Node:
    made.meta["val"] = node.meta["val"]
    return made
