"""FedGen's client: drawing of classes, generated rows, and the three terms by hand."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedlens_export.network import Tensors
from fedlens_export.objectives import cross_entropy, generated
from fedlens_export.objectives.generated import HIDDEN, NOISE
from fedlens_export.objectives.objective import Batch, Outcome, Sizes
from tests.export.objectives.worked import outcome, seeded, whole

SIZES = Sizes(classes=3, features=4)
ROWS, LABELS = seeded(5, 4), torch.tensor([0, 2, 1, 2, 0])
WEIGHTS = {"weight": seeded(3, 4, seed=1), "bias": seeded(3, seed=2)}
UNIFORMS = torch.rand(5, 2 * NOISE + 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
COUNTS = torch.tensor([2.0, 0.0, 3.0], dtype=torch.float64)


def generator(**changed: Tensor) -> Tensors:
    shapes = {name: shape(SIZES) for name, shape in generated.GENERATOR.table.items()}
    drawn = {name: 0.3 * seeded(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    given = {"classes": torch.ones(3), "alpha": torch.tensor(0.7), "beta": torch.tensor(0.4), **changed}
    return {**drawn, **{name: tensor.double() for name, tensor in given.items()}}


def stepped(table: Tensors, batch: Batch | None = None, own_classes: float = 0.0) -> Outcome:
    given = batch or Batch(ROWS, LABELS, torch.ones(5, dtype=torch.float64), UNIFORMS)
    references = {"generator": table, "label_counts": {"label_counts": COUNTS}}
    return outcome(generated.OBJECTIVE, WEIGHTS, given, references, own_classes=own_classes)


def written_out(table: Tensors, classes: list[int]) -> tuple[Tensor, Tensor]:
    """The three terms with these drawn classes, and the gradient by the weight, by torch's own functions."""
    weight = WEIGHTS["weight"].clone().requires_grad_()

    def features(noise: Tensor, labels: Tensor) -> Tensor:
        given = torch.cat([noise, functional.one_hot(labels, 3).double()], 1)
        hidden = (given @ table["hidden.weight"].T + table["hidden.bias"]).relu()
        return hidden @ table["output.weight"].T + table["output.bias"]

    def logits(given: Tensor) -> Tensor:
        return given @ weight.T + WEIGHTS["bias"]

    drawn = torch.tensor(classes)
    teacher = torch.softmax(logits(features(UNIFORMS[:, NOISE : 2 * NOISE], LABELS)), 1).detach()
    found = logits(ROWS)
    loss = functional.cross_entropy(found, LABELS)
    loss = loss + table["alpha"] * functional.cross_entropy(logits(features(UNIFORMS[:, :NOISE], drawn)), drawn)
    divergence = functional.kl_div(functional.log_softmax(found, 1), teacher, reduction="batchmean")
    loss = loss + table["beta"] * divergence
    (gradient,) = torch.autograd.grad(loss, weight)
    return loss.detach(), gradient


def test_the_generator_has_the_sizes_of_the_model() -> None:
    shapes = {name: shape(SIZES) for name, shape in generated.GENERATOR.table.items()}

    assert shapes["hidden.weight"] == (HIDDEN, NOISE + 3)
    assert shapes["output.weight"] == (4, HIDDEN)
    assert shapes["alpha"] == ()


def test_a_class_is_drawn_evenly_from_the_available_ones() -> None:
    # Of classes 1 and 3: below a half the first, from a half on the second; a 1 is the last one too.
    found = generated.draw(torch.tensor([0.0, 0.49, 0.5, 0.99, 1.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))

    assert found.argmax(1).tolist() == [1, 1, 3, 3, 3]
    assert found.sum(1).tolist() == [1.0] * 5


def test_where_no_class_is_available_none_is_drawn() -> None:
    assert not generated.draw(torch.tensor([0.0, 0.5, 1.0]), torch.zeros(3)).any()


def test_the_three_terms_and_their_gradient() -> None:
    table = generator()

    found = stepped(table)
    loss, gradient = written_out(table, (UNIFORMS[:, -1] * 3).floor().long().tolist())

    torch.testing.assert_close(found.loss, loss)
    torch.testing.assert_close(found.gradients["weight"], gradient)
    torch.testing.assert_close(found.logits, ROWS @ WEIGHTS["weight"].T + WEIGHTS["bias"])


def test_only_classes_that_the_client_has_are_drawn_if_so_told() -> None:
    table = generator()

    found = stepped(table, own_classes=1.0)
    # Classes 0 and 2.
    loss, _ = written_out(table, [2 * int(uniform >= 0.5) for uniform in UNIFORMS[:, -1]])

    torch.testing.assert_close(found.loss, loss)


def test_classes_that_nobody_has_are_not_drawn() -> None:
    table = generator(classes=torch.tensor([0.0, 1.0, 0.0]))

    loss, _ = written_out(table, [1] * 5)

    torch.testing.assert_close(stepped(table).loss, loss)


@pytest.mark.parametrize("own_classes", [0.0, 1.0])
def test_without_a_generator_it_is_plain_cross_entropy(own_classes: float) -> None:
    found = stepped({name: torch.zeros_like(tensor) for name, tensor in generator().items()}, own_classes=own_classes)
    expected = outcome(cross_entropy.OBJECTIVE, WEIGHTS, whole(ROWS, LABELS))

    assert torch.equal(found.loss, expected.loss)
    assert all(torch.equal(found.gradients[name], expected.gradients[name]) for name in WEIGHTS)


def test_there_is_a_generated_row_for_each_real_one() -> None:
    table, mask = generator(), torch.tensor([1.0, 1, 0, 0, 0], dtype=torch.float64)
    padded = Batch(ROWS.clone(), LABELS, mask, UNIFORMS)
    padded.inputs[2:] = torch.nan

    found = stepped(table, padded)
    alone = stepped(table, Batch(ROWS[:2], LABELS[:2], mask[:2], UNIFORMS[:2]))

    torch.testing.assert_close(found.loss, alone.loss)
    torch.testing.assert_close(found.gradients, alone.gradients)
