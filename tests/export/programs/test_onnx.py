"""The programs that the server runs: they compute the same, and their bytes are reproducible and tell nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor

from fedlens_export.errors import NotExportable
from fedlens_export.exporting import ExportSpec, export_bundle
from fedlens_export.programs import lowering, onnx_program
from fedlens_export.training import Training, check_training
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.export.small import frozen_bundle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, small_spec: ExportSpec) -> Bundle:
    return export_bundle(tmp_path_factory.mktemp("onnx") / "bundle", replace(small_spec, onnx=True))


def formats(bundle: Bundle) -> dict[str, list[str]]:
    return {
        item.name: [pb.ProgramFormat.Name(file.format)[15:] for file in item.files] for item in bundle.manifest.programs
    }


def test_a_bundle_gains_onnx_of_what_the_server_runs_if_asked_for(small: Bundle, whole_model: Bundle) -> None:
    assert formats(small) == {"step": ["PT2"], "predict": ["PT2", "ONNX"]}
    assert formats(whole_model) == {"step": ["PT2"], "predict": ["PT2"]}


def test_a_frozen_backbone_has_embed_as_onnx_too(tmp_path: Path) -> None:
    bundle = frozen_bundle(tmp_path, head="hidden", onnx=True)

    assert formats(bundle) == {"embed": ["PT2", "ONNX"], "step": ["PT2"], "predict": ["PT2", "ONNX"]}


def test_onnx_takes_the_slots_in_order(small: Bundle) -> None:
    session = onnxruntime.InferenceSession(small.program_file("predict", pb.PROGRAM_FORMAT_ONNX).read_bytes())

    # Every export compares what it gives with the model.
    slots = program(small.manifest, "predict").inputs
    assert [list(slot.shape) for slot in session.get_inputs()] == [list(slot.shape) for slot in slots]


def test_two_exports_give_the_same_bytes(tmp_path: Path, small: Bundle, small_spec: ExportSpec) -> None:
    again = export_bundle(tmp_path / "elsewhere", replace(small_spec, onnx=True))

    assert again.id == small.id


def test_onnx_tells_neither_where_nor_by_what_it_was_made(small: Bundle) -> None:
    raw = small.program_file("predict", pb.PROGRAM_FORMAT_ONNX).read_bytes()
    model = onnx.load_from_string(raw)

    assert not [trace for trace in (b".py", b"fedlens", b"torch", b"/", b"\\") if trace in raw]
    assert (model.producer_name, model.producer_version, len(model.metadata_props)) == ("", "", 0)
    assert {len(node.metadata_props) for node in model.graph.node} == {0}
    # Weights are inputs: what is left inside are shapes and plain numbers.
    assert max(np.prod(tensor.dims) for tensor in model.graph.initializer) <= 4


def test_without_onnxruntime_onnx_is_made_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_program, "find_spec", lambda name: None)

    assert onnx_program.load(b"") is None


def test_missing_packages_are_told_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_program, "find_spec", lambda name: None)

    with pytest.raises(
        NotExportable, match=r"need onnx and onnxscript, not installed here; run pip install .*--no-onnx"
    ):
        check_training(Training(class_names=("cat", "dog"), onnx=True))


def test_an_operator_that_onnx_lacks_is_named() -> None:
    def eigenvalues(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.linalg.eigvalsh(x),)

    with pytest.raises(NotExportable, match=r"'predict' cannot be expressed in ONNX: No ONNX function .*eigh"):
        onnx_program.lower("predict", lowering.trace("predict", eigenvalues, (torch.ones(2, 2),)))
