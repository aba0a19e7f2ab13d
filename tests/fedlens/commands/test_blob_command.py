import json
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from typer.testing import Result

from fedlens_proto import blob
from fedlens_proto.blob import Array, Blob
from tests.fedlens.commands.cli import error_text, fedlens

WEIGHT = np.array([[3.0, -4.0], [0.0, 0.1]], np.float32)
MODEL: dict[str, Array] = {
    "fc.bias": np.array([1.0, 1e-30], np.float32),
    "fc.weight": WEIGHT,
    "steps": np.array(2**53 + 1, np.int64),
}


def run(*arguments: object) -> Result:
    return fedlens("blob", *arguments)


def listed(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").write_bytes(blob.encode(MODEL))
    return tmp_path / "model"


@pytest.fixture
def change(tmp_path: Path, model: Path) -> Path:
    """A difference of one to every number of the model."""
    ones = {name: np.ones_like(tensor) for name, tensor in MODEL.items()}
    raw = blob.encode(ones, base=sha256(model.read_bytes()).digest())
    (tmp_path / "change.blob").write_bytes(raw)
    return tmp_path / "change.blob"


def test_show_tells_how_tensors_are_stored_and_what_they_hold(model: Path) -> None:
    values = listed("show", model)

    assert (values["format"], values["base"], values["elements"]) == ("blob", None, 7)
    assert values["sha256"] == sha256(model.read_bytes()).hexdigest()
    assert values["bytes"] == model.stat().st_size
    # min -4, max 3, mean (3 - 4 + 0 + 0.1) / 4 = -0.225, norm sqrt(9 + 16 + 0.01) = 5.001
    weight = next(tensor for tensor in values["tensors"] if tensor["name"] == "fc.weight")
    stored = {"name": "fc.weight", "shape": [2, 2], "dtype": "float32", "codec": "f32", "bytes": 16}
    numbers = {"min": -4.0, "max": 3.0, "mean": pytest.approx(-0.225), "norm": pytest.approx(5.001, abs=1e-4)}
    assert weight == stored | numbers
    assert (values["tensors"][2]["max"], values["tensors"][2]["codec"]) == (2**53 + 1, "i64")


def test_show_has_a_table_for_people_and_the_base_of_a_difference(change: Path, model: Path) -> None:
    result = run("show", change)

    assert result.exit_code == 0
    assert "2 x 2" in result.stdout
    assert "one number" in result.stdout
    assert f"to be added to blob {sha256(model.read_bytes()).hexdigest()}" in result.stdout
    assert listed("show", change)["base"] == sha256(model.read_bytes()).hexdigest()


def test_diff_tells_by_tensor_how_far_two_models_are_apart(model: Path, tmp_path: Path) -> None:
    # 2**53 + 1 and 2**53 are one number in float64, and two here.
    other = {**MODEL, "fc.weight": np.array([[3.0, -1.0], [4.0, 0.1]], np.float32), "steps": np.array(2**53)}
    (tmp_path / "other").write_bytes(blob.encode(other))

    result = run("diff", model, tmp_path / "other", "--json")
    values = json.loads(result.stdout)

    assert result.exit_code == 1
    assert (values["equal"], values["missing"], values["extra"]) == (False, [], [])
    bias, weight, steps = values["tensors"]
    assert (bias["equal"], bias["largest"], bias["norm"]) == (True, 0, 0)
    # Distances 3 and 4; relative 3 / 4 and 4 / 4; norm sqrt(9 + 16).
    measured = [weight[key] for key in ("different", "largest", "largest_relative", "norm")]
    assert measured == [2, 4.0, 1.0, 5.0]
    assert (steps["equal"], steps["largest"]) == (False, 1.0)


def test_diff_names_what_is_missing_and_what_has_another_shape(model: Path, tmp_path: Path) -> None:
    other = {"fc.weight": np.zeros((2, 3), np.float32), "steps": np.array(1.0, np.float32), "[new]": WEIGHT}
    (tmp_path / "other").write_bytes(blob.encode(other))

    result = run("diff", model, tmp_path / "other")
    values = listed("diff", model, tmp_path / "other")

    assert result.exit_code == 1
    assert "2 x 2 | 2 x 3" in result.stdout
    assert "int64 one number | float32 one number" in result.stdout
    assert f"only in {model}: fc.bias" in result.stdout
    assert f"only in {tmp_path / 'other'}: [new]" in result.stdout
    assert (values["missing"], values["extra"]) == (["fc.bias"], ["[new]"])


def test_a_difference_is_no_model(model: Path, change: Path) -> None:
    result = run("diff", model, change)

    assert result.exit_code == 1
    assert f"not of one kind: {model} holds whole tensors" in result.stdout


@pytest.mark.parametrize(("content", "text"), [(None, "there is no file"), (b"FEDLENS\0\1", "truncated")])
def test_diff_tells_trouble_from_a_difference(content: bytes | None, text: str, model: Path, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "other").write_bytes(content)

    assert text in error_text(run("diff", model, tmp_path / "other"), status=2)


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".pth", ".blob", ""])
def test_there_and_back_gives_the_same_bytes(ending: str, model: Path, tmp_path: Path) -> None:
    there = tmp_path / f"there{ending}"
    results = [run("convert", model, there), run("convert", there, tmp_path / "back.blob"), run("diff", model, there)]

    assert [result.exit_code for result in results] == [0, 0, 0], [result.stderr for result in results]
    assert (tmp_path / "back.blob").read_bytes() == model.read_bytes()
    assert results[2].stdout.splitlines()[-1] == "equal"
    assert not list(tmp_path.glob(".*"))


