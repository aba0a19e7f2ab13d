"""The worked cases that objectives are checked with, where they are beside the repository, and models for them."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlens_export.network import Tensors
from fedlens_export.objectives.objective import Batch, Objective, Outcome

SHARED = Path(__file__).parents[4] / "shared"


def golden(case: str) -> tuple[dict[str, Tensor], Callable[[Any, Any], None]]:
    """A worked case, float64, and a comparison within its own tolerance."""
    path = next(SHARED.glob(f"golden*/{case}.npz"), None)
    if path is None:
        pytest.skip("the worked cases are not beside the repository")
    arrays = np.load(path)
    meta = json.loads(str(arrays["meta_json"]))
    tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files if name != "meta_json"}

    def close(found: Any, expected: Any) -> None:
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=meta["rtol"], atol=meta["atol"])

    return tensors, close


class Regression:
    """Softmax regression by `weight` [C, F] and, if there is one, `bias` [C]; its features are its rows."""

    def __call__(self, trained: Tensors, rows: Tensor) -> tuple[Tensor, Tensors]:
        return self.classify(trained, rows), {}

    def with_features(self, trained: Tensors, rows: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        return rows, self.classify(trained, rows.relu()), {}

    def frozen_features(self, reference: Tensors, rows: Tensor) -> Tensor:
        return rows @ reference["shift"]

    def classify(self, trained: Tensors, features: Tensor) -> Tensor:
        return features @ trained["weight"].T + trained.get("bias", torch.zeros(()))


def outcome(
    objective: Objective,
    weights: Tensors,
    batch: Batch,
    references: Mapping[str, Tensors] = {},
    **hyper: float | Tensor,
) -> Outcome:
    """An objective's outcome for softmax regression."""
    return objective.gradients(
        Regression(), weights, batch, references, {name: torch.as_tensor(value) for name, value in hyper.items()}
    )


def whole(rows: Tensor, labels: Tensor) -> Batch:
    """A batch without padding."""
    return Batch(rows, labels, torch.ones(len(rows), dtype=rows.dtype))


def seeded(*shape: int, seed: int = 4) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
