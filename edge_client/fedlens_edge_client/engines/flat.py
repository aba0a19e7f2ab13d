"""From a vetted graph to Python source that runs it with as little around the arithmetic as possible.

Three things are done that torch's own graph module does not do, none of which changes a bit of the results:

- arguments and results are flat, and each tensor is let go after its last use;
- what depends on nothing that changes from step to step (hyper-parameters) is computed once, by `prepare`;
- an elementwise operator writes over its first argument where nothing reads that any more: intermediate results, and
  arguments that the caller gives away (`donated`), which are weights and moments that the step replaces.

Nothing of the file stands in the source: tensors are numbered, and all else is bound by number.
"""

import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

_aten = torch.ops.aten

_IN_PLACE: dict[Any, Any] = {
    _aten.add.Tensor: _aten.add_.Tensor,
    _aten.addcmul.default: _aten.addcmul_.default,
    _aten.div.Tensor: _aten.div_.Tensor,
    _aten.mul.Tensor: _aten.mul_.Tensor,
    _aten.relu.default: _aten.relu_.default,
    _aten.sub.Tensor: _aten.sub_.Tensor,
}
# Operators whose result shares no memory with an argument; every other one is taken to share it with all of them.
_FRESH = frozenset(
    {
        *_IN_PLACE,
        _aten._adaptive_avg_pool2d.default,
        _aten._adaptive_avg_pool2d_backward.default,
        _aten._log_softmax.default,
        _aten._log_softmax_backward_data.default,
        _aten.abs.default,
        _aten.amax.default,
        _aten.arange.default,
        _aten.bitwise_and.Tensor,
        _aten.bmm.default,
        _aten.cat.default,
        _aten.clamp.default,
        _aten.clone.default,
        _aten.convolution.default,
        _aten.convolution_backward.default,
        _aten.eq.Tensor,
        _aten.exp.default,
        _aten.floor.default,
        _aten.ge.Scalar,
        _aten.gt.Scalar,
        _aten.hardsigmoid.default,
        _aten.hardsigmoid_backward.default,
        _aten.hardswish.default,
        _aten.hardswish_backward.default,
        _aten.log.default,
        _aten.lt.Scalar,
        _aten.max_pool2d_with_indices.default,
        _aten.max_pool2d_with_indices_backward.default,
        _aten.maximum.default,
        _aten.mean.dim,
        _aten.minimum.default,
        _aten.mul.Scalar,
        _aten.native_batch_norm.default,
        _aten.native_batch_norm_backward.default,
        _aten.ne.Tensor,
        _aten.neg.default,
        _aten.nll_loss_backward.default,
        _aten.nll_loss_forward.default,
        _aten.pow.Tensor_Scalar,
        _aten.rsqrt.default,
        _aten.rsub.Scalar,
        _aten.sqrt.default,
        _aten.stack.default,
        _aten.sum.default,
        _aten.sum.dim_IntList,
        _aten.threshold_backward.default,
        _aten.where.self,
    }
)


@dataclass(frozen=True)
class FlatFunction:
    """What a graph became.

    Attributes:
        prepare: From all arguments to what `run` takes behind them; to be called again when a constant one changes.
        run: From all arguments and what `prepare` gave to the results.
    """

    prepare: Callable[..., tuple[Tensor, ...]]
    run: Callable[..., tuple[Tensor, ...]]