def test_a_state_dict_is_what_torch_reads_and_a_function_of_the_tensors_alone(model: Path, tmp_path: Path) -> None:
    run("convert", model, tmp_path / "one.pt")
    run("convert", model, tmp_path / "two.pth")

    state = torch.load(tmp_path / "one.pt", weights_only=True)

    assert {name: tensor.numpy().tolist() for name, tensor in state.items()} == {
        name: tensor.tolist() for name, tensor in MODEL.items()
    }
    assert (tmp_path / "one.pt").read_bytes() == (tmp_path / "two.pth").read_bytes()


def test_a_modules_state_dict_becomes_a_blob(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.BatchNorm2d(2))
    module[0].weight.data = module[0].weight.data.to(memory_format=torch.channels_last)
    torch.save(OrderedDict(module.state_dict(keep_vars=True)), tmp_path / "module.pth")

    result = run("convert", tmp_path / "module.pth", tmp_path / "module.blob")

    assert result.exit_code == 0, result.stderr
    found = Blob.open_checked(tmp_path / "module.blob")
    assert sorted(found) == sorted(module.state_dict())
    np.testing.assert_array_equal(found["0.weight"], module[0].weight.detach().numpy())


@pytest.mark.parametrize("codec", ["f16", "int8"])
def test_a_codec_makes_a_blob_smaller_and_loses_little(codec: str, model: Path, tmp_path: Path) -> None:
    assert run("convert", model, tmp_path / "small.blob", "--codec", codec).exit_code == 0

    tensors = {tensor["name"]: tensor for tensor in listed("show", tmp_path / "small.blob")["tensors"]}
    weight = listed("diff", model, tmp_path / "small.blob")["tensors"][1]

    assert tensors["fc.weight"]["codec"] == codec
    # f16: 4 * 2 bytes; int8: 4 * 1 and a scale of 4 bytes for each of 2 rows.
    assert tensors["fc.weight"]["bytes"] == {"f16": 8, "int8": 12}[codec]
    # f16: 0.1 has 11 digits; int8: the values of a row whose largest is 4 are off by at most half of 4 / 127.
    assert 0 < weight["largest"] <= 4 / 127 / 2


def test_float16_of_others_is_read_as_it_is(tmp_path: Path) -> None:
    save_file({"w": WEIGHT.astype(np.float16)}, tmp_path / "half.safetensors")

    assert run("convert", tmp_path / "half.safetensors", tmp_path / "whole.safetensors").exit_code == 0

    found = load_file(tmp_path / "whole.safetensors")["w"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, WEIGHT.astype(np.float16))
    assert listed("show", tmp_path / "half.safetensors")["tensors"][0]["codec"] == "f16"


def test_a_difference_is_added_to_its_base(model: Path, change: Path, tmp_path: Path) -> None:
    result = run("convert", change, tmp_path / "sum.safetensors", "--base", model)

    assert result.exit_code == 0, result.stderr
    found = load_file(tmp_path / "sum.safetensors")
    np.testing.assert_array_equal(found["fc.weight"], WEIGHT + np.float32(1))
    assert found["steps"].tolist() == 2**53 + 2


def test_a_file_that_is_there_is_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.pt").write_text("old")

    assert run("convert", model, tmp_path / "out.pt").exit_code == 0
    assert run("diff", model, tmp_path / "out.pt").exit_code == 0
    assert run("convert", model, model, "--codec", "f16").exit_code == 0
    assert listed("show", model)["tensors"][0]["codec"] == "f16"


