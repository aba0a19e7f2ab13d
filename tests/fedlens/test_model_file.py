import json
import subprocess
import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedlens.admin_client import AdminClient, AdminError, Profile
from fedlens.model_file import fetch_model, fetch_whole
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_edge_client.training.extracted import one_row
from fedlens_export.errors import NotExportable, ParityBroken
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.programs import whole_model
from fedlens_proto import blob
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import admin_pb2, manifest_pb2

CLASSIFIER = {"classifier.weight": np.ones((2, 6), np.float32)}
EXTRACTORS = [{"fc.weight": np.full((3, 4), value, np.float32)} for value in (1.0, 2.0)]


NOBODY = Profile(url="http://127.0.0.1:1", token="x")


class Concatenated(AdminClient):
    """A server with a model that stands on two extractors, in a bundle that takes three."""

    def __init__(
        self,
        bundle: bytes = bytes(32),
        classifier: Mapping[str, blob.Array] = CLASSIFIER,
        extractors: list[dict[str, blob.Array]] = EXTRACTORS,
    ) -> None:
        super().__init__(NOBODY)
        self._bundle = bundle
        raws = [blob.encode(tensors) for tensors in (classifier, *extractors)]
        self._blobs = {sha256(raw).digest(): raw for raw in raws}

    def model(self, task: str) -> admin_pb2.TaskModelResponse:
        first, *others = self._blobs
        extractors = [
            admin_pb2.ModelExtractor(name=f"cluster_{j}", blob_sha256=digest) for j, digest in enumerate([*others, b""])
        ]
        return admin_pb2.TaskModelResponse(
            blob_sha256=first, bundle=self._bundle, class_names=["cat", "dog"], round=5, extractors=extractors
        )

    def fetch(self, digest: bytes, out: BinaryIO) -> None:
        out.write(self._blobs[digest])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """LeNet-5's, with a classifier on at most three extractors."""
    spec = ExportSpec(model="lenet5", class_names=("cat", "dog"), input_size=16, batch=4, concatenated=3)
    return export_bundle(tmp_path_factory.mktemp("lenet5") / "bundle", spec)


@pytest.fixture(scope="module")
def extractors(bundle: Bundle) -> list[dict[str, blob.Array]]:
    drawn = np.random.default_rng(5)
    slots = program(bundle.manifest, "extract").inputs
    taken = [slot for slot in slots if slot.kind == manifest_pb2.SLOT_KIND_EXTRACTOR]
    return [{s.name: drawn.normal(0, 0.2, s.shape).astype(np.float32) for s in taken} for _ in range(2)]


def test_a_model_on_several_extractors_is_one_file_with_all_of_them(tmp_path: Path) -> None:
    fetch_model(Concatenated(), "demo", tmp_path / "model.safetensors")

    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert sorted(file.keys()) == ["classifier.weight", "cluster_0/fc.weight", "cluster_1/fc.weight"]
        np.testing.assert_array_equal(file.get_tensor("cluster_1/fc.weight"), EXTRACTORS[1]["fc.weight"])
        assert json.loads(file.metadata()["extractors"]) == ["cluster_0", "cluster_1", "cluster_2"]
        assert (file.metadata()["bundle"], file.metadata()["round"]) == ("00" * 32, "5")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_model_on_several_extractors_is_not_written_as_a_blob(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match=r"has 3 extractors.*choose a name that ends in \.safetensors"):
        fetch_model(Concatenated(), "demo", tmp_path / "model.blob")

    assert not list(tmp_path.iterdir())


def test_the_whole_model_gives_the_logits_of_the_tasks_tensors(
    bundle: Bundle, extractors: list[dict[str, blob.Array]], tmp_path: Path
) -> None:
    server = Concatenated(bundle.id, bundle.initial(), extractors)
    out = tmp_path / "model.pt2"
    out.write_bytes(b"an older one")

    found, metadata = fetch_whole(server, "demo", bundle.folder, out)

    photo = np.random.default_rng(7).random((1, 3, 16, 16), np.float32)
    engine = TorchEngine(bundle)
    expected = engine.predict(bundle.initial(), one_row(photo, engine, (*extractors, None)))
    logits = torch.export.load(out).module()(torch.from_numpy(photo))
    np.testing.assert_allclose(logits.detach().numpy(), expected, rtol=1e-5, atol=1e-5)
    assert found.round == 5
    assert (metadata["task"], metadata["round"], metadata["bundle"]) == ("demo", "5", bundle.id.hex())
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt2"]


def test_a_whole_model_is_not_made_with_another_bundle_than_the_tasks(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(AdminError, match=rf"trained in bundle 0000.* is bundle {bundle.id.hex()}; give the task's own"):
        fetch_whole(Concatenated(), "demo", bundle.folder, tmp_path / "model.pt2")

    assert not list(tmp_path.iterdir())


def test_another_ending_is_refused_before_the_server_is_asked(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(NotExportable, match=r"found a name in \.pt, must be one in \.pt2, \.onnx, \.pte"):
        fetch_whole(AdminClient(NOBODY), "demo", bundle.folder, tmp_path / "model.pt")


def test_what_fails_leaves_the_older_file(
    bundle: Bundle, extractors: list[dict[str, blob.Array]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Concatenated(bundle.id, bundle.initial(), extractors)
    (tmp_path / "model.pt2").write_bytes(b"an older one")

    def broken(*_given: object) -> None:
        raise ParityBroken("it differs")

    monkeypatch.setattr(whole_model, "lower", broken)
    with pytest.raises(ParityBroken):
        fetch_whole(server, "demo", bundle.folder, tmp_path / "model.pt2")
    monkeypatch.setattr(whole_model, "lower", lambda *_given: whole_model.WholeModel(b"new", {}))
    with pytest.raises(AdminError, match="cannot be written"):
        fetch_whole(server, "demo", bundle.folder, tmp_path / "gone/model.pt2")

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"model.pt2": b"an older one"}


def test_without_torch_a_whole_model_is_refused_with_the_cure() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from fedlens.admin_client import AdminClient, Profile\n"
        "from fedlens.model_file import fetch_whole\n"
        "fetch_whole(AdminClient(Profile(url='http://x', token='x')), 'demo', Path('b'), Path('m.pt2'))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.stderr.splitlines()[-1].endswith(
        "a whole model needs torch, which is not installed; run pip install 'fedlens[export]'"
    )
