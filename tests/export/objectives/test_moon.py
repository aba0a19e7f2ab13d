"""MOON's contrast against its worked case, against the formula of its gradient, and where there is no direction."""

import math

import pytest
import torch
from torch import Tensor

from fedlens_export.objectives import cross_entropy, moon
from fedlens_export.objectives.objective import Batch
from tests.export.objectives.worked import golden, outcome, seeded, whole


def contrast(features: Tensor, positive: Tensor, *negatives: Tensor, tau: float = 0.5) -> tuple[Tensor, Tensor]:
    """The loss of each row, and the gradient of their sum by the features."""
    leaf = features.clone().requires_grad_()
    found = moon.row_losses(leaf, positive, negatives, torch.tensor(tau, dtype=features.dtype))
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    return found.detach(), gradient


def test_the_worked_case() -> None:
    case, close = golden("moon_01_contrast")
    mu, tau = case["in_mu"].item(), case["in_temperature"].item()
    features, positive = case["in_features"], case["in_features_global"]

    found, gradient = contrast(features, positive, *case["in_features_previous"], tau=tau)

    close(found, case["out_row_losses"])
    close(mu * found.mean(), case["out_loss"])
    close(mu * gradient / len(features), case["out_grad_features"])


def test_the_gradient_is_that_of_the_paper_with_any_number_of_previous_models() -> None:
    features, *others = (seeded(4, 5, seed=seed) for seed in range(4))
    tau = 0.3

    _, gradient = contrast(features, *others, tau=tau)

    units = [other / other.norm(dim=1, keepdim=True) for other in others]
    norm = features.norm(dim=1, keepdim=True)
    cosines = [(features / norm * unit).sum(1, keepdim=True) for unit in units]
    shares = torch.softmax(torch.cat(cosines, 1) / tau, 1)
    # (1/tau) sum_j (p_j - [j = glob]) (u_j - cos_j z/|z|) / |z|
    terms = [
        (shares[:, j : j + 1] - float(j == 0)) * (unit - cosine * features / norm) / norm
        for j, (unit, cosine) in enumerate(zip(units, cosines, strict=True))
    ]
    torch.testing.assert_close(gradient, sum(terms, torch.zeros(())) / tau)


def test_where_nothing_was_kept_the_contrast_is_ln_2_and_draws_nowhere() -> None:
    reference = seeded(3, 5).float()

    found, gradient = contrast(seeded(3, 5, seed=1).float(), reference, reference)

    torch.testing.assert_close(found, torch.full((3,), math.log(2)))
    assert not gradient.any()


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_vector_of_zeros_has_cosine_0_and_a_finite_gradient(zero: int) -> None:
    given = [seeded(3, 5, seed=seed).float() for seed in range(3)]
    given[zero][1] = 0.0
    directions = [tensor[1] / max(tensor[1].norm().item(), 1e-9) for tensor in given]
    cosines = [float(directions[0] @ other) for other in directions[1:]]

    found, gradient = contrast(given[0], given[1], given[2])

    # -log of a share of two is the softplus of their difference.
    assert found[1].item() == pytest.approx(math.log1p(math.exp((cosines[1] - cosines[0]) / 0.5)), rel=1e-5)
    assert gradient.isfinite().all()
    assert zero != 0 or not gradient[1].any()


@pytest.mark.parametrize("length", [1e-25, 1e-12, 1e15])
def test_no_length_of_features_gives_a_nan(length: float) -> None:
    found, gradient = contrast(length * seeded(3, 5).float(), seeded(3, 5, seed=1).float(), seeded(3, 5).float())

    assert found.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("length", [1e-12, 1e-3, 1e15])
def test_lengths_of_features_do_not_matter(length: float) -> None:
    given = [seeded(3, 5, seed=seed).float() for seed in range(3)]

    found, _ = contrast(*(length * tensor for tensor in given))

    torch.testing.assert_close(found, contrast(*given)[0])


def test_rows_of_padding_take_no_part() -> None:
    rows, labels = seeded(4, 3), torch.tensor([0, 1, 1, 0])
    references = {"global": {"shift": seeded(3, 3, seed=1)}, "previous": {"shift": seeded(3, 3, seed=2)}}
    weights = {"weight": seeded(2, 3, seed=3)}
    padded = Batch(rows.clone(), labels, torch.tensor([1.0, 1, 0, 0], dtype=torch.float64))
    padded.inputs[2:] = torch.nan

    found = outcome(moon.OBJECTIVE, weights, padded, references, mu=2.0, tau=0.5)
    alone = outcome(moon.OBJECTIVE, weights, whole(rows[:2], labels[:2]), references, mu=2.0, tau=0.5)

    torch.testing.assert_close(found.loss, alone.loss)
    torch.testing.assert_close(found.gradients, alone.gradients)


def test_the_contrast_adds_mu_times_its_mean_to_cross_entropy() -> None:
    rows, batch = seeded(4, 3), whole(seeded(4, 3), torch.tensor([0, 1, 1, 0]))
    shifts = [seeded(3, 3, seed=1), seeded(3, 3, seed=2)]
    references = {"global": {"shift": shifts[0]}, "previous": {"shift": shifts[1]}}
    weights = {"weight": seeded(2, 3, seed=3)}

    found = outcome(moon.OBJECTIVE, weights, batch, references, mu=2.0, tau=0.5)

    logits = rows.relu() @ weights["weight"].T
    rowwise, _ = contrast(rows, rows @ shifts[0], rows @ shifts[1])
    torch.testing.assert_close(found.loss, cross_entropy.mean(logits, batch.labels, batch.mask) + 2 * rowwise.mean())
