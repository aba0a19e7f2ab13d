"""Per-FedAvg's steps against the worked case and torch's own differentiation, and with few rows."""

import pytest
import torch
from torch import Tensor

from fedlens_export.network import Tensors
from fedlens_export.objectives import cross_entropy, meta
from fedlens_export.objectives.objective import Batch, Objective, Outcome
from tests.export.objectives.worked import golden, outcome, seeded, whole

WEIGHTS = {"weight": seeded(3, 4, seed=1), "bias": seeded(3, seed=2)}
ROWS, LABELS = seeded(8, 4), torch.tensor([0, 1, 2, 2, 1, 0, 0, 2])
OBJECTIVES = [meta.FIRST_ORDER, meta.EXACT]


def stepped(objective: Objective, batch: Batch, alpha: float = 0.3) -> Outcome:
    return outcome(objective, WEIGHTS, batch, alpha=alpha)


def entropy(weights: Tensors, rows: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(rows @ weights["weight"].T + weights["bias"], labels)


def written_out(first: slice, second: slice, alpha: float, *, exact: bool) -> tuple[Tensor, list[Tensor]]:
    """The loss after a step, and its gradients, by torch's own differentiation."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in WEIGHTS.items()}
    inner = torch.autograd.grad(entropy(leaves, ROWS[first], LABELS[first]), list(leaves.values()), create_graph=exact)
    adapted = {name: leaf - alpha * g for (name, leaf), g in zip(leaves.items(), inner, strict=True)}
    loss = entropy(adapted, ROWS[second], LABELS[second])
    return loss.detach(), list(torch.autograd.grad(loss, list(leaves.values())))


def test_the_worked_case_of_first_order() -> None:
    case, close = golden("perfedavg_01_fo_step")
    weights = {name: case[f"in_{name}"] for name in ("weight", "bias")}
    rows = torch.stack([case["in_x1"], case["in_x2"]], 1).flatten(0, 1)
    labels = torch.stack([case["in_y1"], case["in_y2"]], 1).flatten()

    found = outcome(meta.FIRST_ORDER, weights, whole(rows, labels), alpha=case["in_alpha"])

    close(found.loss, case["out_loss"])
    for name, weight in weights.items():
        close(weight - case["in_beta"] * found.gradients[name], case[f"out_{name}"])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradients_are_those_by_torch_of_odd_rows_after_a_step_on_even_rows(objective: Objective) -> None:
    found = stepped(objective, whole(ROWS, LABELS))
    loss, gradients = written_out(slice(0, 8, 2), slice(1, 8, 2), 0.3, exact=objective is meta.EXACT)

    torch.testing.assert_close(found.loss, loss)
    for name, gradient in zip(WEIGHTS, gradients, strict=True):
        torch.testing.assert_close(found.gradients[name], gradient)


def test_only_the_exact_form_differentiates_through_the_step() -> None:
    first, exact = (stepped(objective, whole(ROWS, LABELS)) for objective in OBJECTIVES)

    assert torch.equal(first.loss, exact.loss)
    assert not torch.allclose(first.gradients["weight"], exact.gradients["weight"], rtol=1e-3)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_without_an_inner_step_it_is_cross_entropy_of_odd_rows(objective: Objective) -> None:
    found = stepped(objective, whole(ROWS, LABELS), alpha=0.0)
    expected = outcome(cross_entropy.OBJECTIVE, WEIGHTS, whole(ROWS[1::2], LABELS[1::2]))

    torch.testing.assert_close(found.gradients, expected.gradients)


# Of 5 rows, 0, 2, 4 are D1 and 1, 3 are D2; a row alone is both.
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("padding", [torch.nan, 7.0])
@pytest.mark.parametrize(
    ("real", "first", "second"),
    [
        (5, slice(0, 5, 2), slice(1, 5, 2)),
        (2, slice(0, 1), slice(1, 2)),
        (1, slice(0, 1), slice(0, 1)),
    ],
)
def test_a_short_batch_still_fills_both(
    real: int, first: slice, second: slice, padding: float, objective: Objective
) -> None:
    batch = Batch(ROWS.clone(), LABELS, (torch.arange(8) < real).double())
    batch.inputs[real:] = padding

    found = stepped(objective, batch)
    loss, gradients = written_out(first, second, 0.3, exact=objective is meta.EXACT)

    torch.testing.assert_close(found.loss, loss)
    for name, gradient in zip(WEIGHTS, gradients, strict=True):
        torch.testing.assert_close(found.gradients[name], gradient)


@pytest.mark.parametrize("count", [1, 5])
def test_a_batch_of_an_odd_number_of_rows_is_no_other(count: int) -> None:
    found = stepped(meta.EXACT, whole(ROWS[:count], LABELS[:count]))
    padded = stepped(meta.EXACT, Batch(ROWS, LABELS, (torch.arange(8) < count).double()))

    torch.testing.assert_close(found.gradients, padded.gradients)
    assert found.logits.shape == (count, 3)


def test_logits_of_even_rows_are_before_the_step_and_of_odd_rows_after_it() -> None:
    found = stepped(meta.FIRST_ORDER, whole(ROWS, LABELS))
    inner = outcome(cross_entropy.OBJECTIVE, WEIGHTS, whole(ROWS[::2], LABELS[::2])).gradients
    adapted = {name: WEIGHTS[name] - 0.3 * inner[name] for name in WEIGHTS}

    torch.testing.assert_close(found.logits[::2], ROWS[::2] @ WEIGHTS["weight"].T + WEIGHTS["bias"])
    torch.testing.assert_close(found.logits[1::2], ROWS[1::2] @ adapted["weight"].T + adapted["bias"])
