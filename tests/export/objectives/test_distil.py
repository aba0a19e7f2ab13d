"""Distillation from a teacher's scores, in each of its kinds, against torch's own losses and at the edges."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedlens_export.objectives import cross_entropy, distil
from fedlens_export.objectives.objective import Batch, Objective, Outcome
from tests.export.objectives.worked import outcome, seeded, whole

ROWS, LABELS = seeded(5, 3), torch.zeros(5, dtype=torch.int64)
WEIGHTS = {"weight": seeded(4, 3, seed=1)}
LOGITS = ROWS @ WEIGHTS["weight"].T
SCORES = seeded(5, 4, seed=2)
SHARES = torch.softmax(SCORES, 1)
KINDS = [distil.DIVERGENCE, distil.PROBABILITIES, distil.SCORES, distil.SCORES_SQUARED]


def taught(objective: Objective, teacher: Tensor, batch: Batch | None = None) -> Outcome:
    (program,) = objective.trains
    given = batch or whole(ROWS, LABELS)
    return outcome(program.objective, WEIGHTS, given, {"teacher": {"scores": teacher}}, temperature=10.0)


@pytest.mark.parametrize(
    ("objective", "teacher", "expected"),
    [
        # The authors' mean is over all of 5 rows and 4 classes.
        (
            distil.DIVERGENCE,
            SHARES,
            functional.kl_div(functional.log_softmax(LOGITS / 10, 1), SHARES, reduction="sum") / 20,
        ),
        (distil.PROBABILITIES, SHARES, functional.mse_loss(torch.softmax(LOGITS, 1), SHARES)),
        (distil.SCORES, SCORES, functional.l1_loss(LOGITS, SCORES)),
        (distil.SCORES_SQUARED, SCORES, functional.mse_loss(LOGITS, SCORES)),
    ],
)
def test_each_kind_is_torchs_loss(objective: Objective, teacher: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(taught(objective, teacher).loss, expected)


def test_a_teacher_of_zeros_and_negative_numbers_gives_a_finite_loss_that_is_linear_in_it() -> None:
    teacher = SHARES.clone()
    teacher[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    teacher[1] = torch.tensor([1.2, -0.2, 0.1, 0.0])

    found = taught(distil.DIVERGENCE, teacher)
    entropy = torch.where(teacher > 0, teacher * torch.log(teacher.clamp(min=1e-300)), 0.0)

    torch.testing.assert_close(found.loss, (entropy - teacher * functional.log_softmax(LOGITS / 10, 1)).mean())
    assert found.gradients["weight"].isfinite().all()


@pytest.mark.parametrize(
    ("objective", "agreeing"),
    [
        (distil.DIVERGENCE, torch.softmax(LOGITS / 10, 1)),
        (distil.PROBABILITIES, torch.softmax(LOGITS, 1)),
        (distil.SCORES, LOGITS),
        (distil.SCORES_SQUARED, LOGITS),
    ],
)
def test_a_model_that_agrees_with_its_teacher_stays(objective: Objective, agreeing: Tensor) -> None:
    found = taught(objective, agreeing)

    assert found.loss.item() == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(found.gradients["weight"], torch.zeros(4, 3, dtype=torch.float64))


@pytest.mark.parametrize("objective", KINDS)
def test_rows_of_padding_take_no_part_whatever_their_teacher(objective: Objective) -> None:
    padded = Batch(ROWS.clone(), LABELS, torch.tensor([1.0, 1, 0, 0, 0], dtype=torch.float64))
    padded.inputs[2:] = torch.nan
    teacher = SHARES.clone()
    teacher[2:] = torch.nan

    found = taught(objective, teacher, padded)
    alone = taught(objective, SHARES[:2], whole(ROWS[:2], LABELS[:2]))

    torch.testing.assert_close(found.loss, alone.loss)
    torch.testing.assert_close(found.gradients, alone.gradients)


@pytest.mark.parametrize("objective", KINDS)
def test_beside_it_a_step_minimises_cross_entropy(objective: Objective) -> None:
    batch = whole(ROWS, torch.tensor([0, 1, 2, 3, 0]))

    found, expected = (outcome(each, WEIGHTS, batch) for each in (objective, cross_entropy.OBJECTIVE))

    assert torch.equal(found.loss, expected.loss)
