"""Local steps against torch's own modules and optimisers, before they are lowered (parity checks the rest)."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from fedlens_export import objectives
from fedlens_export.hyper import Hyper
from fedlens_export.models import whole_models
from fedlens_export.models.classified import Classified
from fedlens_export.network import CENTRED, Network
from fedlens_export.programs import lowering, optimisers, parity, steps
from fedlens_export.programs.steps import ProgramSource
from fedlens_proto.v1 import manifest_pb2 as pb

CLASSES = 4
BATCH = 6


@dataclass
class Local:
    """A step program with its arguments by name, so that a test changes only what it is about."""

    source: ProgramSource
    arguments: dict[tuple[pb.SlotKind, str], Tensor]

    @classmethod
    def of(cls, network: Network, objective: str = "cross_entropy", optimiser: str = "sgd", **hyper: float) -> "Local":
        chosen, rule = objectives.by_name(objective), optimisers.by_name(optimiser)
        source = steps.step(network, chosen, rule, BATCH, CLASSES)
        return cls.running(source, network, steps.hyper(chosen, rule), **hyper)

    @classmethod
    def running(cls, source: ProgramSource, network: Network, scalars: dict[str, Hyper], **hyper: float) -> "Local":
        given = parity.examples(source, {**network.weights, **network.buffers}, scalars, seed=5)
        arguments = {(slot.kind, slot.name): tensor for slot, tensor in zip(source.inputs, given, strict=True)}
        for kind, name in arguments:
            if kind in (pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_COUNTER):
                arguments[kind, name] = torch.zeros_like(arguments[kind, name])
        local = cls(source, arguments)
        for name, value in hyper.items():
            for each in ("lr_extractor", "lr_classifier") if name == "lr" else (name,):
                local.arguments[pb.SLOT_KIND_HYPER, each] = torch.tensor(value)
        return local

    def run(self) -> dict[tuple[pb.SlotKind, str], Tensor]:
        """One step; its results by name are also the next step's arguments."""
        results = self.source.function(*self.arguments.values())
        named = {(slot.kind, slot.name): tensor for slot, tensor in zip(self.source.outputs, results, strict=True)}
        self.arguments.update({key: tensor for key, tensor in named.items() if key in self.arguments})
        return named

    def refer(self, distance: float) -> None:
        """Set each tensor of the reference to the weights less `distance`."""
        for kind, name in self.arguments:
            if kind == pb.SLOT_KIND_REFERENCE:
                self.arguments[kind, name] = self.weight(name.removeprefix("global/")) - distance

    def weight(self, name: str) -> Tensor:
        return self.arguments[pb.SLOT_KIND_WEIGHT, name]

    @property
    def inputs(self) -> Tensor:
        return self.arguments[pb.SLOT_KIND_INPUT, ""]

    @property
    def labels(self) -> Tensor:
        return self.arguments[pb.SLOT_KIND_LABEL, ""]

    @property
    def mask(self) -> Tensor:
        return self.arguments[pb.SLOT_KIND_MASK, ""]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make()


def mlp() -> Network:
    def layers() -> nn.Module:
        return nn.Sequential(OrderedDict(hidden=nn.Linear(5, 7), relu=nn.ReLU(), last=nn.Linear(7, CLASSES)))

    return Network(seeded(layers), (5,))


def classified() -> Network:
    return Network(seeded(lambda: Classified(nn.Linear(5, 7), nn.Linear(7, CLASSES))), (5,))


def plain(network: Network, local: Local, optimiser: torch.optim.Optimizer, steps: int) -> list[float]:
    """The same steps by torch itself, on the module of `network`."""
    losses = []
    network.module.train()
    for _ in range(steps):
        optimiser.zero_grad()
        rows = local.inputs if network.normalisation is None else network.normalisation(local.inputs)
        loss = nn.functional.cross_entropy(network.module(rows), local.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "theirs", "settings", "tolerance"),
    [
        ("sgd", torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}, 1e-6),
        ("adam", torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.02}, 1e-5),
    ],
)
def test_an_optimiser_steps_as_torchs_does(
    name: str, theirs: Callable[..., torch.optim.Optimizer], settings: dict[str, float], tolerance: float
) -> None:
    network = mlp()
    local = Local.of(network, "cross_entropy", name, **settings)

    losses = [local.run()[pb.SLOT_KIND_LOSS, ""].item() for _ in range(5)]
    expected = plain(network, local, theirs(network.module.parameters(), **settings), 5)

    assert losses == pytest.approx(expected, rel=10 * tolerance)
    for weight in ("hidden.weight", "last.weight"):
        torch.testing.assert_close(local.weight(weight), network.weights[weight], rtol=10 * tolerance, atol=tolerance)


