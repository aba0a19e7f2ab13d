import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import Result

from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_proto import blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2
from tests.edge_client.fakes import TOKEN, FakeServer, fedavg_plan, train_of
from tests.edge_client.photo_folders import add_photos, make_album
from tests.fedlens.commands.cli import error_text, fedlens

LENET5 = ExportSpec(model="lenet5", class_names=("cat", "dog"), batch=8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_bundle(tmp_path_factory.mktemp("lenet5") / "bundle", LENET5)


@pytest.fixture(scope="module")
def concatenating(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same model's, with a classifier on two extractors side by side."""
    return export_bundle(tmp_path_factory.mktemp("concatenating") / "bundle", replace(LENET5, concatenated=2))


@pytest.fixture(scope="module")
def trained(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The blob that `fedlens client` uploads after some epochs on reddish cats and bluish dogs."""
    folder = tmp_path_factory.mktemp("client")
    make_album(folder / "photos")
    plan = fedavg_plan(30)
    rates = [hyper.name for hyper in bundle.manifest.hyper_parameters if hyper.name.startswith("lr")]
    for rate in rates:
        train_of(plan).hyper_values.add(name=rate, value=0.05)
    folders = ("--photos", folder / "photos", "--state", folder / "state")

    async def train() -> bytes:
        async with FakeServer(bundle, plan) as server:
            command = ("client", "--trust-server", "--server", server.url, *folders)
            result = await asyncio.to_thread(fedlens, *command, FEDLENS_ENROLMENT_TOKEN=TOKEN)
        assert result.exit_code == 0, result.output
        return server.blob(1)

    return asyncio.run(train())


@pytest.fixture
def model(trained: bytes, tmp_path: Path) -> Path:
    (tmp_path / "model").write_bytes(trained)
    return tmp_path / "model"


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    (cat,) = add_photos(tmp_path, "cat", 1, seed=99)
    return cat


def predict(model: Path, bundle: Bundle, *more: object) -> Result:
    return fedlens("predict", "--model", model, "--bundle", bundle.folder, *more)


def save(model: Path, weights: bytes, bundle_id: bytes, **metadata: str) -> Path:
    """Write the weights as safetensors."""
    tensors = {name: np.array(tensor) for name, tensor in blob.Blob.from_bytes(weights).items()}
    save_file(tensors, model, metadata={"bundle": bundle_id.hex()} | metadata)
    return model


@pytest.mark.slow
def test_a_trained_model_tells_new_photos_apart(bundle: Bundle, model: Path, photo: Path, tmp_path: Path) -> None:
    cat, (dog,) = photo, add_photos(tmp_path, "dog", 1, seed=99)
    result = predict(model, bundle, cat, dog)

    assert result.exit_code == 0, result.output
    first, second = result.stdout.splitlines()
    assert first.startswith(f"{cat}: cat (")
    assert second.startswith(f"{dog}: dog (")


def test_json_has_every_probability_and_safetensors_say_the_same(
    bundle: Bundle, trained: bytes, model: Path, photo: Path, tmp_path: Path
) -> None:
    files = model, save(tmp_path / "model.safetensors", trained, bundle.id)
    results = [json.loads(predict(file, bundle, photo, "--json").stdout) for file in files]

    assert results[0] == results[1]
    (answer,) = results[0]
    assert answer["photo"] == str(photo)
    assert answer["class"] == "cat"
    assert list(answer["probabilities"]) == ["cat", "dog"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1)


def side_by_side(model: Path, trained: bytes, bundle: Bundle, extractors: list[str], **changed: blob.Array) -> None:
    """Write the model with its extractor at the second place, and a classifier that takes no notice of the first."""
    tensors = {name: np.array(tensor) for name, tensor in blob.Blob.from_bytes(trained).items()}
    weight, bias = tensors.pop("fc3.weight"), tensors.pop("fc3.bias")
    written = {f"cluster_1/{name}": tensor for name, tensor in tensors.items()}
    written |= {"classifier.weight": np.hstack([np.zeros_like(weight), weight]), "classifier.bias": bias}
    metadata = {"bundle": bundle.id.hex(), "extractors": json.dumps(extractors)}
    save_file({**written, **changed}, model, metadata=metadata)


def test_a_model_on_extractors_side_by_side_sees_what_they_see(
    bundle: Bundle, concatenating: Bundle, trained: bytes, model: Path, photo: Path, tmp_path: Path
) -> None:
    side_by_side(tmp_path / "model.safetensors", trained, concatenating, ["cluster_0", "cluster_1"])
    alone = predict(model, bundle, photo, "--json")
    beside = predict(tmp_path / "model.safetensors", concatenating, photo, "--json")

    assert (alone.exit_code, beside.exit_code) == (0, 0), alone.output + beside.output
    (expected,), (found,) = json.loads(alone.stdout), json.loads(beside.stdout)
    assert found["class"] == "cat"
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)


@pytest.mark.parametrize(
    ("extractors", "changed", "named"),
    [
        (["cluster_1"], {}, "it has 1 extractors, the bundle takes 2 side by side"),
        (["cluster_0", "other"], {}, "tensor 'cluster_1/"),
        (["cluster_0", "cluster_1"], {"cluster_0/x": np.zeros(2, np.float32)}, "extractor 1, tensor "),
    ],
)
def test_a_model_on_other_extractors_is_refused(
    concatenating: Bundle,
    trained: bytes,
    tmp_path: Path,
    extractors: list[str],
    changed: dict[str, blob.Array],
    named: str,
) -> None:
    side_by_side(tmp_path / "model.safetensors", trained, concatenating, extractors, **changed)

    assert named in error_text(predict(tmp_path / "model.safetensors", concatenating, "x.jpg"))


def test_a_list_of_extractors_that_is_none_is_refused(bundle: Bundle, trained: bytes, tmp_path: Path) -> None:
    model = save(tmp_path / "model.safetensors", trained, bundle.id, extractors="all")

    assert "extractors: found 'all', must be a list of names" in error_text(predict(model, bundle, "x.jpg"))


def test_an_unreadable_photo_is_named_and_the_others_are_classified(
    bundle: Bundle, model: Path, photo: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no photo")
    result = predict(model, bundle, tmp_path / "broken.jpg", tmp_path / "nowhere.jpg", photo)

    assert "broken.jpg cannot be read as a photo" in error_text(result)
    assert f"there is no file {tmp_path / 'nowhere.jpg'}" in error_text(result)
    assert f"{photo}: cat" in result.stdout


def test_a_model_of_another_bundle_is_refused(bundle: Bundle, trained: bytes, tmp_path: Path) -> None:
    told = error_text(predict(save(tmp_path / "model.safetensors", trained, bytes(32)), bundle, "x.jpg"))

    assert f"was trained in bundle {bytes(32).hex()}" in told
    assert bundle.id.hex() in told


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("model", blob.encode({"other": np.zeros(3, np.float32)}), "is no model of bundle"),
        ("model", b"rubbish", "cannot be read as a model: not a blob"),
        ("model.safetensors", b"rubbish", "cannot be read as a model"),
        ("model", None, "there is no file"),
    ],
)
def test_a_file_that_is_no_model_is_named(
    bundle: Bundle, tmp_path: Path, name: str, content: bytes | None, named: str
) -> None:
    _ = content is None or (tmp_path / name).write_bytes(content)

    assert named in error_text(predict(tmp_path / name, bundle, "x.jpg"))


def test_a_damaged_bundle_is_named(bundle: Bundle, model: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle.folder, tmp_path / "bundle")
    damaged = Bundle(bundle.manifest, bundle.raw, tmp_path / "bundle")
    damaged.program_file("predict", manifest_pb2.PROGRAM_FORMAT_PT2).write_bytes(b"x")

    assert "is damaged" in error_text(predict(model, damaged, "x.jpg"))


def test_a_bundle_that_is_not_there_is_told_with_the_option_that_names_it(tmp_path: Path) -> None:
    told = error_text(fedlens("predict", "--model", "m", "--bundle", tmp_path, "photo.jpg"))

    assert "is no bundle: it has no manifest.pb; name the folder that `fedlens export` wrote with --bundle" in told


def test_executorch_sees_in_a_photo_what_torch_sees(phone: Bundle, photo: Path, tmp_path: Path) -> None:
    weights = {
        "classifier.weight": np.random.default_rng(0).standard_normal((3, 12)).astype(np.float32),
        "classifier.bias": np.zeros(3, np.float32),
    }
    (tmp_path / "model").write_bytes(blob.encode(weights))

    found = []
    for engine in ("torch", "executorch"):
        result = predict(tmp_path / "model", phone, "--engine", engine, "--json", photo)
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout)[0]["probabilities"])

    assert found[1] == pytest.approx(found[0], abs=1e-6)
    assert max(found[0].values()) > 0.4


def test_executorch_refuses_a_bundle_that_trains_all_layers(bundle: Bundle, model: Path, photo: Path) -> None:
    told = error_text(predict(model, bundle, "--engine", "executorch", photo))

    assert "the bundle trains all layers of its model" in told
    assert "take engine torch, or a bundle with a frozen backbone" in told
