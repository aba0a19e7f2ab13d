"""Compile a vetted graph into Python source with little overhead around the arithmetic.

Unlike torch's own graph module, and without changing a bit of the results:

- arguments and results are flat, and each tensor is released after its last use;
- `prepare` computes once what depends on constant arguments only, such as hyper-parameters;
- an elementwise operator overwrites its first argument if nothing reads it afterwards: an intermediate result, or an
  argument that the caller donates (weights and moments that the step replaces).

The source contains no text from the file: tensors are numbered, and everything else is bound by number.
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


@dataclass(frozen=True)
class FlatFunction:
    """A compiled graph.

    Attributes:
        prepare: Maps all arguments to the values that `run` takes after them; call it again if a constant changes.
        run: Maps all arguments and the values from `prepare` to the results.
    """

    prepare: Callable[..., tuple[Tensor, ...]]
    run: Callable[..., tuple[Tensor, ...]]


def flat_function(graph: fx.Graph, constant: Collection[int] = (), donated: Collection[int] = ()) -> FlatFunction:
    """Compile a graph of aten operators.

    Args:
        graph: Vetted; its results are a flat tuple.
        constant: Indices of arguments that do not change between runs.
        donated: Indices of arguments that `run` may overwrite.
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
    # The values that `run` needs from `prepare`.
    handed_on = [node for node in hoisted if any(user not in steady for user in node.users)]
    overwritable = {node for node in repeated if not shares_memory(node.target)} | {arguments[i] for i in donated}

    source = _Source({node: f"v{i}" for i, node in enumerate([*arguments, *calls])})
    source.function("prepare", arguments, hoisted, handed_on, in_place={})
    source.function("run", [*arguments, *handed_on], repeated, returned, _in_place(repeated, overwritable))
    return FlatFunction(prepare=source.compiled("prepare"), run=source.compiled("run"))


def shares_memory(target: Any) -> bool:
    """Tell whether the result of a vetted operator may share memory with an argument."""
    # `_unsafe_view` is the only vetted operator that returns a view although its schema does not say so.
    if target in (operator.getitem, _aten._unsafe_view.default):
        return True
    return any(result.alias_info is not None for result in target._schema.returns)


def _in_place(calls: list[fx.Node], overwritable: Collection[fx.Node]) -> dict[fx.Node, Any]:
    """The in-place operator for each call that may overwrite its first argument."""
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
    """All nodes that read the memory of `node`, directly or through a view, except through `writer`'s result."""
    readers: set[fx.Node] = set()
    sharing = [node]
    while sharing:
        for user in sharing.pop().users:
            if user not in readers:
                readers.add(user)
                if user is not writer and user.op != "output" and shares_memory(user.target):
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
        # The loader has matched the keywords to those of torch's own operators.
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
