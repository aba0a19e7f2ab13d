import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import Result

from fedlens_export.exporting import Training, frozen_backbone_bundle
from fedlens_export.models import backbones
from fedlens_export.programs import lowering, pte_program
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.edge_client.linear import make_bundle
from tests.fedlens.commands.cli import error_text, fedlens

FORMATS = {"pt2": pb.PROGRAM_FORMAT_PT2, "pte": pb.PROGRAM_FORMAT_PTE, "onnx": pb.PROGRAM_FORMAT_ONNX}


def export(folder: Path, *, pte: bool) -> Bundle:
    """One convolution, frozen, and a linear head on its 3 x 3 x 2 = 18 outputs."""
    backbone = nn.Sequential(nn.Conv2d(3, 2, 3, stride=2), nn.Hardswish(), nn.AdaptiveAvgPool2d(3), nn.Flatten()).eval()
    head = backbones.build_head("linear", 18, 2, seed=0)
    training = Training(class_names=("cat", "[dog]"), batch=4, objective="proximal", pte=pte, onnx=True)
    return frozen_backbone_bundle(folder, backbone, head, training, 16)


def rewrite(bundle: Bundle) -> None:
    """Write the manifest, which was changed."""
    (bundle.folder / "manifest.pb").write_bytes(bundle.manifest.SerializeToString(deterministic=True))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """With a small function as the `.pte` of `embed`; lowering all three programs takes long."""

    def function(photo: Tensor, features: Tensor) -> tuple[Tensor, ...]:
        return torch.relu(photo * photo), features > 0

    bundle = export(tmp_path_factory.mktemp("shown") / "bundle", pte=False)
    examples = [torch.zeros(1, 3, 16, 16), torch.zeros(2)]
    raw, _ = pte_program.lower("embed", lowering.trace("embed", function, examples))
    digest = sha256(raw).digest()
    bundle.part(digest).write_bytes(raw)
    manifest = bundle.manifest
    (embed,) = [p for p in manifest.programs if p.name == "embed"]
    embed.files.add(format=pb.PROGRAM_FORMAT_PTE, sha256=digest)
    manifest.parts.add(sha256=digest, size=len(raw))
    rewrite(bundle)
    return Bundle.open(bundle.folder)


@pytest.fixture
def copy(bundle: Bundle, tmp_path: Path) -> Bundle:
    shutil.copytree(bundle.folder, tmp_path / "copy")
    return Bundle.open(tmp_path / "copy")


def show(path: Path, *more: str) -> Result:
    return fedlens("bundle", "show", path, *more)


def shown(path: Path) -> Any:
    return json.loads(show(path, "--json").stdout)


def file_of(values: Any, program: str, kind: str) -> Any:
    (found,) = [p for p in values["programs"] if p["name"] == program]
    (file,) = [f for f in found["files"] if f["format"] == kind]
    return file


def with_program(bundle: Bundle, name: str, kind: pb.ProgramFormat, content: bytes) -> None:
    """Put other bytes in the place of a program, in a bundle that is right otherwise."""
    manifest = bundle.manifest
    (program,) = [p for p in manifest.programs if p.name == name]
    (file,) = [f for f in program.files if f.format == kind]
    (part,) = [p for p in manifest.parts if p.sha256 == file.sha256]
    file.sha256 = part.sha256 = sha256(content).digest()
    part.size = len(content)
    bundle.part(file.sha256).write_bytes(content)
    rewrite(bundle)


@pytest.mark.slow
def test_json_has_everything_of_the_manifest(bundle: Bundle) -> None:
    values = shown(bundle.folder)

    assert values["id"] == bundle.id.hex()
    assert values["class"] == "frozen_backbone"
    (step,) = (program for program in values["programs"] if program["name"] == "step")
    assert (step["objective"], step["optimiser"], step["makes"]) == ("proximal", "sgd", None)
    assert (values["class_names"], values["batch"], values["last_batch"]) == (["cat", "[dog]"], 4, "masked")
    assert values["preprocessing"] == {"version": 1, "height": 16, "width": 16}
    weight = {"name": "classifier.weight", "shape": [2, 18], "dtype": "float32", "kind": "linear", "role": "classifier"}
    assert weight in values["tensors"]
    assert {"name": "mu", "default": 0.01, "minimum": 0.0, "maximum": 1000.0} in values["hyper_parameters"]
    tensors = ["classifier.bias", "classifier.weight"]
    assert step["references"] == [{"name": "global", "tensors": tensors, "optional": False}]
    assert values["tools"].keys() >= {"fedlens", "torch"}
    assert values["initial"]["sha256"] == bundle.manifest.initial.hex()
    assert values["part_bytes"] == sum(file.stat().st_size for file in (bundle.folder / "parts").iterdir())


