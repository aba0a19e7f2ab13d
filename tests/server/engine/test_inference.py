"""Logits on the server: with a client's weights, batch by batch, from photos or from their features."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import run

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fedlens_proto import blob
from fedlens_proto.errors import ManifestError
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from fedlens_server.engine import tasks
from fedlens_server.engine.method_calls import Inference
from tests.server.fakes import Bench
from tests.server.fakes import bench as open_bench

BATCH, CLASSES, FEATURES = 4, 2, 3
SHAPE = (3, 2, 2)
FLOAT = TensorProto.FLOAT
"""Two linear models: of photos averaged over their pixels; and of a backbone's features, those averages times three."""


def model(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], output: tuple[int, ...]) -> bytes:
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("out", FLOAT, output)],
        [axes],
    )
    raw: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    ).SerializeToString()
    return raw


def averaged(source: str, into: str) -> onnx.NodeProto:
    return helper.make_node("ReduceMean", [source, "axes"], [into], keepdims=0)


LINEAR = helper.make_node("Gemm", ["rows", "weight", "bias"], ["logits"], transB=1)
# Adding the number of real rows makes what the mask says visible in the logits.
MASKED = [
    helper.make_node("ReduceSum", ["mask"], ["real"], keepdims=0),
    helper.make_node("Add", ["logits", "real"], ["out"]),
]
PLACES = {"bias": (CLASSES,), "weight": (CLASSES, FEATURES)}
PREDICT_PHOTOS = model(
    [averaged("photos", "rows"), LINEAR, *MASKED],
    {**PLACES, "photos": (BATCH, *SHAPE), "mask": (BATCH,)},
    (BATCH, CLASSES),
)
PREDICT_FEATURES = model([LINEAR, *MASKED], {**PLACES, "rows": (BATCH, FEATURES), "mask": (BATCH,)}, (BATCH, CLASSES))
EMBED = model(
    [averaged("photo", "mean"), helper.make_node("Mul", ["mean", "factor"], ["out"])],
    {"factor": (1,), "photo": (1, *SHAPE)},
    (1, FEATURES),
)
FROZEN = blob.encode({"factor": np.float32([3.0])})
WEIGHTS = {"fc.weight": np.float32([[1, 0, 0], [0, 1, 1]]), "fc.bias": np.float32([0, 10])}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Bench]:
    with open_bench(tmp_path / "state") as opened:
        yield opened


def put(server: Bench, raw: bytes) -> bytes:
    with server.store.incoming() as incoming:
        incoming.write(raw)
        part = incoming.finish()
        tasks.put_part(server.federation, part).result()
    return part.digest


def slot(kind: pb.SlotKind, name: str = "", *shape: int) -> pb.Slot:
    return pb.Slot(kind=kind, name=name, dtype=blob_pb2.DTYPE_FLOAT32, shape=shape)


def program(name: str, digest: bytes, *inputs: pb.Slot, kind: pb.ProgramFormat = pb.PROGRAM_FORMAT_ONNX) -> pb.Program:
    return pb.Program(name=name, inputs=inputs, files=[pb.ProgramFile(format=kind, sha256=digest)])


def linear(digest: bytes, *row: int, kind: pb.ProgramFormat = pb.PROGRAM_FORMAT_ONNX) -> pb.Program:
    weights = (slot(pb.SLOT_KIND_WEIGHT, "fc.bias", CLASSES), slot(pb.SLOT_KIND_WEIGHT, "fc.weight", CLASSES, FEATURES))
    rows, mask = slot(pb.SLOT_KIND_INPUT, "", BATCH, *row), slot(pb.SLOT_KIND_MASK, "", BATCH)
    return program("predict", digest, *weights, rows, mask, kind=kind)


def whole_model(server: Bench) -> Inference:
    programs = [linear(put(server, PREDICT_PHOTOS), *SHAPE)]
    manifest = pb.Manifest(bundle_class=pb.BUNDLE_CLASS_WHOLE_MODEL, batch=BATCH, class_names="ab", programs=programs)
    return Inference(manifest, server.store)