def test_what_cannot_be_converted_is_told_and_leaves_what_was_there(model: Path, change: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(blob.encode({"w": WEIGHT}))
    (tmp_path / "huge").write_bytes(blob.encode({"w": np.full((1, 1), 3e38, np.float32)}))
    raw = blob.encode({"w": np.full((1, 1), 3e38, np.float32)}, base=sha256((tmp_path / "huge").read_bytes()).digest())
    (tmp_path / "beyond").write_bytes(raw)
    out = tmp_path / "out.blob"
    out.write_text("old")
    mistakes: dict[tuple[object, ...], str] = {
        (model, tmp_path / "out.npz"): "the ending '.npz' is unknown; there are .safetensors, .pt or .pth",
        (model, out, "--codec", "f8"): "codec 'f8' is unknown; there are f32, f16, int8",
        (model, tmp_path / "out.pt", "--codec", "f16"): "only blobs have codecs",
        (change, out): "name the file of that blob with --base",
        (change, out, "--base", tmp_path / "other"): "holds the difference to blob",
        (model, out, "--base", model): "leave --base out",
        (tmp_path / "gone", out): "there is no file",
        (tmp_path / "huge", out, "--codec", "f16"): "too large for w float16[1, 1]",
        (tmp_path / "beyond", out, "--base", tmp_path / "huge"): "'w' holds a NaN or an infinity",
        (model, tmp_path / "gone" / "out.blob"): "cannot be written",
        (tmp_path, out): "cannot be read",
    }
    for arguments, text in mistakes.items():
        assert text in error_text(run("convert", *arguments))
    assert out.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "change.blob", "other", "huge", "beyond", "out.blob"}


FOREIGN: dict[str, tuple[object, str]] = {
    "double": ({"w": torch.ones(2, dtype=torch.float64)}, "tensor 'w' has dtype float64; float32, float16 and int64"),
    "brain": ({"w": torch.ones(2, dtype=torch.bfloat16)}, "tensor 'w' has dtype bfloat16"),
    "truth": ({"w": torch.ones(2, dtype=torch.bool)}, "tensor 'w' has dtype bool"),
    "sparse": ({"w": torch.ones(2, 2).to_sparse()}, "sparse, quantised or without data"),
    "meta": ({"w": torch.ones(2, device="meta")}, "sparse, quantised or without data"),
    "checkpoint": ({"state_dict": {"w": torch.ones(2)}, "epoch": 3}, "save `model.state_dict()` alone"),
    "no name": ({0: torch.ones(2)}, "0 is Tensor, not a tensor by name"),
    "empty name": ({"": torch.ones(2)}, "tensor name '' is empty"),
    "escape": ({"\x1b[2J": torch.ones(2)}, "not printable"),
    "nothing in it": ({"w": torch.ones(0, 2)}, "'w'"),
    "nan": ({"w": torch.tensor([float("nan")])}, "tensor 'w' holds a NaN or an infinity"),
    "tensor": (torch.ones(2), "it holds a Tensor, not a dict of tensors"),
    "module": (torch.nn.Linear(2, 2), "no plain dict of tensors, and is not loaded"),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
@pytest.mark.parametrize("case", FOREIGN)
def test_a_state_dict_that_no_blob_can_hold_is_refused(case: str, tmp_path: Path) -> None:
    content, text = FOREIGN[case]
    torch.save(content, tmp_path / "foreign.pt")

    told = error_text(run("convert", tmp_path / "foreign.pt", tmp_path / "out.blob"))

    assert "foreign.pt" in told
    assert text in told
    assert not (tmp_path / "out.blob").exists()


def test_safetensors_that_no_blob_can_hold_are_refused(tmp_path: Path) -> None:
    save_file({"w": np.ones(2, np.float64)}, tmp_path / "double.safetensors")
    header = b'{"w":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'
    (tmp_path / "brain.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")

    for name, dtype in (("double", "F64"), ("brain", "BF16")):
        assert f"tensor 'w' has dtype {dtype}" in error_text(run("show", tmp_path / f"{name}.safetensors"))


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".blob"])
def test_a_damaged_file_never_ends_in_a_traceback(ending: str, model: Path, tmp_path: Path) -> None:
    good = tmp_path / f"good{ending}"
    assert run("convert", model, good).exit_code == 0
    raw = good.read_bytes()
    bad = tmp_path / f"bad{ending}"
    # Cut short at several places, then bytes changed all over it: an error, or numbers that another file could hold.
    variants = [raw[: len(raw) * cut // 8] for cut in range(8)]
    variants += [raw[:at] + bytes([raw[at] ^ 0xFF]) + raw[at + 1 :] for at in range(0, len(raw), len(raw) // 50)]

    for position, content in enumerate(variants):
        bad.write_bytes(content)
        result = run("show", bad)

        assert result.exit_code == 1 or (result.exit_code == 0 and position >= 8), result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), position
