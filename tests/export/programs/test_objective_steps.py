"""The programs of each objective: their slots, what they do on whole models, and their files for phones."""

import pytest
import torch
from torch import Tensor

from fedlens_export import objectives
from fedlens_export.models import backbones, whole_models
from fedlens_export.network import CENTRED, Network
from fedlens_export.objectives import moon
from fedlens_export.objectives.objective import ALL, Objective, Reference
from fedlens_export.programs import lowering, optimisers, parity, pte_program, steps
from fedlens_export.programs.steps import ProgramSource
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.programs.test_steps import BATCH, CLASSES, Local, classified

KINDS_OF_INPUT = {
    pb.SLOT_KIND_REFERENCE: "reference",
    pb.SLOT_KIND_TARGET: "target",
    pb.SLOT_KIND_PRESENT: "present",
    pb.SLOT_KIND_UNIFORM: "uniform",
}


def sources(objective: str, network: Network, batch: int = BATCH) -> dict[str, ProgramSource]:
    chosen = objectives.by_name(objective)
    found = steps.trains(network, chosen, optimisers.SGD, batch, CLASSES, chosen.views)
    return {source.name: source for source in found}


def residual() -> Network:
    return Network(whole_models.build("small_residual", CLASSES, 16, seed=1), (3, 16, 16), CENTRED)


def lenet() -> Network:
    return Network(whole_models.build("lenet5_bn", CLASSES, 16, seed=1), (3, 16, 16), CENTRED)


def given(slots: list[pb.Slot] | tuple[pb.Slot, ...]) -> dict[str, list[tuple[str, list[int]]]]:
    found: dict[str, list[tuple[str, list[int]]]] = {}
    for slot in slots:
        if slot.kind in KINDS_OF_INPUT:
            found.setdefault(KINDS_OF_INPUT[slot.kind], []).append((slot.name, list(slot.shape)))
    return found


WEIGHTS = [
    ("classifier.bias", [4]),
    ("classifier.weight", [4, 7]),
    ("extractor.bias", [7]),
    ("extractor.weight", [7, 5]),
]
GLOBAL, DUAL, PREVIOUS = (
    [(f"{reference}/{name}", shape) for name, shape in WEIGHTS] for reference in ("global", "dual", "previous")
)
COUNTS = [("label_counts/label_counts", [4])]
GENERATOR = [
    ("generator/alpha", []),
    ("generator/beta", []),
    ("generator/classes", [4]),
    ("generator/hidden.bias", [32]),
    ("generator/hidden.weight", [32, 36]),
    ("generator/output.bias", [7]),
    ("generator/output.weight", [7, 32]),
]
PROTOTYPES = [("prototypes/has", [4]), ("prototypes/prototypes", [4, 7])]
TEACHER = [("teacher/scores", [6, 4])]


@pytest.mark.parametrize(
    ("objective", "program", "expected"),
    [
        ("cross_entropy", "step", {}),
        ("proximal", "step", {"reference": GLOBAL}),
        ("classifier_proximal", "step", {"reference": GLOBAL[:2]}),
        ("supcon", "step", {"reference": GLOBAL[:2]}),
        ("supcon_raw", "step", {"reference": GLOBAL[:2]}),
        ("dynamic", "step", {"reference": DUAL + GLOBAL, "present": [("dual", [])]}),
        ("moon", "step", {"reference": GLOBAL + PREVIOUS}),
        ("restricted_softmax", "step", {"reference": COUNTS}),
        ("calibrated_logits", "step", {"reference": COUNTS}),
        ("meta_fo", "step", {}),
        ("meta_fo", "fine_tune", {}),
        ("meta_hf", "step", {}),
        ("meta_hf", "fine_tune", {}),
        ("prototypes", "step", {"reference": PROTOTYPES}),
        *[(f"distil{kind}", "step", {}) for kind in ("", "_probabilities", "_scores", "_scores_squared")],
        *[(f"distil{kind}", "distil", {"target": TEACHER}) for kind in ("", "_probabilities", "_scores")],
        ("distil_scores_squared", "distil", {"target": TEACHER}),
        (
            "generated",
            "step",
            {"reference": GENERATOR + COUNTS, "present": [("generator", [])], "uniform": [("", [6, 65])]},
        ),
    ],
)
def test_a_program_takes_what_its_objective_compares_with(
    objective: str, program: str, expected: dict[str, list[tuple[str, list[int]]]]
) -> None:
    source = sources(objective, classified())[program]

    assert given(source.inputs) == expected
    assert list(source.optional) == [name for name, _ in expected.get("present", [])]