def flat_function(graph: fx.Graph, constant: Collection[int] = (), donated: Collection[int] = ()) -> FlatFunction:
    """Compile a graph of operators from aten.

    Args:
        graph: Vetted; its results are a flat tuple.
        constant: Indices of arguments that stay the same over many runs.
        donated: Indices of arguments that `run` may write over.
    """
    arguments = [node for node in graph.nodes if node.op == "placeholder"]
    calls = [node for node in graph.nodes if node.op == "call_function"]
    (returned,) = graph.output_node().args
    steady = {arguments[i] for i in constant}
    for node in calls:
        if all(used in steady for used in node.all_input_nodes):
            steady.add(node)
    hoisted = [node for node in calls if node in steady]
    repeated = [node for node in calls if node not in steady]
    # Of what is computed once only this is needed later.
    handed_on = [node for node in hoisted if any(user not in steady for user in node.users)]
    overwritable = {node for node in repeated if node.target in _FRESH} | {arguments[i] for i in donated}

    source = _Source({node: f"v{i}" for i, node in enumerate([*arguments, *calls])})
    source.function("prepare", arguments, hoisted, handed_on, in_place={})
    source.function("run", [*arguments, *handed_on], repeated, returned, _in_place(repeated, overwritable))
    return FlatFunction(prepare=source.compiled("prepare"), run=source.compiled("run"))


def _in_place(calls: list[fx.Node], overwritable: Collection[fx.Node]) -> dict[fx.Node, Any]:
    """For each call that may write over its first argument, the operator that does."""
    position = {node: i for i, node in enumerate(calls)}
    found = {}
    for node in calls:
        target = _IN_PLACE.get(node.target)
        first = node.args[0] if node.args else None
        if target is None or not isinstance(first, fx.Node) or first not in overwritable:
            continue
        before, after = first.meta["val"], node.meta["val"]
        if (before.shape, before.dtype, before.stride()) != (after.shape, after.dtype, after.stride()):
            continue
        if all(position.get(user, len(calls)) <= position[node] for user in _readers(first, node)):
            found[node] = target
    return found


def _readers(node: fx.Node, writer: fx.Node) -> set[fx.Node]:
    """Everything that reads the memory of `node`, directly or through a view, except through `writer`'s result."""
    readers: set[fx.Node] = set()
    sharing = [node]
    while sharing:
        for user in sharing.pop().users:
            if user not in readers:
                readers.add(user)
                if user is not writer and user.target not in _FRESH:
                    sharing.append(user)
    return readers


class _Source:
    """Python source in the making."""

    def __init__(self, names: dict[fx.Node, str]) -> None:
        self._names = names
        self._bound: dict[str, Any] = {}

    def function(
        self, name: str, arguments: list[fx.Node], calls: list[fx.Node], results: Any, in_place: dict[fx.Node, Any]
    ) -> None:
        """Add a function that makes these calls in this order."""
        last_use = {used: node for node in calls for used in node.all_input_nodes}
        kept = set(results)
        lines = [f"def {name}({', '.join(self._names[node] for node in arguments)}):"]
        for node in calls:
            lines.append(f"{self._names[node]} = {self._call(node, in_place.get(node, node.target))}")
            done = [used for used in node.all_input_nodes if last_use[used] is node and used not in kept]
            lines += [f"del {', '.join(self._names[used] for used in done)}"] if done else []
        lines.append(f"return ({''.join(self._names[node] + ', ' for node in results)})")
        exec(compile("\n    ".join(lines), "<program>", "exec"), self._bound)

    def compiled(self, name: str) -> Callable[..., tuple[Tensor, ...]]:
        """A function that was added."""
        found: Callable[..., tuple[Tensor, ...]] = self._bound[name]
        return found

    def _call(self, node: fx.Node, target: Any) -> str:
        if target is operator.getitem:
            return f"{self._written(node.args[0])}[{self._written(node.args[1])}]"
        # Keywords are those of torch's own operators, to which the loader has matched them.
        keywords = [f"{key}={self._written(value)}" for key, value in node.kwargs.items()]
        called = self._constant(target._op)
        return f"{called}({', '.join([*map(self._written, node.args), *keywords])})"

    def _written(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return self._names[value]
        if isinstance(value, list | tuple) and any(isinstance(item, fx.Node) for item in value):
            return "[" + ", ".join(self._written(item) for item in value) + "]"
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self._bound)}"
        self._bound[name] = value
        return name
