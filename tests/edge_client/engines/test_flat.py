"""Graphs as flat functions: bit-equal to torch's own way of running them."""

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fedlens_edge_client.engines.flat import flat_function, shares_memory
from fedlens_proto.programs.pt2_graph import OPERATORS

X = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
Y = torch.tensor([[0.5, 0.25], [2.0, -1.0]])


def chain(x: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """Intermediate results that may be written over, and `y`, which may where it is donated."""
    return (torch.addcmul(y * s, x, s) + x, y * 1)


def early_view(x: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """A view of the doubled `x` is read after it could have been written over."""
    doubled = x * 2
    seen = doubled.t()
    return (doubled + y, seen * s)


def returned_view(x: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    doubled = x * s
    return (doubled.t(), doubled + y)


def broadcast(x: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """The first argument is smaller than the result."""
    return ((s * 2) * x + y,)


def argument_given_back(x: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    return (y, y + x, s)


def view_of_argument(x: Tensor, y: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    seen = y.t()
    moved = y + x
    return (moved, torch.bmm(seen.unsqueeze(0), x.unsqueeze(0)) * s)


FUNCTIONS = [chain, early_view, returned_view, broadcast, argument_given_back, view_of_argument]


def graph_of(function: object) -> fx.Graph:
    return make_fx(function, tracing_mode="fake")(X, Y, torch.tensor(3.0)).graph  # type: ignore[arg-type]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("donated", [(), (1,)])
def test_writing_over_arguments_changes_no_result(function: object, donated: tuple[int, ...]) -> None:
    flat = flat_function(graph_of(function), constant=[2], donated=donated)
    expected = function(X, Y, torch.tensor(3.0))  # type: ignore[operator]
    given = (X.clone(), Y.clone(), torch.tensor(3.0))

    results = flat.run(*given, *flat.prepare(*given))

    assert all(torch.equal(found, wanted) for found, wanted in zip(results, expected, strict=True))
    assert torch.equal(given[0], X)
    assert given[2].item() == 3.0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_argument_that_is_not_given_away_is_not_written_over(function: object) -> None:
    flat = flat_function(graph_of(function))
    given = (X.clone(), Y.clone(), torch.tensor(3.0))

    flat.run(*given, *flat.prepare(*given))

    assert torch.equal(given[1], Y)


def test_what_is_given_away_is_written_over() -> None:
    flat = flat_function(graph_of(lambda x, y, s: (y * s + x,)), donated=[1])
    mine = Y.clone()

    (result,) = flat.run(X, mine, torch.tensor(3.0), *flat.prepare(X, mine, torch.tensor(3.0)))

    assert result.data_ptr() == mine.data_ptr()


def test_what_depends_on_constants_alone_is_computed_once() -> None:
    def scaled(x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        return (x * (s + 1).sqrt(),)

    flat = flat_function(make_fx(scaled, tracing_mode="fake")(X, torch.tensor(3.0)).graph, constant=[1])
    prepared = flat.prepare(X, torch.tensor(3.0))

    # The root of 3 + 1 is there already, and another constant is not looked at any more.
    assert [value.item() for value in prepared] == [2.0]
    assert torch.equal(flat.run(X, torch.tensor(99.0), *prepared)[0], X * 2)


def test_of_the_vetted_operators_those_that_return_views_count_as_sharing_memory() -> None:
    aten = torch.ops.aten
    operators = [getattr(getattr(aten, name), overload) for name, overload in (o.split(".")[-2:] for o in OPERATORS)]

    assert {operator for operator in operators if shares_memory(operator)} == {
        *(aten._unsafe_view.default, aten.detach.default, aten.expand.default, aten.permute.default, aten.select.int),
        *(aten.slice.Tensor, aten.squeeze.dim, aten.t.default, aten.transpose.int, aten.unsqueeze.default),
        aten.view.default,
    }
