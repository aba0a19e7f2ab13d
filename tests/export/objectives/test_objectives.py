"""Objectives against the worked cases, against torch's own differentiation, and at the edges."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlens_export.objectives import proximal, supcon
from tests.export.objectives.worked import golden

PULLS = [proximal.squared, proximal.distance, proximal.mean_squared]


def contrast(
    features: Tensor,
    labels: Tensor,
    *,
    mask: Tensor | None = None,
    temperature: float = 0.07,
    base: float = 0.07,
    normalised: bool = True,
) -> tuple[float, Tensor]:
    """SupCon's value and its gradient by the features [B, V, F]."""
    leaf = features.detach().clone().requires_grad_()
    value = supcon.loss(
        leaf.transpose(0, 1).flatten(0, 1),
        labels,
        torch.ones(len(labels)) if mask is None else mask,
        torch.tensor(temperature, dtype=features.dtype),
        torch.tensor(base, dtype=features.dtype),
        normalised=normalised,
    )
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.item(), gradient


def naive(features: Tensor, labels: Tensor, temperature: float, base: float) -> float:
    """Khosla et al., Equation 2, written out over pairs in float64, with rows that have positives."""
    rows = [(features[i, v].double(), int(labels[i])) for i in range(len(labels)) for v in range(features.shape[1])]
    terms = []
    for i, (row, label) in enumerate(rows):
        others = [(float(row @ other) / temperature, c) for j, (other, c) in enumerate(rows) if j != i]
        total = float(torch.logsumexp(torch.tensor([s for s, _ in others], dtype=torch.float64), 0))
        positive = [s - total for s, c in others if c == label]
        terms += [-temperature / base * sum(positive) / len(positive)] if positive else []
    return sum(terms) / len(terms)


def seeded(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(4), dtype=torch.float32)


def test_the_worked_case_of_supcon() -> None:
    case, close = golden("fedclassavg_04_supcon")
    features, labels = case["in_features"], case["in_labels"]
    temperature, base = case["in_temperature"].item(), case["in_base_temperature"].item()

    value, gradient = contrast(features, labels, temperature=temperature, base=base, normalised=False)
    single, _ = contrast(features.float(), labels, temperature=temperature, base=base, normalised=False)
    unscaled, _ = contrast(features, labels, temperature=temperature, base=temperature, normalised=False)
    normalised, _ = contrast(features, labels)

    close(value, case["out_loss"])
    close(gradient, case["out_grad_features"])
    close(single, case["out_loss_reference_float32"])
    close(unscaled, case["alt_base_equals_temperature_loss"])
    close(normalised, case["alt_normalised_T007_loss"])


def test_the_worked_case_of_the_classifiers_pull() -> None:
    case, close = golden("fedclassavg_09_proximal")
    mu = case["in_mu"]
    weights = {"weight": case["in_weight"], "bias": case["in_bias"]}
    difference = proximal.differences(weights, {"weight": case["in_global_weight"], "bias": case["in_global_bias"]})

    code, paper = proximal.mean_squared(difference, mu), proximal.distance(difference, mu)

    close(code.value, case["out_code_value"])
    close(paper.value, case["out_paper_value"])
    for name in weights:
        close(code.slopes[name] * difference[name], case[f"out_code_grad_{name}"])
        close(paper.slopes[name] * difference[name], case[f"out_paper_grad_{name}"])


@pytest.mark.parametrize("pull", PULLS)
def test_a_pulls_slopes_are_its_derivative(pull: Callable[[dict[str, Tensor], Tensor], proximal.Pull]) -> None:
    leaf = {"a": seeded(3, 2).requires_grad_(), "b": (2 * seeded(4)).requires_grad_()}

    found = pull(dict(leaf), torch.tensor(0.3))
    expected = torch.autograd.grad(found.value, list(leaf.values()))

    for (name, value), gradient in zip(leaf.items(), expected, strict=True):
        torch.testing.assert_close(found.slopes[name].detach() * value.detach(), gradient)


@pytest.mark.parametrize("pull", PULLS)
def test_nothing_pulls_at_distance_zero(pull: Callable[[dict[str, Tensor], Tensor], proximal.Pull]) -> None:
    found = pull({"a": torch.zeros(3, 2), "b": torch.zeros(4)}, torch.tensor(0.3))

    assert found.value.item() == 0
    assert all((slope * torch.zeros(2)).tolist() == [0, 0] for slope in found.slopes.values())


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("labels", [[0, 0, 1, 2], [0, 1, 2, 3], [1, 1, 1, 1]])
@pytest.mark.parametrize("temperature", [0.07, 0.5, 100.0])
def test_supcon_is_the_papers_sum_over_pairs(labels: list[int], temperature: float, views: int) -> None:
    features, classes = seeded(4, views, 5), torch.tensor(labels)
    units = features / features.norm(dim=-1, keepdim=True)

    normalised, _ = contrast(features, classes, temperature=temperature)
    raw, _ = contrast(features, classes, temperature=temperature, normalised=False)

    assert normalised == pytest.approx(naive(units, classes, temperature, 0.07), rel=1e-5)
    assert raw == pytest.approx(naive(features, classes, temperature, 0.07), rel=1e-5)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("norm", [1e-4, 100.0, 5000.0])
def test_no_length_of_features_gives_a_nan(norm: float, normalised: bool) -> None:
    directions = seeded(6, 2, 8)
    features = norm * directions / directions.norm(dim=-1, keepdim=True)

    labels, temperature = torch.tensor([0, 0, 1, 1, 2, 3]), 0.07 if normalised else 100.0
    value, gradient = contrast(features, labels, temperature=temperature, normalised=normalised)

    assert np.isfinite(value)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("normalised", [True, False])
def test_features_of_zero_give_no_nan(normalised: bool) -> None:
    # All similarities are 0: each of 4 rows has 3 others, and each log-probability is -log 3.
    value, gradient = contrast(torch.zeros(2, 2, 3), torch.tensor([0, 1]), normalised=normalised)

    assert value == pytest.approx(np.log(3), rel=1e-6)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(
    ("labels", "real", "views"),
    [
        ([0, 1, 2], 3, 1),  # no row has a positive
        ([0, 0, 0], 0, 2),
        ([0, 0, 0], 1, 1),
        ([0, 0, 0], 1, 2),  # a photo alone: its other view is the only other row, with probability 1
    ],
)
def test_a_batch_that_leaves_nothing_to_tell_apart_gives_nothing(
    labels: list[int], real: int, views: int, normalised: bool
) -> None:
    mask = (torch.arange(3) < real).float()

    value, gradient = contrast(seeded(3, views, 4), torch.tensor(labels), mask=mask, normalised=normalised)

    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("normalised", [True, False])
def test_rows_of_padding_leave_supcon_as_it_is(normalised: bool) -> None:
    features, labels = seeded(5, 2, 4), torch.tensor([0, 1, 0, 0, 1])
    mask = torch.tensor([1.0, 1, 1, 0, 0])

    value, gradient = contrast(features, labels, mask=mask, normalised=normalised)
    alone, expected = contrast(features[:3], labels[:3], normalised=normalised)

    assert value == pytest.approx(alone, rel=1e-6)
    torch.testing.assert_close(gradient[:3], expected)
    assert not gradient[3:].any()