def frozen_backbone(server: Bench) -> Inference:
    embed = program(
        "embed", put(server, EMBED), slot(pb.SLOT_KIND_FROZEN, "factor", 1), slot(pb.SLOT_KIND_INPUT, "", 1, *SHAPE)
    )
    manifest = pb.Manifest(
        bundle_class=pb.BUNDLE_CLASS_FROZEN_BACKBONE,
        batch=BATCH,
        class_names="ab",
        programs=[linear(put(server, PREDICT_FEATURES), FEATURES), embed],
        frozen=put(server, FROZEN),
    )
    return Inference(manifest, server.store)


def photos(count: int) -> np.ndarray:
    """Photo i is i in its red, 1 in its green and 0 in its blue pixels: rows (i, 1, 0)."""
    made = np.zeros((count, *SHAPE), np.float32)
    made[:, 0] = np.arange(count).reshape(-1, 1, 1)
    made[:, 1] = 1
    return made


def test_each_photo_counts_once_and_padding_is_masked(server: Bench) -> None:
    # Logits (i, 1 + 0 + 10) plus the real rows of the batch: 4 of the first, 2 of the second.
    logits = whole_model(server)(WEIGHTS, photos(6))

    np.testing.assert_array_equal(logits, [[4, 15], [5, 15], [6, 15], [7, 15], [6, 13], [7, 13]])
    assert logits.dtype == np.float32


def test_a_frozen_backbone_embeds_first(server: Bench) -> None:
    # Features (3i, 3, 0), logits (3i, 3 + 10), plus 2 real rows.
    logits = frozen_backbone(server)(WEIGHTS, photos(2))

    np.testing.assert_array_equal(logits, [[2, 15], [5, 15]])


def test_other_weights_see_the_same_features_and_other_photos_do_not(server: Bench) -> None:
    infer = frozen_backbone(server)
    first, other = photos(1), photos(1) + 1
    doubled = {name: 2 * value for name, value in WEIGHTS.items()}

    # (0, 3 + 10) + 1; (0, 2 * 13) + 1; of (1, 2, 1): features (3, 6, 3), logits (3, 9 + 10) + 1.
    np.testing.assert_array_equal(infer(WEIGHTS, first), [[1, 14]])
    np.testing.assert_array_equal(infer(doubled, first), [[1, 27]])
    np.testing.assert_array_equal(infer(WEIGHTS, other), [[4, 20]])


def test_no_photos_have_no_logits(server: Bench) -> None:
    assert whole_model(server)(WEIGHTS, photos(0)).shape == (0, 2)


def test_repeats_are_equal_bit_by_bit(server: Bench) -> None:
    generator = np.random.default_rng(1)
    given = generator.random((9, *SHAPE), np.float32)
    weights: Mapping[str, np.ndarray] = {n: generator.standard_normal(v.shape, np.float32) for n, v in WEIGHTS.items()}

    np.testing.assert_array_equal(whole_model(server)(weights, given), whole_model(server)(weights, given))


def test_a_bundle_without_onnx_cannot_be_run(server: Bench) -> None:
    programs = [linear(put(server, PREDICT_PHOTOS), *SHAPE, kind=pb.PROGRAM_FORMAT_PT2)]
    manifest = pb.Manifest(bundle_class=pb.BUNDLE_CLASS_WHOLE_MODEL, batch=BATCH, class_names="ab", programs=programs)

    with pytest.raises(ManifestError, match="program 'predict', but not as PROGRAM_FORMAT_ONNX"):
        Inference(manifest, server.store)(WEIGHTS, photos(1))


def test_a_server_that_infers_nothing_imports_no_onnxruntime() -> None:
    program = (
        "import sys, fedlens_server.http.app\n"
        "print([name for name in ('onnxruntime', 'sklearn', 'scipy') if name in sys.modules])"
    )

    assert run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"
