"""A trained model as one program: it gives the logits of `fedlens predict`, without FedLens."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedlens_edge_client.engines import Engine
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.training.extracted import one_row
from fedlens_export.errors import NotExportable, ParityBroken
from fedlens_export.exporting import ExportSpec, Training, export_bundle, whole_model_bundle
from fedlens_export.programs import lowering, onnx_program, pte_program, whole_model
from fedlens_export.programs.composed import Trained
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.small import CLASSES, SIDE, flatten, frozen_bundle

pytestmark = pytest.mark.slow

Weights = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A backbone with a convolution and BatchNorm that is not the identity, and a hidden head."""
    backbone = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(2))
    backbone.append(nn.Flatten())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for tensor in (*backbone.parameters(), *backbone.buffers()):
            _ = tensor.is_floating_point() and nn.init.uniform_(tensor, 0.1, 1.0)
    return frozen_bundle(tmp_path_factory.mktemp("frozen") / "bundle", backbone, features=24, head="hidden")


@pytest.fixture(params=["whole_model", "frozen"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    """LeNet-5 with BatchNorm, all of it trained; and a head on a frozen backbone."""
    found: Bundle = request.getfixturevalue(request.param)
    return found


def trained(bundle: Bundle) -> Weights:
    """Weights that are not the initial ones."""
    drawn = np.random.default_rng(3)
    # Counters of batches are integers, and stay: less than 1 is added.
    return {
        name: (np.abs(tensor) + 0.05 * drawn.random(tensor.shape)).astype(tensor.dtype)
        for name, tensor in bundle.initial().items()
    }


def photos(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(7).random((count, 3, SIDE, SIDE), np.float32)


def logits_of(bundle: Bundle, weights: Mapping[str, NDArray[np.float32]], given: NDArray[np.float32]) -> Tensor:
    """By the engine that `fedlens predict` runs."""
    engine: Engine = TorchEngine(bundle)
    if bundle.manifest.bundle_class == pb.BUNDLE_CLASS_FROZEN_BACKBONE:
        given = np.stack([engine.embed(photo[np.newaxis]) for photo in given])
    return torch.from_numpy(engine.predict(weights, given))


def loaded(file: Path) -> Callable[[NDArray[np.float32]], Tensor]:
    """The function in a `.pt2`, over photos."""
    model = torch.export.load(file).module()
    return lambda given: model(torch.from_numpy(given)).detach()


def written(folder: Path, bundle: Bundle, form: str) -> Path:
    file = folder / f"model{form}"
    file.write_bytes(whole_model.lower(Trained(bundle, trained(bundle)), form, {"task": "demo"}).raw)
    return file


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert expected.std() > 1e-2  # or any logits would do
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_pt2_gives_the_logits_of_any_number_of_photos(bundle: Bundle, tmp_path: Path) -> None:
    run = loaded(written(tmp_path, bundle, ".pt2"))
    together = np.ascontiguousarray(photos(2).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)  # colours, in memory

    for given in (photos(1), photos(3), photos(5), together):
        assert_near(run(given), logits_of(bundle, trained(bundle), given))


def test_onnx_gives_the_logits_of_any_number_of_photos(bundle: Bundle, tmp_path: Path) -> None:
    session = onnxruntime.InferenceSession(written(tmp_path, bundle, ".onnx"))

    assert session.get_inputs()[0].shape == ["N", 3, SIDE, SIDE]
    assert session.get_outputs()[0].shape == ["N", len(CLASSES)]
    for count in (1, 3, 5):
        (found,) = session.run(["logits"], {"photos": photos(count)})
        assert_near(torch.from_numpy(found), logits_of(bundle, trained(bundle), photos(count)))


@pytest.mark.parametrize("name", ["frozen", pytest.param("whole_model", marks=pytest.mark.slow)])
def test_a_pte_gives_the_logits_of_one_photo(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    bundle: Bundle = request.getfixturevalue(name)
    file = written(tmp_path, bundle, ".pte")
    with pte_program.quietly():
        runtime = import_module("executorch.runtime").Runtime.get()
    loaded = runtime.load_program(file.read_bytes())

    (found,) = loaded.load_method("forward").execute([torch.from_numpy(photos(1))])

    assert_near(found, logits_of(bundle, trained(bundle), photos(1)))


def test_what_a_caller_must_know_is_in_the_file(frozen: Bundle, tmp_path: Path) -> None:
    extra = {whole_model.METADATA_FILE: ""}
    torch.export.load(written(tmp_path, frozen, ".pt2"), extra_files=extra)
    model = onnx.load(written(tmp_path, frozen, ".onnx"))

    in_pt2 = json.loads(extra[whole_model.METADATA_FILE])
    assert in_pt2 == {entry.key: entry.value for entry in model.metadata_props}
    assert in_pt2.keys() == {"task", "classes", "input", "output", "preprocessing"}
    assert (in_pt2["task"], json.loads(in_pt2["classes"])) == ("demo", list(CLASSES))
    assert in_pt2["input"].startswith("float32 [N, 3, 16, 16], RGB in 0..1")
    assert "scaled to 16 x 16" in in_pt2["preprocessing"]


def test_a_pt2_is_loaded_where_there_is_no_fedlens(frozen: Bundle, tmp_path: Path) -> None:
    file = written(tmp_path, frozen, ".pt2")
    script = (
        "import sys\n"
        "for name in ('fedlens', 'fedlens_export', 'fedlens_proto', 'fedlens_edge_client'): sys.modules[name] = None\n"
        "import torch\n"
        f"print(tuple(torch.export.load({str(file)!r}).module()(torch.zeros(2, 3, {SIDE}, {SIDE})).shape))"
    )

    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.splitlines()[-1] == "(2, 3)"
    assert str(Path(whole_model.__file__).parent).encode() not in file.read_bytes()


def test_extractors_side_by_side_are_all_inside_and_an_absent_one_gives_zeros(tmp_path: Path) -> None:
    spec = ExportSpec(model="lenet5", class_names=CLASSES, input_size=SIDE, batch=4, concatenated=3)
    bundle = export_bundle(tmp_path / "bundle", spec)
    drawn = np.random.default_rng(5)
    slots = [slot for slot in program(bundle.manifest, "extract").inputs if slot.kind == pb.SLOT_KIND_EXTRACTOR]
    first, last = ({s.name: drawn.normal(0, 0.2, s.shape).astype(np.float32) for s in slots} for _ in range(2))
    extractors = (first, None, last)

    raw = whole_model.lower(Trained(bundle, trained(bundle), extractors), ".pt2", {}).raw

    (tmp_path / "model.pt2").write_bytes(raw)
    engine = TorchEngine(bundle)
    rows = np.concatenate([one_row(photo[np.newaxis], engine, extractors) for photo in photos(3)])
    assert_near(loaded(tmp_path / "model.pt2")(photos(3)), torch.from_numpy(engine.predict(trained(bundle), rows)))


def test_extractors_of_another_number_are_refused(frozen: Bundle) -> None:
    with pytest.raises(NotExportable, match=r"has 1 extractors, bundle .* takes 0 side by side; give the task's own"):
        whole_model.lower(Trained(frozen, trained(frozen), [None]), ".pt2", {})


class CountsRows(nn.Module):
    """Logits by way of a tensor whose second size is the number of photos, as a trace has it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3 * SIDE * SIDE, len(CLASSES))

    def forward(self, photos: Tensor) -> Tensor:
        found: Tensor = self.fc(photos.reshape(1, len(photos), -1).squeeze(0))
        return found


def test_a_model_that_cannot_be_freed_of_its_batch_takes_one_photo(tmp_path: Path) -> None:
    bundle = whole_model_bundle(tmp_path / "bundle", CountsRows(), Training(class_names=CLASSES, batch=4), SIDE)

    whole = whole_model.lower(Trained(bundle, trained(bundle)), ".pt2", {})

    (tmp_path / "model.pt2").write_bytes(whole.raw)
    assert_near(loaded(tmp_path / "model.pt2")(photos(1)), logits_of(bundle, trained(bundle), photos(1)))
    assert whole.metadata["input"].startswith("float32 [1, 3, 16, 16]")


class Rounded(nn.Module):
    def forward(self, photos: Tensor) -> Tensor:
        return torch.round(photos * 8)


@pytest.fixture(scope="module")
def rounding(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A backbone that rounds, with programs for phones, as those in int8 are."""
    return frozen_bundle(tmp_path_factory.mktemp("rounding") / "bundle", nn.Sequential(Rounded(), flatten()), pte=True)


@pytest.mark.long
@pytest.mark.parametrize("form", [".onnx", ".pte"])
def test_an_int8_backbone_is_refused_where_its_numbers_would_change(rounding: Bundle, form: str) -> None:
    with pytest.raises(NotExportable, match=rf"as {form}: its backbone is int8.*take a name in \.pt2"):
        whole_model.lower(Trained(rounding, trained(rounding)), form, {})


def test_an_int8_backbone_is_emulated_one_photo_at_a_time(rounding: Bundle, tmp_path: Path) -> None:
    found = loaded(written(tmp_path, rounding, ".pt2"))(photos(1))

    assert_near(found, logits_of(rounding, trained(rounding), photos(1)))


@pytest.mark.parametrize(("form", "named"), [(".pt", "a name in .pt,"), ("", "a name without an ending,")])
def test_another_form_is_refused_with_those_that_there_are(form: str, named: str) -> None:
    with pytest.raises(NotExportable, match=rf"found {named} must be one in \.pt2, \.onnx, \.pte"):
        whole_model.check_form(form)


@pytest.mark.parametrize(
    ("form", "named"), [(".pte", "executorch, not installed"), (".onnx", "onnx and onnxscript, not installed")]
)
def test_a_form_whose_tools_are_not_installed_is_refused_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, form: str, named: str
) -> None:
    for module in (whole_model, onnx_program):
        monkeypatch.setattr(module, "find_spec", lambda name: None)

    with pytest.raises(NotExportable, match=rf"{form} needs {named} here; run pip install 'fedlens\[export\]'"):
        whole_model.check_form(form)
    whole_model.check_form(".pt2")


def test_a_file_that_computes_something_else_is_refused(frozen: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    load = onnx_program.load

    def wrong(raw: bytes) -> lowering.Function:
        right = load(raw)
        assert right is not None
        return lambda *given: tuple(found * 1.001 for found in right(*given))

    monkeypatch.setattr(onnx_program, "load", wrong)

    with pytest.raises(ParityBroken, match="'whole model' as ONNX differs from the model by"):
        whole_model.lower(Trained(frozen, trained(frozen)), ".onnx", {})
