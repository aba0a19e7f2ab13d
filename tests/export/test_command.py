"""`fedlens export` at the command line."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fedlens.cli import app
from fedlens_export import display_names
from fedlens_export.errors import NotExportable
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb


def export(folder: Path, *changed: str, out: str = "b") -> Result:
    """The command for two classes; an option that is given twice counts as given last."""
    for name in ("dog", "cat"):
        (folder / "photos" / name).mkdir(parents=True, exist_ok=True)
    usual = ["--model", "lenet5", "--classes-from", str(folder / "photos"), "--out", str(folder / out)]
    return CliRunner().invoke(app, ["export", *usual, *changed])


def test_export_writes_a_bundle_and_says_what_is_in_it(tmp_path: Path) -> None:
    result = export(tmp_path, "--input-size", "16")

    bundle = Bundle.open(tmp_path / "b")
    assert result.exit_code == 0
    assert bundle.id.hex() in result.stdout
    assert "2: cat, dog" in result.stdout
    assert "fc3.weight" in result.stdout
    assert "lowering step" in result.stderr
    assert "largest difference" not in result.stdout


@pytest.mark.slow
def test_check_prints_how_far_each_program_is_from_the_model(tmp_path: Path) -> None:
    result = export(tmp_path, "--input-size", "16", "--check")

    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row[:2] for row in rows[1:4]] == [["step", "pt2"], ["predict", "pt2"], ["predict", "onnx"]]
    assert all(float(row[2]) <= float(row[3]) == 1e-5 for row in rows[1:4])


@pytest.mark.slow
def test_a_bundle_gets_onnx_and_is_concatenated_as_told(tmp_path: Path) -> None:
    export(tmp_path, "--input-size", "16", "--concatenated", "2", out="with")
    export(tmp_path, "--input-size", "16", "--concatenated", "2", "--no-onnx", out="without")

    found = [
        {file.format for program in Bundle.open(tmp_path / name).manifest.programs for file in program.files}
        for name in ("with", "without")
    ]
    assert found == [{pb.PROGRAM_FORMAT_PT2, pb.PROGRAM_FORMAT_ONNX}, {pb.PROGRAM_FORMAT_PT2}]
    assert Bundle.open(tmp_path / "with").manifest.concatenated == 2


@pytest.mark.slow
def test_programs_for_candidates_public_photos_and_more_are_added_as_told(tmp_path: Path, coloured: Path) -> None:
    more = ["--candidates", "1", "--public", str(coloured), "--program", "scores", "--program", "predictions"]

    result = export(tmp_path, "--input-size", "16", "--no-onnx", *more)

    found = [p.name for p in Bundle.open(tmp_path / "b").manifest.programs]
    derived = ["compare", "least", "importance", "gain", "blend", "scores", "predictions"]
    assert found == ["step", "predict", *derived]
    # 32 photos of 3 x 16 x 16 float32, and their labels.
    assert "32 photos, 99 kB" in result.stdout
    assert "because unreadable: 1" in result.stderr


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (["--model", "lenet6"], "model 'lenet6' is unknown; there are fedns_cnn, lenet5, lenet5_bn, small_plain, "),
        (["--classes-from", "gone"], "gone is no folder"),
        (["--input-size", "8"], "at least 16 pixels"),
        (["--model", "small_plain", "--objective", "supcon", "--stored-views", "1"], "1 stored views are not allowed"),
        (["--model", "alexnet", "--objective", "supcon"], "compares features, and head 'linear' has none; take"),
        (["--target", "pte"], "phones train FC layers only"),
        (["--candidates", "-1"], "-1 candidates cannot be compared; 1 to 64 can"),
        (["--public", "gone"], "no public photos: gone is no folder"),
        (["--display-names", "gone"], "gone cannot be read: No such file or directory"),
        (["--display-names", os.devnull], "null is not JSON: EOF while parsing a value"),
        (["--program", "means"], "program 'means' is unknown; there are class_sums, class_means, "),
        (["--concatenated", "65"], "65 extractors cannot be concatenated; 1 to 64 can"),
        (["--model", "mobilenet_v3_small", "--backbone-weights", "gone.pth"], "gone.pth cannot be read"),
        (["--model", "resnet18", "--backbone-weights", os.devnull], "null cannot be read as a state dict: it"),
    ],
)
def test_a_mistake_is_told_in_a_line_and_ends_with_status_1(changed: list[str], reason: str, tmp_path: Path) -> None:
    result = export(tmp_path, *changed)

    assert result.exit_code == 1
    assert reason in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("text", ["[]", "{}", '{"de": "Katze"}', '{"de": {"cat": 1}}'])
def test_display_names_of_another_form_are_refused_with_the_right_one(text: str, tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text(text, encoding="utf-8")

    with pytest.raises(NotExportable, match=r'names.json must have the form \{"de": \{"cat": "Katze"\}\}'):
        display_names.read(tmp_path / "names.json")
