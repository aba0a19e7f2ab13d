"""A traced program written anew for ExecuTorch: the same numbers up to rounding, without what is free only in torch.

In torch a transposition is a view, and a fused operator saves temporaries. ExecuTorch copies the tensor for the first,
and takes the second apart into more operators than needed. For weights that is most of a step's time.
"""

from math import prod

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten


def rewritten(program: ExportedProgram) -> GraphModule:
    """The function of a traced program, as a module over the same flat inputs; the program stays as it is."""
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
    graph.eliminate_dead_code()
    graph.lint()
    return GraphModule(program.graph_module, graph)


def _take_apart(graph: Graph, node: Node) -> None:
    """`a + value * b * c`, where a value of 1 or -1 needs no product."""
    value = node.kwargs.get("value", 1)
    total, left, right = node.args
    with graph.inserting_before(node):
        product = graph.call_function(aten.mul.Tensor, (left, right))
        if value not in (1, -1):
            product = graph.call_function(aten.mul.Tensor, (product, value))
        combine = aten.sub.Tensor if value == -1 else aten.add.Tensor
        replacement = graph.call_function(combine, (total, product))
    _replace(node, replacement)


def _turn(graph: Graph, node: Node) -> None:
    """`x w^T` as `(w x^T)^T`, where x is the smaller one, so that it is x that is copied and packed, not w."""
    rows, weights = (_row(argument) for argument in node.args)
    if rows is None or weights is None or (weights := _transposed(weights)) is None or _size(rows) >= _size(weights):
        return
    with graph.inserting_before(node):
        turned = graph.call_function(aten.unsqueeze.default, (graph.call_function(aten.t.default, (rows,)), 0))
        first = graph.call_function(aten.unsqueeze.default, (weights, 0))
        product = graph.call_function(aten.bmm.default, (first, turned))
        replacement = graph.call_function(aten.permute.default, (product, [0, 2, 1]))
    _replace(node, replacement)


def _row(argument: object) -> Node | None:
    """What was given a batch of one, if anything was."""
    if isinstance(argument, Node) and argument.target == aten.unsqueeze.default and argument.args[1] == 0:
        return argument.args[0] if isinstance(argument.args[0], Node) else None
    return None


def _transposed(argument: object) -> Node | None:
    """What is transposed, if anything is."""
    if isinstance(argument, Node) and argument.target == aten.t.default and isinstance(argument.args[0], Node):
        return argument.args[0]
    return None


def _size(node: Node) -> int:
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return prod(value.shape)


def _replace(node: Node, replacement: Node) -> None:
    replacement.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(replacement)