def test_each_role_has_a_learning_rate_of_its_own() -> None:
    network = mlp()
    local = Local.of(network, lr_extractor=0.1, lr_classifier=0.3, momentum=0.0)
    rates = {"hidden": 0.1, "last": 0.3}
    groups = [{"params": network.module.get_submodule(name).parameters(), "lr": lr} for name, lr in rates.items()]

    local.run()
    plain(network, local, torch.optim.SGD(groups), 1)

    torch.testing.assert_close(local.weight("hidden.weight"), network.weights["hidden.weight"])
    torch.testing.assert_close(local.weight("last.bias"), network.weights["last.bias"])


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize(("frozen", "owner"), [("extractor", "hidden"), ("classifier", "last")])
def test_a_frozen_role_keeps_weights_and_state_bit_by_bit(optimiser: str, frozen: str, owner: str) -> None:
    local = Local.of(mlp(), "proximal", optimiser, weight_decay=0.1, mu=0.3, **{f"lr_{frozen}": 0.0})
    weight = local.weight(f"{owner}.weight")
    # Both zeros must survive: blobs stored as float16 hold zeros of both signs.
    weight[0, :2] = torch.tensor([0.0, -0.0])
    mine = [key for key in local.arguments if owner in key[1] or key[1] == frozen]
    states = (pb.SLOT_KIND_WEIGHT, pb.SLOT_KIND_OPTIMISER, pb.SLOT_KIND_COUNTER)
    before = {key: local.arguments[key].clone().numpy().tobytes() for key in mine if key[0] in states}
    other = {"hidden": "last", "last": "hidden"}[owner]
    moving = local.weight(f"{other}.weight").clone()

    for _ in range(3):
        local.run()

    assert {key: local.arguments[key].numpy().tobytes() for key in before} == before
    assert not torch.equal(local.weight(f"{other}.weight"), moving)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_role_frozen_with_moments_from_before_keeps_them(optimiser: str) -> None:
    local = Local.of(mlp(), "cross_entropy", optimiser)
    local.run()
    local.arguments[pb.SLOT_KIND_HYPER, "lr_extractor"] = torch.tensor(0.0)
    kept = {key: t.clone() for key, t in local.arguments.items() if "hidden" in key[1] or key[1] == "extractor"}

    local.run()

    assert all(torch.equal(local.arguments[key], tensor) for key, tensor in kept.items())


@pytest.mark.parametrize("objective", list(objectives.OBJECTIVES))
def test_padding_has_exactly_no_effect(objective: str) -> None:
    fresh = [Local.of(classified(), objective) for _ in range(2)]
    for local, content in zip(fresh, (7.0, float("nan")), strict=True):
        local.mask[4:] = 0
        local.inputs[4:] = content
        local.labels[4:] = int(content == 7.0)

    first, second = (local.run() for local in fresh)

    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(tensor.isfinite().all() for tensor in first.values())


def test_the_loss_is_the_mean_over_real_rows() -> None:
    network = mlp()
    local = Local.of(network)
    local.mask[4:] = 0
    expected = nn.functional.cross_entropy(network.module(local.inputs[:4]), local.labels[:4]).item()

    assert local.run()[pb.SLOT_KIND_LOSS, ""].item() == pytest.approx(expected, rel=1e-6)


def test_the_proximal_term_is_in_loss_and_gradient() -> None:
    # All references are the weights - 0.5, so with mu = 2 the penalty is 2/2 * 0.25 for each of the
    # 5*7 + 7 + 7*4 + 4 = 74 weights: 18.5. Its gradient is 2 * 0.5 = 1 everywhere: with lr 0.1, w moves by -0.1 more.
    pulled = Local.of(mlp(), "proximal", mu=2.0, lr=0.1)
    free = Local.of(mlp(), "proximal", mu=0.0, lr=0.1)
    for local in (pulled, free):
        local.refer(0.5)

    with_term, without = pulled.run(), free.run()

    difference = with_term[pb.SLOT_KIND_LOSS, ""] - without[pb.SLOT_KIND_LOSS, ""]
    assert difference.item() == pytest.approx(18.5, rel=1e-5)
    torch.testing.assert_close(pulled.weight("hidden.weight"), free.weight("hidden.weight") - 0.1)
    torch.testing.assert_close(pulled.weight("last.bias"), free.weight("last.bias") - 0.1)


def bn_network() -> Network:
    return Network(whole_models.build("lenet5_bn", CLASSES, 16, seed=1), (3, 16, 16), CENTRED)


