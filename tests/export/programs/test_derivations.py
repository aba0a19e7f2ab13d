"""Programs that derive, as functions: worked cases, edge cases, and what a bundle gets."""

from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from fedlens_export.errors import ExportError, NotExportable, UnknownChoice
from fedlens_export.exporting import Training
from fedlens_export.models.classified import Classified
from fedlens_export.network import Network
from fedlens_export.programs import derivations
from fedlens_export.programs.derivations import (
    DERIVATIONS,
    OF_CANDIDATES,
    blend,
    class_means,
    compare,
    gain,
    importance,
    norm_statistics,
)
from fedlens_export.programs.derivations.derivation import Setting
from fedlens_export.programs.derivations.least import LEAST
from fedlens_export.programs.steps import ProgramSource
from fedlens_export.training import check_training
from fedlens_proto.blob import Blob
from fedlens_proto.slots import ProgramKind, kind_of
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.small import difference, frozen_bundle
from tests.server.methods.golden import cases

LINEAR = Network(nn.Linear(3, 4, bias=False), (3,))


def run(
    source: ProgramSource,
    references: Mapping[str, Mapping[str, ArrayLike]],
    hyper: Mapping[str, float] | None = None,
    **others: ArrayLike,
) -> dict[str, Tensor]:
    """A program's outputs by name; references that are not given are absent, and accumulators start at zero."""

    def value(slot: pb.Slot) -> Tensor:
        dtype = torch.int64 if slot.dtype == blob_pb2.DTYPE_INT64 else torch.float32
        match slot.kind:
            case pb.SLOT_KIND_REFERENCE:
                reference, _, name = slot.name.partition("/")
                given: Any = references[reference][name] if reference in references else torch.zeros(tuple(slot.shape))
            case pb.SLOT_KIND_PRESENT:
                given = float(slot.name in references)
            case pb.SLOT_KIND_HYPER:
                given = (hyper or {})[slot.name]
            case pb.SLOT_KIND_WEIGHT | pb.SLOT_KIND_ACCUMULATOR:
                given = others.get(slot.name, torch.zeros(tuple(slot.shape)))
            case _:
                given = others[pb.SlotKind.Name(slot.kind).removeprefix("SLOT_KIND_").lower()]
        return torch.as_tensor(np.asarray(given)).to(dtype).reshape(tuple(slot.shape))

    with torch.no_grad():
        found = source.function(*map(value, source.inputs))
    return {slot.name: tensor for slot, tensor in zip(source.outputs, found, strict=True)}


def losses(loss: ArrayLike, vote: ArrayLike = 0.0, base: float = 0.0, count: float = 1.0) -> dict[str, ArrayLike]:
    return {"loss": loss, "vote": np.zeros(np.shape(loss)) + np.asarray(vote), "base": base, "count": count}


def scores(values: list[float]) -> dict[str, ArrayLike]:
    return {"score": values}


def test_ifcas_choice_equals_the_worked_cases() -> None:
    for case in cases("ifca_01"):
        rows = case.inputs["losses"]
        source = LEAST.build(Setting(LINEAR, 4, 4, rows.shape[1]))
        found = [int(run(source, {"losses": losses(each)})["score"].argmax()) for each in rows]
        case.check("assignment", np.array(found))


def test_the_choice_is_the_lowest_of_equals_and_nan_where_there_is_none() -> None:
    source = LEAST.build(Setting(LINEAR, 4, 4, 3))

    assert run(source, {"losses": losses([2, 1, 1])})["score"].tolist() == [0, 1, 0]
    assert run(source, {"losses": losses([1e30, 1e30, 5])})["score"].tolist() == [0, 0, 1]
    assert run(source, {"losses": losses([1e30, 3e32, 1e31])})["score"].isnan().all()


def test_fedsofts_importance_equals_the_worked_cases() -> None:
    for case in cases("fedsoft_01"):
        sigma = float(case.inputs["sigma"])
        for client, expected in enumerate(case.outputs["u"]):
            rows = torch.from_numpy(case.inputs[f"losses_{client}"]).float()
            votes = compare.votes(rows, torch.ones(rows.shape[1]))
            source = importance.build(Setting(LINEAR, 4, 4, len(rows)))
            given = losses(rows.sum(1), votes, count=rows.shape[1])
            found = run(source, {"losses": given}, {"sigma": sigma})["score"]
            assert votes.tolist() == case.outputs["counts"][client].tolist()
            np.testing.assert_allclose(found, expected, case.rtol, case.atol)


