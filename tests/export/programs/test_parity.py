"""Bounds of the comparison between a program and its model."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bench.backbones import seen_noise
from fedlens_export.errors import NotExportable, ParityBroken
from fedlens_export.network import CENTRED, IMAGENET
from fedlens_export.programs import lowering, onnx_program, parity, pte_program, steps
from fedlens_export.programs.steps import ProgramSource
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.manifests import slot

SIDE = 4


class Cancelling(nn.Module):
    """Great values that differ by little: what is left of them has few correct digits."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.wide = nn.Linear(3 * SIDE * SIDE, 64)
            self.centred = nn.Linear(64, 8, bias=False)
            with torch.no_grad():
                self.wide.bias += 300.0
                self.centred.weight -= self.centred.weight.mean(1, keepdim=True)

    def forward(self, photos: Tensor) -> Tensor:
        features: Tensor = self.centred(self.wide(photos.flatten(1)))
        return features


def embed() -> tuple[ProgramSource, dict[str, Tensor]]:
    backbone = Cancelling()
    return steps.embed(backbone, CENTRED, (3, SIDE, SIDE)), steps.frozen_tensors(backbone)


def in_another_order(source: ProgramSource) -> Callable[..., tuple[Tensor, ...]]:
    """The same backbone with its hidden units turned round, so that sums begin at their other end."""

    axes = {"wide.weight": (0,), "wide.bias": (0,), "centred.weight": (1,)}

    def program(*given: Tensor) -> tuple[Tensor, ...]:
        pairs = zip(source.inputs, given, strict=True)
        return source.function(*(tensor.flip(axes.get(slot.name, ())) for slot, tensor in pairs))

    return program


def with_one_other_weight(source: ProgramSource, name: str) -> Callable[..., tuple[Tensor, ...]]:
    """The same backbone, but one weight is greater by 0.001."""

    def program(*given: Tensor) -> tuple[Tensor, ...]:
        changed = [tensor.clone() for tensor in given]
        place = next(i for i, slot in enumerate(source.inputs) if slot.name == name)
        changed[place].view(-1)[0] += 1e-3
        return source.function(*changed)

    return program


def test_a_backbone_may_differ_by_its_own_rounding_where_that_is_large() -> None:
    source, frozen = embed()

    difference = parity.compare(source, in_another_order(source), frozen, {}, rounds=True)

    assert difference > parity.TOLERANCE
    with pytest.raises(ParityBroken, match="at most 1e-05 is allowed"):
        parity.compare(source, in_another_order(source), frozen, {})


def test_a_backbone_with_one_wrong_weight_does_not_pass() -> None:
    source, frozen = embed()

    with pytest.raises(ParityBroken, match="'embed' differs from the model"):
        parity.compare(source, with_one_other_weight(source, "centred.weight"), frozen, {}, rounds=True)


def test_a_backbone_that_rounds_to_nothing_useful_is_refused() -> None:
    source, frozen = embed()
    frozen["wide.bias"] += 1e6

    with pytest.raises(ParityBroken, match=r"at most 0.001 is allowed"):
        parity.compare(source, in_another_order(source), frozen, {}, rounds=True)


def test_an_emulation_that_tells_most_of_what_quantising_does_passes() -> None:
    source, frozen = embed()

    def original(photo: Tensor) -> Tensor:
        return source.function(*frozen.values(), photo)[0] - 1.0

    def moved(distance: float) -> lowering.Function:
        return lambda *given: (source.function(*given)[0] + distance,)

    assert parity.compare_emulation(source, moved(0.2), original, frozen) == pytest.approx(0.2, rel=0.01)
    with pytest.raises(ParityBroken, match=r"'embed' differs from its emulation by .* ratio of at most 0.5 is allowed"):
        parity.compare_emulation(source, moved(-2.0), original, frozen)


def _times(factor: float) -> ProgramSource:
    given, found = (slot(kind, shape=(2, 3)) for kind in (pb.SLOT_KIND_INPUT, pb.SLOT_KIND_LOGITS))
    return ProgramSource("predict", (given,), (found,), lambda x: (x * factor,))


@pytest.mark.parametrize(
    "lowered",
    [
        lambda traced: lowering.load(lowering.save("predict", traced)),
        lambda traced: onnx_program.load(onnx_program.lower("predict", traced)),
    ],
)
def test_a_program_that_computes_something_else_is_not_shipped(lowered: Callable[..., lowering.Function]) -> None:
    program = lowered(lowering.trace("predict", _times(2.001).function, (torch.ones(2, 3),)))

    with pytest.raises(ParityBroken, match="'predict' differs from the model by"):
        parity.compare(_times(2.0), program, {}, {})
    assert parity.compare(_times(2.001), program, {}, {}) == 0.0