def test_batch_norm_statistics_follow_torch() -> None:
    network = bn_network()
    local = Local.of(network, lr=0.05, momentum=0.0)

    for _ in range(2):
        local.run()
    plain(network, local, torch.optim.SGD(network.module.parameters(), lr=0.05), 2)

    torch.testing.assert_close(local.weight("norm1.running_var"), network.buffers["norm1.running_var"])
    torch.testing.assert_close(local.weight("conv2.weight"), network.weights["conv2.weight"], rtol=1e-4, atol=1e-6)
    assert local.weight("norm2.num_batches_tracked").item() == 2


@pytest.mark.parametrize(
    ("model", "side"),
    [
        pytest.param("vgg9", 16, marks=pytest.mark.slow),
        pytest.param("fedns_alexnet", 63, marks=pytest.mark.long),
        pytest.param("resnet50_whole", 32, marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(600)
def test_the_exported_step_of_a_papers_model_is_torchs(model: str, side: int) -> None:
    network = Network(whole_models.build(model, CLASSES, side, seed=1), (3, side, side), CENTRED)
    local = Local.of(network, lr=0.05, momentum=0.0)
    raw = lowering.lower("step", local.source.function, tuple(local.arguments.values()))
    local.source = replace(local.source, function=lowering.load(raw))
    before = {name: tensor.clone() for name, tensor in network.weights.items()}

    loss = local.run()[pb.SLOT_KIND_LOSS, ""].item()
    expected = plain(network, local, torch.optim.SGD(network.module.parameters(), lr=0.05), 1)

    assert [loss] == pytest.approx(expected, rel=1e-5)
    # A processor's kernels sum in an order of their own, and fifty layers of batch norm enlarge what that rounds.
    for name, tensor in network.weights.items():
        off, change = (local.weight(name) - tensor).norm(), (tensor - before[name]).norm()
        assert off <= 1e-3 * change + 1e-6, (name, off, change)


def test_a_frozen_extractor_keeps_its_batch_norm_statistics() -> None:
    local = Local.of(bn_network(), lr_extractor=0.0)
    names = ("norm1.running_mean", "norm1.running_var", "norm2.num_batches_tracked")
    before = [local.weight(name).clone() for name in names]

    local.run()

    assert all(torch.equal(local.weight(name), old) for name, old in zip(names, before, strict=True))


def test_a_step_modifies_nothing_that_it_is_given() -> None:
    local = Local.of(bn_network(), "proximal", "adam")
    before = [tensor.clone() for tensor in local.arguments.values()]

    local.source.function(*local.arguments.values())

    assert all(torch.equal(tensor, old) for tensor, old in zip(local.arguments.values(), before, strict=True))


def test_predict_uses_the_statistics_and_not_the_batch() -> None:
    network = bn_network()
    source = steps.predict(network, BATCH, CLASSES)
    arguments = list(parity.examples(source, {**network.weights, **network.buffers}, {}, seed=2))
    (all_rows,) = source.function(*arguments)
    arguments[-2] = arguments[-2].clone()
    arguments[-2][1:] = 0.5

    (first_row_alone,) = source.function(*arguments)

    torch.testing.assert_close(first_row_alone[0], all_rows[0])


def test_weights_are_sorted_and_the_last_fc_layer_is_the_classifier() -> None:
    described = bn_network().describe()

    assert [t.name for t in described] == sorted(t.name for t in described)
    assert [t.name for t in described if t.role == pb.TENSOR_ROLE_CLASSIFIER] == ["fc3.bias", "fc3.weight"]
    assert {(t.name.rpartition(".")[0].rstrip("123"), t.kind) for t in described} == {
        ("conv", pb.TENSOR_KIND_CONV),
        ("norm", pb.TENSOR_KIND_NORM),
        ("norm", pb.TENSOR_KIND_BUFFER),
        ("fc", pb.TENSOR_KIND_LINEAR),
    }


# (28 - 4) / 2 = 12, (12 - 4) / 2 = 4: 64 * 4 * 4 = 1024 and 16 * 4 * 4 = 256. With 32 pixels: 5 * 5 * 16 = 400.
@pytest.mark.parametrize(
    ("model", "side", "flat", "first"),
    [("fedns_cnn", 28, 1024, 1024), ("lenet5", 28, 256, 120), ("lenet5", 32, 400, 120), ("lenet5_bn", 16, 16, 120)],
)
def test_the_first_fc_layer_takes_what_the_convolutions_leave(model: str, side: int, flat: int, first: int) -> None:
    built = whole_models.build(model, 10, side, seed=0)

    assert tuple(built.get_parameter("fc1.weight").shape) == (first, flat)
    assert built(torch.zeros(1, 3, side, side)).shape == (1, 10)