def test_a_centre_without_votes_has_importance_sigma() -> None:
    found = run(
        importance.build(Setting(LINEAR, 4, 4, 2)), {"losses": losses([3, 1], [0, 8], count=8)}, {"sigma": 0.25}
    )

    assert found["score"].tolist() == [0.25, 1]


def test_fedfomos_gain_and_start_equal_the_worked_cases() -> None:
    for case in cases("fedfomo_01"):
        others = case.inputs["models"]
        setting = Setting(LINEAR, 4, 4, len(others))
        models: dict[str, Any] = {f"candidate-{k}": {"weight": other} for k, other in enumerate(others)}
        models["base"] = {"weight": case.inputs["own"]}
        # Sums over 7 photos.
        given = losses(7 * case.inputs["losses"], base=7 * float(case.inputs["own_loss"]), count=7)
        score = run(gain.build(setting), {**models, "losses": given})["score"]
        start = run(blend.build(setting), {**models, "scores": {"score": score}})["weight"]
        case.check("weights", score.numpy())
        case.check("start", start.numpy())


def test_a_candidate_without_a_loss_or_equal_to_the_base_gains_nothing() -> None:
    setting = Setting(LINEAR, 4, 4, 3)
    own, other = {"weight": np.ones((4, 3))}, {"weight": np.full((4, 3), np.nan)}
    models = {"base": own, "candidate-0": own, "candidate-1": other}

    found = run(gain.build(setting), {**models, "losses": losses([5, 1e30, 1e30], base=5)})["score"]
    without_own = run(gain.build(setting), {**models, "losses": losses([5, 4, 4], base=1e30)})["score"]

    assert found.tolist() == without_own.tolist() == [0, 0, 0]


def test_feddyns_dual_equals_the_worked_cases() -> None:
    for case in cases("feddyn_01"):
        start, alpha = case.inputs["theta"], {"alpha": float(case.inputs["alpha"])}
        network = Network(nn.Linear(4, 3, bias=False), (4,))
        source = derivations.by_name("dual_update").build(Setting(network, 4, 3))
        for client, expected in enumerate(case.outputs["dual_after_last"]):
            references = {"start": {"weight": start}, "trained": {"weight": case.inputs["updates"][0][client]}}
            first = run(source, references, alpha)["weight"]
            again = run(source, {**references, "dual": {"weight": first}}, alpha)["weight"]
            np.testing.assert_allclose(first, expected, case.rtol, case.atol)
            np.testing.assert_allclose(again, 2 * expected, case.rtol, 2 * case.atol)


