"""FedDyn's objective against the derivative of its loss, and what it is with one of its terms off."""

import torch
from torch import Tensor

from fedlens_export.network import Tensors
from fedlens_export.objectives import cross_entropy, dynamic, proximal
from fedlens_export.objectives.objective import Outcome
from tests.export.objectives.worked import golden, outcome, seeded, whole

BATCH = whole(seeded(6, 3), torch.tensor([0, 1, 1, 0, 1, 1]))
WEIGHTS = {"weight": seeded(2, 3, seed=1), "bias": seeded(2, seed=2)}
GLOBAL = {"weight": seeded(2, 3, seed=3), "bias": seeded(2, seed=4)}
DUAL = {"weight": seeded(2, 3, seed=5), "bias": seeded(2, seed=6)}
ZEROS = {name: torch.zeros_like(tensor) for name, tensor in DUAL.items()}


def stepped(alpha: float, dual: Tensors, weights: Tensors = WEIGHTS) -> Outcome:
    return outcome(dynamic.OBJECTIVE, weights, BATCH, {"global": GLOBAL, "dual": dual}, alpha=alpha)


def test_the_gradient_is_the_derivative_of_the_papers_loss() -> None:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in WEIGHTS.items()}
    names = list(leaves)

    found = stepped(0.3, DUAL)
    loss = torch.nn.functional.cross_entropy(BATCH.inputs @ leaves["weight"].T + leaves["bias"], BATCH.labels)
    loss = loss - sum(((DUAL[name] * leaves[name]).sum() for name in names), torch.zeros(()))
    loss = loss + 0.15 * sum((((leaves[name] - GLOBAL[name]) ** 2).sum() for name in names), torch.zeros(()))

    torch.testing.assert_close(found.loss, loss.detach())
    for name, gradient in zip(names, torch.autograd.grad(loss, list(leaves.values())), strict=True):
        torch.testing.assert_close(found.gradients[name], gradient)


def test_without_a_dual_it_is_the_proximal_objective() -> None:
    found = stepped(0.3, ZEROS)
    expected = outcome(proximal.OBJECTIVE, WEIGHTS, BATCH, {"global": GLOBAL}, mu=0.3)

    assert torch.equal(found.loss, expected.loss)
    assert all(torch.equal(found.gradients[name], expected.gradients[name]) for name in WEIGHTS)


def test_with_alpha_0_and_the_difference_of_control_variates_it_steps_as_scaffold() -> None:
    own, server = DUAL, {name: 0.5 * tensor for name, tensor in GLOBAL.items()}

    found = stepped(0.0, {name: own[name] - server[name] for name in own})
    entropy = outcome(cross_entropy.OBJECTIVE, WEIGHTS, BATCH)

    for name in WEIGHTS:
        torch.testing.assert_close(found.gradients[name], entropy.gradients[name] - own[name] + server[name])


def test_where_a_worked_client_ends_its_dual_is_its_own_gradient() -> None:
    # At a minimum of the objective, grad L - dual + alpha (theta_k - theta) = 0, so the new dual is grad L.
    case, close = golden("feddyn_01_all_take_part")
    alpha, theta, trained = case["in_alpha"], case["in_theta"], case["in_updates"][0]
    gradients: list[Tensor] = []
    for k in range(len(trained)):
        weights, start = {"weight": trained[k].T}, {"weight": theta.T}
        batch = whole(BATCH.inputs, BATCH.labels)
        references = {"global": start, "dual": {"weight": torch.zeros_like(theta.T)}}
        found = outcome(dynamic.OBJECTIVE, weights, batch, references, alpha=alpha)
        entropy = outcome(cross_entropy.OBJECTIVE, weights, batch)
        gradients.append(entropy.gradients["weight"] - found.gradients["weight"])

    # With a dual of 0 the objective adds alpha (theta_k - theta), and the new dual is its negative.
    close(torch.stack(gradients).transpose(1, 2), case["out_dual_after_last"])