def test_the_table_of_what_programs_take_has_every_one() -> None:
    (mark,) = test_a_program_takes_what_its_objective_compares_with.pytestmark  # type: ignore[attr-defined]

    listed = {(objective, program) for objective, program, _ in mark.args[1]}

    assert listed == {(name, source) for name in objectives.OBJECTIVES for source in sources(name, classified())}


def test_every_program_that_trains_says_what_it_minimises_and_how() -> None:
    said = {
        (name, program): (source.objective, source.optimiser)
        for name in ("cross_entropy", "meta_fo", "distil_scores")
        for program, source in sources(name, classified()).items()
    }

    assert said == {
        ("cross_entropy", "step"): ("cross_entropy", "sgd"),
        ("meta_fo", "step"): ("meta_fo", "sgd"),
        ("meta_fo", "fine_tune"): ("cross_entropy", "sgd"),
        ("distil_scores", "step"): ("distil_scores", "sgd"),
        ("distil_scores", "distil"): ("distil_scores", "sgd"),
    }


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (Reference("r", kinds=("norm",)), {"reference": ["norm1", "norm2"]}),
        (Reference("r", kinds=("conv",)), {"reference": ["conv1", "conv2"]}),
        (Reference("r", roles=("classifier",)), {"reference": ["fc3"]}),
        (Reference("r", roles=("classifier",), kinds=("norm",)), {}),
    ],
)
def test_a_reference_is_of_chosen_roles_and_kinds(reference: Reference, expected: dict[str, list[str]]) -> None:
    found = given(steps.reference_slots(lenet(), reference))

    layers = {kind: sorted({name[2:].rpartition(".")[0] for name, _ in named}) for kind, named in found.items()}
    assert layers == expected


def test_a_reference_of_all_kinds_has_every_tensor_in_its_type() -> None:
    network = lenet()

    slots = steps.reference_slots(network, Reference("r", kinds=ALL))

    assert [(slot.name, slot.dtype) for slot in slots] == [(f"r/{t.name}", t.dtype) for t in network.describe()]


def test_moons_references_pass_rows_in_evaluation_mode_with_their_own_statistics() -> None:
    network = residual()
    local = Local.of(network, "moon", mu=3.0, tau=0.2)
    other = {key: tensor for key, tensor in local.arguments.items() if key[0] == pb.SLOT_KIND_REFERENCE}
    expected = {}
    with torch.no_grad():
        for reference in ("global", "previous"):
            module = residual().module.eval()
            tensors = {name.partition("/")[2]: t for (_, name), t in other.items() if name.startswith(reference)}
            module.load_state_dict(tensors)
            expected[reference], _ = module(CENTRED(local.inputs), with_features=True)
        features, logits = network.module.train()(CENTRED(local.inputs), with_features=True)
    contrast = moon.row_losses(features, expected["global"], [expected["previous"]], torch.tensor(0.2)).mean()

    found = local.run()[pb.SLOT_KIND_LOSS, ""]

    entropy = torch.nn.functional.cross_entropy(logits, local.labels)
    torch.testing.assert_close(found, entropy + 3 * contrast, rtol=1e-5, atol=1e-5)
    assert local.weight("extractor.layers.0.1.num_batches_tracked").item() == 1


