"""FedProto's pull to the classes' mean features, by hand and at the edges."""

import pytest
import torch
from torch import Tensor

from fedlens_export.objectives import cross_entropy, prototypes
from fedlens_export.objectives.objective import Batch, Outcome
from tests.export.objectives.worked import outcome, seeded, whole

ROWS, LABELS = seeded(4, 3), torch.tensor([0, 1, 2, 1])
WEIGHTS = {"weight": seeded(3, 3, seed=1)}
TABLE = seeded(3, 3, seed=2)


def stepped(batch: Batch, has: list[float], table: Tensor = TABLE, strength: float = 1.0) -> Outcome:
    references = {"prototypes": {"prototypes": table, "has": torch.tensor(has, dtype=torch.float64)}}
    return outcome(prototypes.OBJECTIVE, WEIGHTS, batch, references, **{"lambda": strength})


def test_the_pull_is_the_mean_square_over_rows_and_features() -> None:
    # Rows [1, 2] of class 0 and [3, 0] of class 1; prototypes [0, 0] and [1, 1].
    # Squares: 1 + 4 and 4 + 1; over two features each: 2.5 and 2.5.
    features, table = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.0, 1.0]])

    found = prototypes.row_losses(features, torch.tensor([0, 1]), table, torch.ones(2))

    assert found.tolist() == [2.5, 2.5]


def test_rows_without_a_prototype_add_nothing_and_count_in_the_mean() -> None:
    batch = whole(ROWS, LABELS)
    free = stepped(batch, [1, 0, 1], strength=0.0)

    found = stepped(batch, [1, 0, 1], strength=2.0)

    # Rows 0 and 2, of 4; the features are the rows, after their ReLU.
    squares = (ROWS.relu() - TABLE[LABELS]) ** 2
    torch.testing.assert_close(found.loss - free.loss, 2 * squares[[0, 2]].mean(1).sum() / 4)


@pytest.mark.parametrize("content", [0.0, 5.0, torch.nan])
def test_without_any_prototype_it_is_plain_cross_entropy(content: float) -> None:
    batch = whole(ROWS, LABELS)

    found = stepped(batch, [0, 0, 0], torch.full((3, 3), content, dtype=torch.float64))
    logits = ROWS.relu() @ WEIGHTS["weight"].T

    torch.testing.assert_close(found.loss, cross_entropy.mean(logits, LABELS, batch.mask))
    assert found.gradients["weight"].isfinite().all()


def test_the_gradient_goes_through_the_relu_into_the_features() -> None:
    leaf = ROWS.clone().requires_grad_()

    found = prototypes.row_losses(leaf.relu(), LABELS, TABLE, torch.ones(3, dtype=torch.float64)).sum()
    (gradient,) = torch.autograd.grad(found, leaf)

    # The derivative of (f - p)^2 / 3 is 2 (f - p) / 3 where the feature is above 0.
    torch.testing.assert_close(gradient, torch.where(ROWS > 0, 2 * (ROWS - TABLE[LABELS]) / 3, 0.0))


def test_rows_of_padding_take_no_part() -> None:
    padded = Batch(ROWS.clone(), LABELS, torch.tensor([1.0, 1, 0, 0], dtype=torch.float64))
    padded.inputs[2:] = torch.nan

    found, alone = stepped(padded, [1, 1, 1]), stepped(whole(ROWS[:2], LABELS[:2]), [1, 1, 1])

    torch.testing.assert_close(found.loss, alone.loss)
    torch.testing.assert_close(found.gradients, alone.gradients)
