"""The programs that the server runs: they compute the same, and their bytes are reproducible and tell nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor

from fedlens_export.errors import NotExportable, ParityBroken
from fedlens_export.exporting import ExportSpec, Training, export_bundle, frozen_backbone_bundle
from fedlens_export.hyper import Hyper
from fedlens_export.models import backbones
from fedlens_export.network import Network
from fedlens_export.programs import lowering, onnx_program, parity, steps
from fedlens_export.programs.steps import ProgramSource
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

NO_HYPER: dict[str, Hyper] = {}
NO_TENSORS: dict[str, Tensor] = {}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, small_spec: ExportSpec) -> Bundle:
    return export_bundle(tmp_path_factory.mktemp("onnx") / "bundle", replace(small_spec, onnx=True))


def formats(bundle: Bundle) -> dict[str, list[str]]:
    return {
        item.name: [pb.ProgramFormat.Name(file.format)[15:] for file in item.files] for item in bundle.manifest.programs
    }


def test_a_bundle_gains_onnx_of_what_the_server_runs_and_of_nothing_else(small: Bundle) -> None:
    assert formats(small) == {"step": ["PT2"], "predict": ["PT2", "ONNX"]}


def test_onnx_is_left_out_unless_asked_for(whole_model: Bundle) -> None:
    assert formats(whole_model) == {"step": ["PT2"], "predict": ["PT2"]}


def test_a_frozen_backbone_has_embed_as_onnx_too(tmp_path: Path) -> None:
    backbone = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten())
    head = backbones.build_head("linear", 12, 2, seed=0)

    bundle = frozen_backbone_bundle(tmp_path, backbone, head, Training(class_names=("a", "b"), batch=4, onnx=True), 16)

    assert formats(bundle) == {"embed": ["PT2", "ONNX"], "step": ["PT2"], "predict": ["PT2", "ONNX"]}


def test_onnx_takes_the_slots_in_order_and_gives_what_the_pt2_does(small: Bundle) -> None:
    slots = program(small.manifest, "predict").inputs
    session = onnxruntime.InferenceSession(small.program_file("predict", pb.PROGRAM_FORMAT_ONNX).read_bytes())
    pt2 = lowering.load(small.program_file("predict", pb.PROGRAM_FORMAT_PT2).read_bytes())
    generator = np.random.default_rng(5)
    initial = small.initial()
    known = [initial[slot.name] for slot in slots if slot.kind == pb.SLOT_KIND_WEIGHT]
    given = [*known, generator.random((4, 3, 16, 16), np.float32), np.ones(4, np.float32)]

    (found,) = session.run(None, {slot.name: value for slot, value in zip(session.get_inputs(), given, strict=True)})

    assert [list(slot.shape) for slot in session.get_inputs()] == [list(slot.shape) for slot in slots]
    with torch.no_grad():
        (expected,) = pt2(*(torch.from_numpy(np.array(value)) for value in given))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


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


def _times(factor: float) -> ProgramSource:
    slot = pb.Slot(kind=pb.SLOT_KIND_INPUT, dtype=blob_pb2.DTYPE_FLOAT32, shape=(2, 3))
    output = pb.Slot(kind=pb.SLOT_KIND_LOGITS, dtype=blob_pb2.DTYPE_FLOAT32, shape=(2, 3))
    return ProgramSource("predict", (slot,), (output,), lambda x: (x * factor,))


def test_onnx_that_computes_something_else_is_not_shipped() -> None:
    raw = onnx_program.lower("predict", lowering.trace("predict", _times(2.001).function, (torch.ones(2, 3),)))

    function = onnx_program.load(raw)

    assert function is not None
    with pytest.raises(ParityBroken, match="'predict' differs from the model by"):
        parity.compare(_times(2.0), function, NO_TENSORS, NO_HYPER)
    assert parity.compare(_times(2.001), function, NO_TENSORS, NO_HYPER) == 0.0


def test_without_onnxruntime_onnx_is_made_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_program, "find_spec", lambda name: None)

    assert onnx_program.load(b"") is None


def test_an_operator_that_onnx_lacks_is_named() -> None:
    def eigenvalues(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.linalg.eigvalsh(x),)

    with pytest.raises(NotExportable, match=r"'predict' cannot be expressed in ONNX: No ONNX function .*eigh"):
        onnx_program.lower("predict", lowering.trace("predict", eigenvalues, (torch.ones(2, 2),)))


def test_a_head_alone_is_onnx_too() -> None:
    network = Network(backbones.build_head("hidden", 6, 3, seed=0), (6,))
    source = steps.predict(network, 4, 3)
    traced = lowering.trace("predict", source.function, parity.examples(source, network.weights, NO_HYPER, 0))

    function = onnx_program.load(onnx_program.lower("predict", traced))

    assert function is not None
    assert parity.compare(source, function, network.weights, NO_HYPER) < parity.TOLERANCE