@pytest.mark.parametrize("objective", ["meta_fo", "meta_hf"])
def test_batch_norm_keeps_the_statistics_of_the_second_half_alone(objective: str) -> None:
    network = lenet()
    local = Local.of(network, objective, alpha=0.0, momentum=0.0)
    alone = Local.of(lenet(), "cross_entropy", momentum=0.0)
    conv = network.module.get_submodule("conv1")
    with torch.no_grad():
        expected = 0.1 * conv(CENTRED(local.inputs[1::2])).mean((0, 2, 3))

    local.run()
    alone.run()

    torch.testing.assert_close(local.weight("norm1.running_mean"), expected, rtol=1e-4, atol=1e-6)
    assert local.weight("norm1.num_batches_tracked").item() == 1
    assert not torch.allclose(local.weight("norm1.running_mean"), alone.weight("norm1.running_mean"), rtol=1e-3)


def test_fine_tuning_is_plain_gradient_descent_by_alpha_in_batches_of_half_the_size() -> None:
    network = classified()
    chosen = objectives.by_name("meta_fo")
    source = sources("meta_fo", network)["fine_tune"]
    local = Local.running(source, network, steps.hyper(chosen, optimisers.SGD), alpha=0.3)

    for _ in range(2):
        local.run()
    for _ in range(2):
        loss = torch.nn.functional.cross_entropy(network.module(local.inputs), local.labels)
        for parameter, gradient in zip(
            network.module.parameters(), torch.autograd.grad(loss, list(network.module.parameters())), strict=True
        ):
            parameter.data -= 0.3 * gradient

    assert local.inputs.shape[0] == BATCH // 2
    assert [slot.name for slot in source.inputs if slot.kind == pb.SLOT_KIND_HYPER] == ["alpha"]
    for name, parameter in network.module.named_parameters():
        torch.testing.assert_close(local.weight(name), parameter.detach())


def test_a_batch_of_one_row_is_fine_tuned_by_one_row() -> None:
    found = sources("meta_hf", classified(), batch=1)

    assert {name: source.outputs[-1].shape[0] for name, source in found.items()} == {"step": 1, "fine_tune": 1}


def test_programs_over_public_rows_take_them_as_they_are_where_steps_take_views() -> None:
    chosen = objectives.by_name("distil")

    step, distil = steps.trains(lenet(), chosen, optimisers.SGD, BATCH, CLASSES, views=1)

    shapes = [next(list(s.shape) for s in each.inputs if s.kind == pb.SLOT_KIND_INPUT) for each in (step, distil)]
    assert shapes == [[BATCH, 1, 3, 16, 16], [BATCH, 3, 16, 16]]


def _lowered(source: ProgramSource, known: dict[str, Tensor], objective: Objective, *, pte: bool) -> None:
    hyper = steps.hyper(objective, optimisers.SGD)
    traced = lowering.trace(source.name, source.function, parity.examples(source, known, hyper, seed=0))
    function: lowering.Function = lowering.load(lowering.save(source.name, traced))
    if pte:
        raw, _ = pte_program.lower(source.name, pte_program.bind(source, traced, known))
        function = pte_program.load(source, raw)
    parity.compare(source, function, known, hyper)
    parity.compare_epoch(source, function, known, hyper, masked=pte)


# One with tables, a presence and uniforms, and one with targets; the rest is long.
_IN_CI = (("distil", "distil"),)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        pytest.param(name, program, marks=pytest.mark.slow if (name, program) in _IN_CI else pytest.mark.long)
        for name, objective in objectives.OBJECTIVES.items()
        if name not in ("cross_entropy", "proximal", "classifier_proximal", "supcon", "supcon_raw")
        for program in ("step", *(train.name for train in objective.trains))
    ],
)
def test_phones_train_a_head_by_every_objective(name: str, program: str) -> None:
    network = Network(backbones.build_head("hidden", 6, CLASSES, seed=0), (6,))

    _lowered(sources(name, network)[program], network.weights, objectives.by_name(name), pte=True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["moon", "meta_fo", "meta_hf", "prototypes", "generated", "dynamic"])
def test_a_whole_model_trains_by_every_objective(name: str) -> None:
    network = residual()

    _lowered(
        sources(name, network)["step"],
        {**network.weights, **network.buffers},
        objectives.by_name(name),
        pte=False,
    )