def test_rounding_is_not_divided_by_a_second_moment_of_nothing() -> None:
    moments = [slot(pb.SLOT_KIND_OPTIMISER, name, (2**20,)) for name in ("mean/weight", "square/weight")]
    weight = slot(pb.SLOT_KIND_WEIGHT, "weight", (2**20,))
    source, rounded = (
        ProgramSource("step", tuple(moments), (weight,), lambda mean, square, by=by: (mean / (square + by).sqrt(),))
        for by in (0.0, 1e-12)
    )

    assert parity.compare(source, rounded.function, {}, {}) <= parity.TOLERANCE


@pytest.mark.long
def test_a_deep_backbone_at_32_pixels_passes_in_every_format_and_a_wrong_one_does_not() -> None:
    backbone = seen_noise("efficientnet_b0", 32)
    source, frozen = steps.embed(backbone, IMAGENET, (3, 32, 32)), steps.frozen_tensors(backbone)
    traced = lowering.trace("embed", source.function, parity.examples(source, frozen, {}, seed=0))
    raw, _ = pte_program.lower("embed", pte_program.bind(source, traced, frozen))

    for run in (pte_program.load(source, raw), onnx_program.load(onnx_program.lower("embed", traced))):
        assert run is not None
        assert parity.compare(source, run, frozen, {}, rounds=True) < parity.MOST_ROUNDED
    name = next(name for name in frozen if name.endswith("weight"))
    with pytest.raises(ParityBroken, match="differs from the model"):
        parity.compare(source, with_one_other_weight(source, name), frozen, {}, rounds=True)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda weight, rows: (weight,), "program 'step' changes no weight: the gradients of objective 'own' are zero"),
        (lambda weight, rows: (weight[:1] + 1,), r"gives outputs of shapes \[\[1\]\], and declares \[\[2\]\]"),
        (lambda weight, rows: (weight + 1, rows), r"gives outputs of shapes \[\[2\], \[3\]\], and declares \[\[2\]\]"),
    ],
)
def test_a_step_that_trains_nothing_or_gives_other_outputs_than_it_declares_is_refused(
    function: Callable[..., tuple[Tensor, ...]], words: str
) -> None:
    weight, rows = slot(pb.SLOT_KIND_WEIGHT, "w", (2,)), slot(pb.SLOT_KIND_INPUT, "", (3,))
    source = ProgramSource("step", (weight, rows), (weight,), function, objective="own", optimiser="sgd")

    with pytest.raises(NotExportable, match=words):
        parity.check(source, {"w": torch.ones(2)}, {}, masked=False)


def test_a_model_with_a_nan_in_its_weights_is_refused_for_that() -> None:
    weight = slot(pb.SLOT_KIND_WEIGHT, "w", (2,))
    source = ProgramSource("step", (weight,), (weight,), lambda weight: (weight + 1,))

    with pytest.raises(NotExportable, match="tensor 'w' of the model holds a NaN"):
        parity.check(source, {"w": torch.tensor([1.0, float("nan")])}, {}, masked=True)


@pytest.mark.parametrize("views", [(), (2,)], ids=["photos", "views"])
def test_a_program_on_which_padding_has_an_effect_is_refused(views: tuple[int, ...]) -> None:
    rows, mask = slot(pb.SLOT_KIND_INPUT, "", (*views, 4)), slot(pb.SLOT_KIND_MASK, "", (4,))
    total = slot(pb.SLOT_KIND_ACCUMULATOR, "total")

    def source(function: Callable[..., tuple[Tensor, ...]]) -> ProgramSource:
        return ProgramSource("totals", (rows, mask), (total,), function)

    careful = source(lambda rows, mask: ((rows * mask).sum(),))
    parity.check(careful, {}, {}, masked=True)
    careless = source(lambda rows, mask: (rows.sum(),))
    parity.check(careless, {}, {}, masked=False)
    with pytest.raises(NotExportable, match=r"padding contains changes output SLOT_KIND_ACCUMULATOR total of program"):
        parity.check(careless, {}, {}, masked=True)


def test_padding_of_further_rows_may_change_nothing_either() -> None:
    mask, total = slot(pb.SLOT_KIND_MASK, "", (4,)), slot(pb.SLOT_KIND_ACCUMULATOR, "total")
    for kind in (pb.SLOT_KIND_TARGET, pb.SLOT_KIND_UNIFORM):
        rows = slot(kind, "teacher/scores", (4, 2))
        careless = ProgramSource("totals", (rows, mask), (total,), lambda rows, mask: (rows.sum(),))

        with pytest.raises(NotExportable, match="what padding contains changes output"):
            parity.check(careless, {}, {}, masked=True)


def test_what_cannot_be_traced_is_told_with_the_line_of_its_author() -> None:
    def function(rows: Tensor) -> tuple[Tensor, ...]:
        return (rows * {"gamma": rows}["gama"],)

    line = function.__code__.co_firstlineno + 1
    with pytest.raises(NotExportable, match=rf"cannot be traced: KeyError: 'gama' \(test_parity.py, line {line}\)"):
        lowering.trace("step", function, [torch.ones(2)])
