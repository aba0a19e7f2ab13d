"""FedRS and FedLC, which change logits by class counts, against their worked cases and at the edges."""

import math

import pytest
import torch
from torch import Tensor

from fedlens_export.objectives import calibrated_logits, cross_entropy, restricted_softmax
from fedlens_export.objectives.objective import Objective, Outcome
from tests.export.objectives.worked import golden, outcome, seeded, whole

ROWS, LABELS, WEIGHT = seeded(6, 3), torch.tensor([0, 2, 2, 0, 0, 2]), seeded(4, 3, seed=1)


def stepped(objective: Objective, counts: list[float] | Tensor, **hyper: float) -> Outcome:
    references = {"label_counts": {"label_counts": torch.as_tensor(counts, dtype=torch.float64)}}
    return outcome(objective, {"weight": WEIGHT}, whole(ROWS, LABELS), references, **hyper)


def entropy() -> Outcome:
    return outcome(cross_entropy.OBJECTIVE, {"weight": WEIGHT}, whole(ROWS, LABELS))


@pytest.mark.parametrize(("soft", "expected"), [(0.0, "out"), (1.0, "alt_code")])
def test_the_worked_case_of_restricted_softmax(soft: float, expected: str) -> None:
    case, close = golden("fedrs_01_restricted_softmax")
    rows, labels, weight = case["in_features"], case["in_y"], case["in_weight"]
    counts, alpha = case["in_class_counts"].double(), case["in_alpha"]
    leaf = rows.clone().requires_grad_()

    scale = restricted_softmax.scale(counts, alpha, torch.tensor(soft))
    logits = scale * (leaf @ weight.T)
    loss = cross_entropy.mean(logits, labels, torch.ones(len(labels), dtype=torch.float64))
    (by_features,) = torch.autograd.grad(loss, leaf)
    found = outcome(
        restricted_softmax.OBJECTIVE,
        {"weight": weight},
        whole(rows, labels),
        {"label_counts": {"label_counts": counts}},
        alpha=alpha,
        soft=soft,
    )

    close(scale, case[f"{expected}_scale"])
    close(logits.detach(), case["out_logits"])
    close(found.loss, case[f"{expected}_loss"])
    close(found.gradients["weight"], case[f"{expected}_grad_weight"])
    close(by_features, case[f"{expected}_grad_features"])


def test_the_soft_scale_falls_with_a_class_share_of_the_most_frequent_one() -> None:
    # With alpha 0.2: 8 of 8 -> 1, 2 of 8 -> 0.2 + 0.8 / 4 = 0.4, 0 of 8 -> 0.2.
    counts = torch.tensor([8.0, 2.0, 0.0])

    soft = restricted_softmax.scale(counts, torch.tensor(0.2), torch.tensor(1.0))
    hard = restricted_softmax.scale(counts, torch.tensor(0.2), torch.tensor(0.0))

    torch.testing.assert_close(soft, torch.tensor([1.0, 0.4, 0.2]))
    torch.testing.assert_close(hard, torch.tensor([1.0, 1.0, 0.2]))


@pytest.mark.parametrize("soft", [0.0, 1.0])
def test_a_client_with_all_classes_alike_has_plain_cross_entropy(soft: float) -> None:
    found, expected = stepped(restricted_softmax.OBJECTIVE, [3, 3, 3, 3], alpha=0.1, soft=soft), entropy()

    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.gradients, expected.gradients)


def test_alpha_0_makes_the_logit_of_an_absent_class_0_and_leaves_it_in_the_sum() -> None:
    found = stepped(restricted_softmax.OBJECTIVE, [3, 0, 3, 0], alpha=0.0, soft=0.0)

    logits = (ROWS @ WEIGHT.T) * torch.tensor([1.0, 0.0, 1.0, 0.0])
    torch.testing.assert_close(found.loss, torch.nn.functional.cross_entropy(logits, LABELS))
    assert not found.gradients["weight"][[1, 3]].any()


@pytest.mark.parametrize("soft", [0.0, 1.0])
def test_counts_of_zero_alone_give_no_nan(soft: float) -> None:
    scale = restricted_softmax.scale(torch.zeros(3), torch.tensor(0.5), torch.tensor(soft))

    torch.testing.assert_close(scale, torch.full((3,), 0.5))


def test_the_worked_case_of_calibrated_logits() -> None:
    case, close = golden("fedlc_01_calibrated")
    leaf = case["in_logits"].clone().requires_grad_()

    margins = calibrated_logits.margins(case["in_class_counts"].double(), case["in_tau"])
    loss = cross_entropy.mean(leaf - margins, case["in_y"], torch.ones(len(leaf), dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss, leaf)

    close(loss.detach(), case["out_loss"])
    close(gradient, case["out_grad_logits"])


def test_an_absent_class_has_a_margin_of_100_tau() -> None:
    # 16^(-1/4) = 1/2, 1e-8^(-1/4) = 100.
    margins = calibrated_logits.margins(torch.tensor([16.0, 1.0, 0.0]), torch.tensor(0.5))

    torch.testing.assert_close(margins, torch.tensor([0.25, 0.5, 50.0]))


def test_without_tau_it_is_plain_cross_entropy() -> None:
    found, expected = stepped(calibrated_logits.OBJECTIVE, [3, 0, 5, 0], tau=0.0), entropy()

    torch.testing.assert_close(found.loss, expected.loss)
    torch.testing.assert_close(found.gradients, expected.gradients)


def test_great_margins_leave_the_loss_finite() -> None:
    found = stepped(calibrated_logits.OBJECTIVE, [3, 0, 5, 0], tau=1000.0)

    # The absent classes, 1 and 3, are out of the sum: 1e5 less.
    logits = (ROWS @ WEIGHT.T)[:, [0, 2]] - 1000 * torch.tensor([3.0, 5.0]).double() ** -0.25
    assert found.loss.item() == pytest.approx(torch.nn.functional.cross_entropy(logits, LABELS // 2).item())
    assert math.isfinite(found.loss.item())
    assert found.gradients["weight"].isfinite().all()


@pytest.mark.parametrize(
    ("objective", "hyper"),
    [(restricted_softmax.OBJECTIVE, {"alpha": 0.5, "soft": 0.0}), (calibrated_logits.OBJECTIVE, {"tau": 1.0})],
)
def test_the_logits_of_a_step_are_the_models(objective: Objective, hyper: dict[str, float]) -> None:
    found = stepped(objective, [3, 0, 5, 0], **hyper)

    torch.testing.assert_close(found.logits, ROWS @ WEIGHT.T)
