import json
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from safetensors import safe_open

from fedlens.admin_client import AdminClient, AdminError, Profile
from fedlens.model_file import fetch_model
from fedlens_proto import blob
from fedlens_proto.v1 import admin_pb2

CLASSIFIER = {"classifier.weight": np.ones((2, 6), np.float32)}
EXTRACTORS = [{"fc.weight": np.full((3, 4), value, np.float32)} for value in (1.0, 2.0)]


class Concatenated(AdminClient):
    """A server with a model that stands on two extractors, in a bundle that takes three."""

    def __init__(self) -> None:
        super().__init__(Profile(url="http://127.0.0.1:1", token="x"))
        raws = [blob.encode(tensors) for tensors in (CLASSIFIER, *EXTRACTORS)]
        self._blobs = {sha256(raw).digest(): raw for raw in raws}

    def model(self, task: str) -> admin_pb2.TaskModelResponse:
        first, *others = self._blobs
        names = [f"cluster_{j}" for j in range(3)]
        extractors = [
            admin_pb2.ModelExtractor(name=name, blob_sha256=digest)
            for name, digest in zip(names, [*others, b""], strict=True)
        ]
        return admin_pb2.TaskModelResponse(
            blob_sha256=first, bundle=bytes(32), class_names=["cat", "dog"], round=5, extractors=extractors
        )

    def fetch(self, digest: bytes, out: BinaryIO) -> None:
        out.write(self._blobs[digest])


def test_a_model_on_several_extractors_is_one_file_with_all_of_them(tmp_path: Path) -> None:
    fetch_model(Concatenated(), "demo", tmp_path / "model.safetensors")

    with safe_open(tmp_path / "model.safetensors", "np") as file:
        assert sorted(file.keys()) == ["classifier.weight", "cluster_0/fc.weight", "cluster_1/fc.weight"]
        np.testing.assert_array_equal(file.get_tensor("cluster_1/fc.weight"), EXTRACTORS[1]["fc.weight"])
        assert json.loads(file.metadata()["extractors"]) == ["cluster_0", "cluster_1", "cluster_2"]
        assert (file.metadata()["bundle"], file.metadata()["round"]) == ("00" * 32, "5")
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_model_on_several_extractors_is_not_written_as_a_blob(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match=r"stands on 3 extractors.*take a name in \.safetensors"):
        fetch_model(Concatenated(), "demo", tmp_path / "model.blob")

    assert not list(tmp_path.iterdir())