class Normed(nn.Module):
    """BatchNorm over the channels of 2 x 2 photos, then FC."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.last = nn.Linear(12, 2)

    def forward(self, photos: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(photos).flatten(1))
        return logits


def normed() -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network(Normed(), (3, 2, 2))


def test_a_blend_weighs_floats_and_takes_integers_of_the_heaviest() -> None:
    network = normed()
    tensors = {**network.weights, **network.buffers}
    setting = Setting(network, 4, 2, 4)

    def model(value: float) -> dict[str, Tensor]:
        return {name: torch.full_like(tensor, value) for name, tensor in tensors.items()}

    # Candidate 1 does not count, whatever it holds; candidate 3 is absent, whatever its score.
    models: dict[str, Any] = {"candidate-0": model(8), "candidate-1": model(0), "candidate-2": model(4)}
    models["candidate-1"] |= {name: t * np.nan for name, t in models["candidate-1"].items() if t.is_floating_point()}
    found = run(blend.build(setting), {**models, "scores": scores([1, -1, 3, 100])})

    # (1 * 8 + 3 * 4) / 4 = 5
    assert {float(found[name].mean()) for name in tensors if tensors[name].is_floating_point()} == {5.0}
    assert found["norm.num_batches_tracked"].item() == 4
    assert found["norm.num_batches_tracked"].dtype == torch.int64


def test_a_blend_of_nothing_is_the_base_or_nan() -> None:
    source = blend.build(Setting(LINEAR, 4, 4, 2))
    base, other = {"weight": np.full((4, 3), 7.0)}, {"weight": np.ones((4, 3))}

    with_base = run(source, {"base": base, "candidate-0": other, "scores": scores([0, 5])})["weight"]
    without = run(source, {"candidate-0": other, "scores": scores([0, 5])})["weight"]

    assert with_base.tolist() == [[7] * 3] * 4
    assert without.isnan().all()


def test_candidates_are_compared_row_by_row_whatever_padding_holds() -> None:
    # Without weights, logits are 0 and a row loses ln 4; a bias of ln 3 gives class 1 3/6, the others 1/6.
    network = Network(nn.Linear(3, 4), (3,))
    zero = {"weight": np.zeros((4, 3)), "bias": np.zeros(4)}
    models: dict[str, Any] = {
        "candidate-0": zero,
        "candidate-1": {"weight": np.zeros((4, 3)), "bias": [0, log(3), 0, 0]},
        "candidate-2": zero,
        "candidate-3": {"weight": np.full((4, 3), np.nan), "bias": np.zeros(4)},
    }
    source = compare.build(Setting(network, 4, 4, 5))
    inputs = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9], [np.nan, np.inf, 0]])
    before: dict[str, Any] = {"loss": np.full(5, 1.0), "vote": np.full(5, 2.0), "base": 3.0, "count": 4.0}

    found = run(source, models, input=inputs, label=[1, 1, 0, 3], mask=[1, 1, 1, 0], **before)

    expected = [3 * log(4), 2 * log(2) + log(6), 3 * log(4)]
    np.testing.assert_allclose(found["loss"][:3], np.array(expected) + 1, rtol=1e-6)
    # Candidate 3 gives NaN, candidate 4 is absent, and so is the base; of equals the lowest votes.
    np.testing.assert_allclose(found["loss"][3:], [3e30, 3e30], rtol=1e-6)
    assert found["vote"].tolist() == [3, 4, 2, 2, 2]
    assert found["base"].item() == pytest.approx(3e30)
    assert found["count"].item() == 7


def identity(classes: int = 2) -> Network:
    """Features are ReLU of the three inputs."""
    layer = nn.Linear(3, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3))
        layer.bias.zero_()
    return Network(Classified(layer, nn.Linear(3, classes)), (3,))


def test_class_means_are_of_real_rows_after_the_relu() -> None:
    network = identity(3)
    setting = Setting(network, 4, 3)
    inputs = np.array([[1, -2, 3], [3, 4, -5], [7, 7, 7], [np.nan, 1, 1]])

    sums = run(
        class_means.sums(setting), {"model": network.weights}, input=inputs, label=[2, 2, 0, 1], mask=[1, 1, 1, 0]
    )
    table = run(class_means.means(setting), {"class_sums": sums})

    # Class 2: the mean of (1, 0, 3) and (3, 4, 0); class 1 has only padding.
    assert table["prototypes"].tolist() == [[7, 7, 7], [0, 0, 0], [2, 2, 1.5]]
    assert table["has"].tolist() == [1, 0, 1]


def test_the_nearest_prototype_is_predicted_among_those_that_there_are() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    prototypes = torch.tensor([[1.0, 1.0], [0.0, 3.0], [1.0, torch.nan]])

    found = class_means.nearest(features, prototypes, torch.tensor([1.0, 1.0, 0.0]))
    nothing = class_means.nearest(features, prototypes, torch.zeros(3))

    # Squared distances: row 0: 1, 10; row 1: 2, 1. Scores are |f|^2 less them, |f|^2 being 1 and 4.
    assert found.tolist() == [[0, -9, -109], [2, 3, -98]]
    assert nothing.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_norm_statistics_are_those_of_one_training_pass_over_all_rows() -> None:
    network = normed()
    photos = torch.rand((6, 3, 2, 2), generator=torch.Generator().manual_seed(1)) * 5 - 1
    setting = Setting(network, 4, 2)
    model = {"model": {**network.weights, **network.buffers}}
    # With momentum 1, BatchNorm's running statistics are those of its last batch.
    layer = nn.BatchNorm2d(3, momentum=1.0)
    layer(photos)

    sums: dict[str, Any] = {}
    for batch, mask in ((photos[:4], [1, 1, 1, 1]), (torch.cat([photos[4:], photos[:2] * torch.inf]), [1, 1, 0, 0])):
        sums = run(norm_statistics.sums(setting), model, input=batch, label=[0] * 4, mask=mask, **sums)
    found = run(norm_statistics.statistics(setting), {"norm_sums": sums})

    assert layer.running_mean is not None
    assert layer.running_var is not None
    torch.testing.assert_close(found["norm.running_mean"], layer.running_mean)
    torch.testing.assert_close(found["norm.running_var"], layer.running_var)


def test_a_variance_is_never_negative() -> None:
    source = norm_statistics.statistics(Setting(normed(), 4, 2))
    one: dict[str, Any] = {"norm.sum": np.full(3, 2.0), "norm.square": np.full(3, 3.9), "norm.count": 1.0}

    found = run(source, {"norm_sums": one})

    assert found["norm.running_mean"].tolist() == [2, 2, 2]
    assert found["norm.running_var"].tolist() == [0, 0, 0]


def test_predictions_are_softened_and_scores_are_raw() -> None:
    network = Network(nn.Linear(3, 4), (3,))
    model = {"model": {"weight": np.zeros((4, 3)), "bias": np.array([0, 0, 0, 10 * log(3)])}}
    rows: dict[str, Any] = {"input": np.ones((2, 3)), "label": [0, 0], "mask": [1, 1]}
    setting = Setting(network, 2, 4)

    soft = run(derivations.by_name("predictions").build(setting), model, {"temperature": 10.0}, **rows)
    raw = run(derivations.by_name("scores").build(setting), model, **rows)

    # softmax(0, 0, 0, ln 3)
    np.testing.assert_allclose(soft["scores"], [[1 / 6, 1 / 6, 1 / 6, 1 / 2]] * 2, rtol=1e-6)
    np.testing.assert_allclose(raw["scores"][1], [0, 0, 0, 10 * log(3)], rtol=1e-6)


@pytest.mark.parametrize("name", ["class_sums", "class_means", "predict_nearest", "norm_sums", "norm_statistics"])
def test_a_model_without_what_a_program_needs_is_refused(name: str) -> None:
    with pytest.raises(NotExportable, match=r"take a model that does, such as lenet5|has no BatchNorm"):
        derivations.by_name(name).build(Setting(LINEAR, 4, 4))


@pytest.mark.parametrize("name", ["norm_sums", "norm_statistics", "compare", "blend"])
def test_programs_of_a_model_with_batch_norm_are_lowered(name: str) -> None:
    network = normed()
    known = {derivation.name: derivation for derivation in (*OF_CANDIDATES, *DERIVATIONS.values())}
    source = known[name].build(Setting(network, 4, 2, 2))

    assert difference(source, {**network.weights, **network.buffers}) <= 1e-5


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"candidates": 65}, NotExportable, "65 candidates cannot be compared; 1 to 64 can"),
        ({"programs": ("clas_sums",)}, UnknownChoice, "program 'clas_sums' is unknown; there are class_sums, "),
        ({"objective": "distil"}, NotExportable, "'predictions' runs over public photos; give a folder"),
        ({"public": Path("gone")}, NotExportable, "no public photos: gone is no folder"),
        ({"public": Path(__file__).parent}, NotExportable, "no public photos in programs; give JPEG"),
        ({"objective": "moon", "concatenated": 2}, NotExportable, "objective 'moon' needs the features of one model"),
        ({"public": Path("x"), "concatenated": 2}, NotExportable, "concatenates extractors has no public photos"),
    ],
)
def test_settings_that_cannot_be_are_refused_early(
    settings: dict[str, Any], error: type[ExportError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        check_training(Training(class_names=("cat", "dog"), **settings))


@pytest.mark.slow
def test_a_bundle_has_the_programs_and_the_public_photos_that_are_asked_for(tmp_path: Path, coloured: Path) -> None:
    bundle = frozen_bundle(
        tmp_path / "b", objective="dynamic", candidates=2, public=coloured, programs=("scores", "dual_update")
    )

    derived = {p.name: p.makes for p in bundle.manifest.programs if kind_of(p) == ProgramKind.DERIVE}
    names = {p.name: p for p in bundle.manifest.programs}
    public = Blob.open(bundle.part(bundle.manifest.public.sha256), bundle.manifest.public.sha256)
    assert derived == {
        **{"compare": "losses", "least": "choice", "importance": "importance", "gain": "gain", "blend": "weights"},
        **{"dual_update": "dual", "scores": "predictions"},
    }
    assert list(names["compare"].optional) == ["candidate-0", "candidate-1", "base"]
    assert (names["step"].objective, names["step"].optimiser, names["predict"].objective) == ("dynamic", "sgd", "")
    # 16 photos of each colour, and one that cannot be read; neither colour is a class.
    assert bundle.manifest.public.rows == 32
    assert public["input"].shape == (32, 12)
    assert public["label"].tolist() == [0] * 32


def test_public_photos_in_a_folder_named_like_a_class_have_its_label(tmp_path: Path, coloured: Path) -> None:
    for name in ("emu", "other"):
        (tmp_path / "emu" / name).mkdir(parents=True)
        photo = (coloured / "red" / "1.png").read_bytes()
        (tmp_path / "emu" / name / "1.png").write_bytes(photo)
    (tmp_path / "emu" / "0.png").write_bytes(photo)

    public = frozen_bundle(tmp_path / "b", public=tmp_path / "emu").manifest.public

    found = Blob.open(tmp_path / "b" / "parts" / public.sha256.hex(), public.sha256)
    # First those of the folder itself, whose name says nothing, then class by class; emu is the third class.
    assert found["label"].tolist() == [0, 2, 0]