def test_json_tells_of_every_program_what_it_calls_and_where(bundle: Bundle) -> None:
    values = shown(bundle.folder)
    embed = {kind: file_of(values, "embed", kind) for kind in FORMATS}

    assert embed["pt2"]["operators"]["aten.convolution.default"] == 1
    assert embed["onnx"]["operators"]["Conv"] == 1
    # The rectifier is fused into the product; the comparison is left to a kernel of its own.
    assert embed["pte"]["xnnpack"] == {"Multiply": 1}
    assert embed["pte"]["operators"] == {"aten.gt.Scalar_out": 1}
    assert embed["pte"]["delegated_share"] == 1 / 2
    size = bundle.program_file("embed", pb.PROGRAM_FORMAT_PTE).stat().st_size
    memory = embed["pte"]["memory"]
    # A photo of 3 x 16 x 16 float32 comes out; the one that goes in is read where it is.
    assert 3 * 16 * 16 * 4 <= memory["planned"] < 2 * 3 * 16 * 16 * 4
    assert (memory["file"], memory["total"]) == (size, size + memory["planned"])
    assert {file["error"] for program in values["programs"] for file in program["files"]} == {None}


@pytest.mark.long
def test_a_bundle_for_phones_tells_of_all_its_programs_what_runs_in_xnnpack(tmp_path: Path) -> None:
    bundle = export(tmp_path / "bundle", pte=True)

    values = shown(bundle.folder)

    shares = {name: file_of(values, name, "pte")["delegated_share"] for name in ("embed", "step", "predict")}
    assert min(shares.values()) > 0.2
    assert file_of(values, "embed", "pte")["xnnpack"]["Conv2d"] == 1
    assert file_of(values, "predict", "pte")["xnnpack"]["BatchMatrixMultiply"] == 1


def test_people_get_tables_and_either_path_will_do(bundle: Bundle) -> None:
    by_folder, by_manifest = show(bundle.folder), show(bundle.folder / "manifest.pb")

    assert by_folder.exit_code == 0
    assert by_folder.stdout == by_manifest.stdout
    for text in (bundle.id.hex(), "2: cat, [dog]", "classifier.weight", "0 to 1000", "50%: 1", "16 x 16 pixels"):
        assert text in by_folder.stdout


@pytest.mark.parametrize("kind", FORMATS)
def test_a_damaged_program_is_named_and_the_rest_is_shown(kind: str, copy: Bundle) -> None:
    raw = copy.program_file("embed", FORMATS[kind]).read_bytes()
    with_program(copy, "embed", FORMATS[kind], raw[: len(raw) // 2])

    result = show(copy.folder)

    assert f"fedlens: program 'embed' as .{kind}: program refused: " in error_text(result)
    assert "cannot be read" in result.stdout
    values = shown(copy.folder)
    assert file_of(values, "embed", kind)["operators"] is None
    assert file_of(values, "step", "pt2")["operators"]


def test_a_bundle_whose_programs_are_all_foreign_is_shown_without_them(tmp_path: Path) -> None:
    make_bundle(tmp_path / "linear")

    result = show(tmp_path / "linear")

    assert "as .pt2: program refused: it is no readable zip archive" in error_text(result)
    assert "fc.weight" in result.stdout


def test_parts_with_another_digest_are_told_with_what_they_are_of_and_the_rest_is_shown(copy: Bundle) -> None:
    part = copy.program_file("embed", pb.PROGRAM_FORMAT_PTE)
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    gone, initial = copy.program_file("step", pb.PROGRAM_FORMAT_PT2), copy.part(copy.manifest.initial)
    gone.unlink()
    initial.write_bytes(b"x")

    result = show(copy.folder)

    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"fedlens: program 'embed' as .pte: part {part.name} is damaged (digest differs)",
        f"fedlens: program 'step' as .pt2: part {gone.name} is missing",
        f"fedlens: initial weights: part {initial.name} is damaged (digest differs)",
    ]
    assert "cannot be read" in result.stdout
    values = shown(copy.folder)
    assert file_of(values, "embed", "pte")["operators"] is None
    assert file_of(values, "predict", "pt2")["operators"]
    assert values["frozen"]["error"] is None


def test_a_damaged_part_that_nothing_uses_is_told(copy: Bundle) -> None:
    copy.manifest.parts.add(sha256=bytes(32), size=1)
    rewrite(copy)

    assert show(copy.folder).stderr == f"fedlens: unused: part {'00' * 32} is missing\n"


@pytest.mark.parametrize(
    ("name", "told"),
    [("gone", "is no bundle"), ("file", "is no bundle"), ("manifest.pb", "the manifest is damaged")],
)
def test_what_is_no_bundle_is_told(name: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "manifest.pb").write_text("hello")

    assert told in error_text(show(tmp_path / name))


def test_names_are_printed_without_what_a_terminal_would_obey(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "linear")
    bundle.manifest.class_names[0] = "\x1b[2Jcat"
    rewrite(bundle)

    assert "\x1b" not in show(bundle.folder).stdout
    assert shown(bundle.folder)["class_names"][0] == "\x1b[2Jcat"
