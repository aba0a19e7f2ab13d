"""FedProto's prototypes of a client, their sums over batches, and the prediction by the nearest one.

Paper: Tan et al., AAAI 2022, arXiv:2105.00243, Equations 3 and 8.

    paper      here                          meaning
    f(x)       features                      the classifier's inputs, after their ReLU, [d]
    C^(j)      prototypes["prototypes"]      mean features of the client's photos of class j, [C, d]; 0 without a photo
    -          prototypes["has"]             1 for a class with a photo, else 0, [C]

`class_sums` and `class_means` run one after the other; the number of photos stays in between. `predict_nearest` gives
`2 f . P - |P|^2`, which is the negative squared distance but for a number that is the same for all classes. A class
without a prototype is `BEHIND` below the least class that has one; if none has, all classes are alike.
"""

import torch
from torch import Tensor

from fedlens_export.objectives.objective import one_hot, without_padding
from fedlens_export.objectives.prototypes import PROTOTYPES
from fedlens_export.programs.derivations.derivation import (
    Derivation,
    Setting,
    float_slots,
    least,
    model,
    program,
    table,
)
from fedlens_export.programs.steps import Arguments, ProgramSource, float_slot, reference_slots, row_slots, slots_of
from fedlens_proto.v1 import manifest_pb2 as pb

SUMS = "class_sums"
MODEL = model("model")
BEHIND = 100.0
_LARGE = 1e30


def sums(setting: Setting) -> ProgramSource:
    """The program `class_sums`."""
    setting.network.check_features()
    outputs = float_slots(pb.SLOT_KIND_ACCUMULATOR, _shapes(setting))

    def compute(given: Arguments) -> dict[str, Tensor]:
        mask = given.one(pb.SLOT_KIND_MASK)
        rows = without_padding(given.one(pb.SLOT_KIND_INPUT), mask)
        features = setting.features(given.references()[MODEL.name], rows)
        chosen = one_hot(given.one(pb.SLOT_KIND_LABEL), setting.classes, features) * mask.unsqueeze(1)
        before = given.named(pb.SLOT_KIND_ACCUMULATOR)
        return {"sum": before["sum"] + chosen.T @ features, "count": before["count"] + chosen.sum(0)}

    return program(setting, "class_sums", SUMS, [MODEL], outputs, compute, over_rows=True)


def means(setting: Setting) -> ProgramSource:
    """The program `class_means`."""
    setting.network.check_features()

    def compute(given: Arguments) -> dict[str, Tensor]:
        found = given.references()[SUMS]
        count = found["count"]
        return {
            "prototypes": found["sum"] / count.clamp(min=1).unsqueeze(1),
            "has": torch.where(count > 0, 1.0, torch.zeros_like(count)),
        }

    classes, width = setting.classes, setting.network.classifier.in_features
    outputs = float_slots(pb.SLOT_KIND_RESULT, {"prototypes": (classes, width), "has": (classes,)})
    return program(setting, "class_means", PROTOTYPES.name, [table(SUMS, _shapes(setting))], outputs, compute)


def _shapes(setting: Setting) -> dict[str, tuple[int, ...]]:
    return {"sum": (setting.classes, setting.network.classifier.in_features), "count": (setting.classes,)}


def nearest(features: Tensor, prototypes: Tensor, has: Tensor) -> Tensor:
    """Scores of classes by the distance of their prototypes, float32 [B, C]."""
    prototypes = torch.where(has.unsqueeze(1) > 0, prototypes, 0.0)
    score = 2 * (features @ prototypes.T) - (prototypes * prototypes).sum(1)
    # Classes first, as `least` takes them.
    known = torch.where(has.unsqueeze(1) > 0, score.T, _LARGE)
    return torch.where(has > 0, score, torch.where(least(known) < _LARGE, least(known) - BEHIND, 0.0).unsqueeze(1))


def predict_nearest(setting: Setting) -> ProgramSource:
    """The program `predict_nearest`."""
    network = setting.network
    network.check_features()
    inputs = (
        *slots_of(pb.SLOT_KIND_WEIGHT, {**network.weights, **network.buffers}),
        *reference_slots(network, PROTOTYPES),
        *row_slots(network, setting.batch, with_labels=False),
    )

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = Arguments(inputs, tensors)
        rows = without_padding(given.one(pb.SLOT_KIND_INPUT), given.one(pb.SLOT_KIND_MASK))
        table = given.references()[PROTOTYPES.name]
        features = setting.features(given.named(pb.SLOT_KIND_WEIGHT), rows)
        return (nearest(features, table["prototypes"], table["has"]),)

    logits = float_slot(pb.SLOT_KIND_LOGITS, (setting.batch, setting.classes))
    return ProgramSource("predict_nearest", inputs, (logits,), function)


CLASS_SUMS = Derivation("class_sums", sums)
CLASS_MEANS = Derivation("class_means", means)
PREDICT_NEAREST = Derivation("predict_nearest", predict_nearest)
