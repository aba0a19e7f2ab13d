"""Steps of FedClassAvg's local objective against torch's own differentiation of the whole loss."""

import pytest
import torch
from torch import Tensor, nn

from fedlens_export.models import whole_models
from fedlens_export.network import CENTRED, Network
from fedlens_export.objectives import supcon
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.programs.test_steps import BATCH, CLASSES, Local, classified

RATES = {"lr": 0.1, "momentum": 0.0}


def expected_loss(network: Network, local: Local, *, normalised: bool) -> Tensor:
    """SupCon + cross-entropy of the first view + both pulls, written out on the module itself."""
    hyper = {name: value for (kind, name), value in local.arguments.items() if kind == pb.SLOT_KIND_HYPER}
    # Both views at once, as BatchNorm is to see them.
    features, logits = network.module(local.inputs.transpose(0, 1).flatten(0, 1), with_features=True)
    temperatures = hyper["temperature"], hyper["base_temperature"]
    contrast = supcon.loss(features, local.labels, local.mask, *temperatures, normalised=normalised)
    differences = [
        network.module.get_parameter(name) - local.arguments[pb.SLOT_KIND_REFERENCE, f"global/{name}"]
        for name in ("classifier.weight", "classifier.bias")
    ]
    norm = torch.linalg.vector_norm(torch.cat([d.flatten() for d in differences]))
    mean = (differences[0] ** 2).mean() + (differences[1] ** 2).mean()
    entropy = nn.functional.cross_entropy(logits[:BATCH], local.labels)
    return hyper["contrast"] * contrast + entropy + hyper["rho"] * norm + hyper["mu_mean"] / 2 * mean


@pytest.mark.parametrize(
    ("objective", "contrast", "temperature"), [("supcon", 0.7, 0.2), ("supcon", 0.0, 0.2), ("supcon_raw", 1e-3, 100.0)]
)
def test_a_step_goes_down_the_whole_loss(objective: str, contrast: float, temperature: float) -> None:
    network = classified()
    hyper = {"contrast": contrast, "temperature": temperature, "base_temperature": 0.1, "rho": 0.3, "mu_mean": 2.0}
    local = Local.of(network, objective, "sgd", **hyper, **RATES)

    found = local.run()[pb.SLOT_KIND_LOSS, ""]
    expected = expected_loss(network, local, normalised=objective == "supcon")
    expected.backward()  # type: ignore[no-untyped-call]

    torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)
    for name, parameter in network.module.named_parameters():
        assert parameter.grad is not None
        stepped = parameter.detach() - 0.1 * parameter.grad
        torch.testing.assert_close(local.weight(name), stepped, rtol=1e-4, atol=1e-5)


def test_the_classifiers_pull_alone_is_in_loss_and_gradient() -> None:
    network = classified()
    pulled = Local.of(network, "classifier_proximal", "sgd", rho=0.4, **RATES)
    free = Local.of(classified(), "classifier_proximal", "sgd", rho=0.0, **RATES)
    for local in (pulled, free):
        local.refer(0.5)

    with_term, without = pulled.run(), free.run()

    # 7 * 4 + 4 = 32 differences of 0.5: the norm is sqrt(32) / 2 = 2.828427, each gradient 0.4 * 0.5 / 2.828427.
    difference = with_term[pb.SLOT_KIND_LOSS, ""] - without[pb.SLOT_KIND_LOSS, ""]
    assert difference.item() == pytest.approx(0.4 * 2.828427, rel=1e-5)
    moved = free.weight("classifier.weight") - pulled.weight("classifier.weight")
    torch.testing.assert_close(moved, torch.full((CLASSES, 7), 0.1 * 0.4 * 0.5 / 2.828427), rtol=1e-4, atol=1e-6)
    assert torch.equal(pulled.weight("extractor.weight"), free.weight("extractor.weight"))
    assert not [name for kind, name in pulled.arguments if kind == pb.SLOT_KIND_REFERENCE and "extractor" in name]


@pytest.mark.parametrize("objective", ["supcon", "supcon_raw"])
def test_without_contrast_and_pull_a_step_is_that_of_cross_entropy_on_the_first_view(objective: str) -> None:
    local = Local.of(classified(), objective, contrast=0.0, rho=0.0, mu_mean=0.0)
    alone = Local.of(classified(), "cross_entropy")
    alone.arguments[pb.SLOT_KIND_INPUT, ""] = local.inputs[:, 0].clone()
    alone.arguments[pb.SLOT_KIND_LABEL, ""] = local.labels
    # Nothing that the second view holds may count.
    local.inputs[:, 1] = 1e30

    found, expected = local.run(), alone.run()

    torch.testing.assert_close(found[pb.SLOT_KIND_LOSS, ""], expected[pb.SLOT_KIND_LOSS, ""])
    torch.testing.assert_close(found[pb.SLOT_KIND_LOGITS, ""], expected[pb.SLOT_KIND_LOGITS, ""])
    for name in ("extractor.weight", "classifier.bias"):
        torch.testing.assert_close(local.weight(name), alone.weight(name))


def test_batch_norm_sees_both_views() -> None:
    network = Network(whole_models.build("small_residual", CLASSES, 16, seed=1), (3, 16, 16), CENTRED)
    local = Local.of(network, "supcon", lr=0.05)
    stem = network.module.get_submodule("extractor.layers.0.0")
    both = CENTRED(local.inputs.transpose(0, 1).flatten(0, 1))
    with torch.no_grad():
        expected = 0.1 * stem(both).mean((0, 2, 3))

    local.run()

    torch.testing.assert_close(local.weight("extractor.layers.0.1.running_mean"), expected, rtol=1e-4, atol=1e-6)
    assert local.weight("extractor.layers.0.1.num_batches_tracked").item() == 1
