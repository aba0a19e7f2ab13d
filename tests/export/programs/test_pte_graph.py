from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedlens_export.programs import lowering
from fedlens_export.programs.pte_graph import rewritten

Function = Callable[..., Tensor]


def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.bmm(x.unsqueeze(0), y.unsqueeze(0)).squeeze(0)


CASES: dict[str, Function] = {
    "a scaled product": lambda x, y, s: product(x, y) * s,
    "a scaled sum with a factor of its own": lambda x, y, s: torch.add(product(x, y), product(x, y), alpha=3) * s,
    "a scaled sum of the same": lambda x, y, s: (lambda z: (z + z) * s)(product(x, y)),
    "sums of rows": lambda x, y, s: product(x, y).sum(-1) + s,
    "how many of each row": lambda x, y, s: (product(x, y) > 0).sum(-1) + s,
    "sums of rows in double": lambda x, y, s: product(x, y).sum(-1, dtype=torch.float64) + s,
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_anew_computes_the_same(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    given = (*(torch.randn(shape, generator=generator) for shape in ((8, 3), (3, 8))), torch.tensor(0.5))
    traced = lowering.trace(name, lambda *tensors: (CASES[name](*tensors),), given)

    (found,) = rewritten(traced)(*given)

    torch.testing.assert_close(found, CASES[name](*given))
