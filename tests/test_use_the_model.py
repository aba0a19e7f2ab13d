"""`docs/use-the-model.md`: its code reads photos as clients do, and gives the logits of the model that was trained."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file
from torch import nn

from fedlens_export.exporting import Training, whole_model_bundle
from fedlens_export.programs import whole_model
from fedlens_export.programs.composed import Trained
from fedlens_proto import photos

DOCS = Path(__file__).parent.parent / "docs"
CLASSES = ("cat", "dog", "emu")
SIDE = 32


def blocks(page: str) -> list[str]:
    """The Python code of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


READ, OWN, PT2, ONNX = blocks("use-the-model.md")


@pytest.fixture
def photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A photo of noise that lies on its side, in the current folder."""
    monkeypatch.chdir(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.random.default_rng(1).integers(0, 256, (90, 71, 3), np.uint8)
    Image.fromarray(pixels).save("holiday.jpg", exif=exif)
    return tmp_path / "holiday.jpg"


def run(*code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile("\n".join(code), "docs/use-the-model.md", "exec"), names)
    return names


def test_the_page_reads_a_photo_as_clients_do(photo: Path) -> None:
    found = run(READ)["read_photo"](photo, SIDE)

    np.testing.assert_array_equal(found[0], photos.as_input(photos.load(photo, SIDE, SIDE)))


def test_the_pages_own_model_has_the_trained_head_on_the_old_backbone(
    photo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(photo.parent)
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    (module,) = blocks("your-own-model.md")
    Path("my_model.py").write_text(module)
    exported = run(module)["build"](classes=5)  # of other classes than the federation trains
    torch.save(exported.state_dict(), "birds.pt")
    head = {"fc1.weight": (64, 128), "fc1.bias": (64,), "fc2.weight": (3, 64), "fc2.bias": (3,)}
    trained = {name: np.zeros(shape, np.float32) for name, shape in head.items()}
    trained["fc2.bias"][:] = [0, np.log(2), 0]  # probabilities 1/4, 2/4, 1/4, whatever the photo shows
    save_file(trained, "model.safetensors", {"classes": json.dumps(CLASSES)})

    names = run(READ, OWN)
    sys.modules.pop("my_model")

    torch.testing.assert_close(names["probabilities"], torch.tensor([0.25, 0.5, 0.25]))
    torch.testing.assert_close(names["model"].features[0].weight, exported.features[0].weight)
    assert capsys.readouterr().out == "dog\n"


@pytest.mark.parametrize(
    ("form", "code"), [(".pt2", f"import json, torch\n{PT2}"), pytest.param(".onnx", ONNX, marks=pytest.mark.slow)]
)
def test_a_whole_model_is_run_as_the_page_says(
    form: str, code: str, photo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = nn.Sequential(nn.Conv2d(3, 2, 5, stride=4), nn.Flatten(), nn.Linear(98, len(CLASSES)))
    bundle = whole_model_bundle(Path("bundle"), network, Training(class_names=CLASSES, batch=2), SIDE)
    trained = Trained(bundle, dict(bundle.initial()))
    Path(f"model{form}").write_bytes(whole_model.lower(trained, form, {"task": "birds"}).raw)
    pixels = photos.as_input(photos.load(photo, SIDE, SIDE))

    names = run("import json", READ, code)

    # The file normalises as every model that is trained as a whole: (x - 0.5) / 0.25.
    expected = network((torch.from_numpy(pixels)[None] - 0.5) / 0.25).detach()
    torch.testing.assert_close(torch.as_tensor(names["logits"]).detach(), expected, rtol=1e-5, atol=1e-5)
    assert names["about"]["task"] == "birds"
    assert capsys.readouterr().out == f"{CLASSES[int(expected.argmax())]}\n"
