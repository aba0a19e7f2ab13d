"""Logits on the server: with a client's weights, batch by batch, from photos or from their features."""

import sys
from collections.abc import Mapping
from subprocess import run
from typing import Any

import numpy as np
import onnx.parser
import pytest

from fedlens_proto import blob
from fedlens_proto.errors import ManifestError
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from fedlens_server.engine.method_calls import Inference
from fedlens_server.engine.operators import tasks
from tests.server.fakes import Bench

BATCH, CLASSES, FEATURES = 4, 2, 3
SHAPE = (3, 2, 2)


def model(graph: str) -> bytes:
    raw: bytes = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> graph {graph}').SerializeToString()
    return raw


# Two linear models: of photos averaged over their pixels; and of a backbone's features, those averages times three.
# Adding the number of real rows makes what the mask says visible in the logits.
LINEAR = """
    logits = Gemm <transB = 1> (rows, weight, bias)
    real = ReduceSum <keepdims = 0> (mask)
    out = Add (logits, real)
"""
PREDICT_PHOTOS = model(
    f"""(float[2] bias, float[2, 3] weight, float[4, 3, 2, 2] photos, float[4] mask) => (float[4, 2] out)
    <int64[2] axes = {{2, 3}}> {{ rows = ReduceMean <keepdims = 0> (photos, axes) {LINEAR} }}"""
)
PREDICT_FEATURES = model(
    f"(float[2] bias, float[2, 3] weight, float[4, 3] rows, float[4] mask) => (float[4, 2] out) {{ {LINEAR} }}"
)
EMBED = model(
    """(float[1] factor, float[1, 3, 2, 2] photo) => (float[1, 3] out)
    <int64[2] axes = {2, 3}> { mean = ReduceMean <keepdims = 0> (photo, axes) out = Mul (mean, factor) }"""
)
FROZEN = blob.encode({"factor": np.float32([3.0])})
WEIGHTS = {"fc.weight": np.float32([[1, 0, 0], [0, 1, 1]]), "fc.bias": np.float32([0, 10])}


def put(bench: Bench, raw: bytes) -> bytes:
    with bench.store.incoming() as incoming:
        incoming.write(raw)
        part = incoming.finish()
        tasks.put_part(bench.federation, part).result()
    return part.digest


def slot(kind: pb.SlotKind, name: str = "", *shape: int) -> pb.Slot:
    return pb.Slot(kind=kind, name=name, dtype=blob_pb2.DTYPE_FLOAT32, shape=shape)


def program(name: str, digest: bytes, *inputs: pb.Slot, kind: pb.ProgramFormat = pb.PROGRAM_FORMAT_ONNX) -> pb.Program:
    return pb.Program(name=name, inputs=inputs, files=[pb.ProgramFile(format=kind, sha256=digest)])


def linear(digest: bytes, *row: int, kind: pb.ProgramFormat = pb.PROGRAM_FORMAT_ONNX) -> pb.Program:
    weights = (slot(pb.SLOT_KIND_WEIGHT, "fc.bias", CLASSES), slot(pb.SLOT_KIND_WEIGHT, "fc.weight", CLASSES, FEATURES))
    rows, mask = slot(pb.SLOT_KIND_INPUT, "", BATCH, *row), slot(pb.SLOT_KIND_MASK, "", BATCH)
    return program("predict", digest, *weights, rows, mask, kind=kind)


def inference(bench: Bench, *programs: pb.Program, **fields: Any) -> Inference:
    """Of a whole model with these programs, but for these fields of its manifest."""
    given = {"bundle_class": pb.BUNDLE_CLASS_WHOLE_MODEL, "batch": BATCH, "class_names": "ab", **fields}
    return Inference(pb.Manifest(programs=programs, **given), bench.store)


def whole_model(bench: Bench) -> Inference:
    return inference(bench, linear(put(bench, PREDICT_PHOTOS), *SHAPE))


def frozen_backbone(bench: Bench) -> Inference:
    embed = program(
        "embed", put(bench, EMBED), slot(pb.SLOT_KIND_FROZEN, "factor", 1), slot(pb.SLOT_KIND_INPUT, "", 1, *SHAPE)
    )
    predict = linear(put(bench, PREDICT_FEATURES), FEATURES)
    frozen = {"bundle_class": pb.BUNDLE_CLASS_FROZEN_BACKBONE, "frozen": put(bench, FROZEN)}
    return inference(bench, predict, embed, **frozen)


def photos(count: int) -> np.ndarray:
    """Photo i is i in its red, 1 in its green and 0 in its blue pixels: rows (i, 1, 0)."""
    made = np.zeros((count, *SHAPE), np.float32)
    made[:, 0] = np.arange(count).reshape(-1, 1, 1)
    made[:, 1] = 1
    return made


def test_each_photo_counts_once_and_padding_is_masked(bench: Bench) -> None:
    # Logits (i, 1 + 0 + 10) plus the real rows of the batch: 4 of the first, 2 of the second.
    logits = whole_model(bench)(WEIGHTS, photos(6))

    np.testing.assert_array_equal(logits, [[4, 15], [5, 15], [6, 15], [7, 15], [6, 13], [7, 13]])
    assert logits.dtype == np.float32


def test_a_frozen_backbone_embeds_first(bench: Bench) -> None:
    # Features (3i, 3, 0), logits (3i, 3 + 10), plus 2 real rows.
    logits = frozen_backbone(bench)(WEIGHTS, photos(2))

    np.testing.assert_array_equal(logits, [[2, 15], [5, 15]])


def test_other_weights_see_the_same_features_and_other_photos_do_not(bench: Bench) -> None:
    infer = frozen_backbone(bench)
    first, other = photos(1), photos(1) + 1
    doubled = {name: 2 * value for name, value in WEIGHTS.items()}

    # (0, 3 + 10) + 1; (0, 2 * 13) + 1; of (1, 2, 1): features (3, 6, 3), logits (3, 9 + 10) + 1.
    np.testing.assert_array_equal(infer(WEIGHTS, first), [[1, 14]])
    np.testing.assert_array_equal(infer(doubled, first), [[1, 27]])
    np.testing.assert_array_equal(infer(WEIGHTS, other), [[4, 20]])


def test_no_photos_have_no_logits(bench: Bench) -> None:
    assert whole_model(bench)(WEIGHTS, photos(0)).shape == (0, 2)


def test_repeats_are_equal_bit_by_bit(bench: Bench) -> None:
    generator = np.random.default_rng(1)
    given = generator.random((9, *SHAPE), np.float32)
    weights: Mapping[str, np.ndarray] = {n: generator.standard_normal(v.shape, np.float32) for n, v in WEIGHTS.items()}

    np.testing.assert_array_equal(whole_model(bench)(weights, given), whole_model(bench)(weights, given))


def test_a_bundle_without_onnx_cannot_be_run(bench: Bench) -> None:
    infer = inference(bench, linear(put(bench, PREDICT_PHOTOS), *SHAPE, kind=pb.PROGRAM_FORMAT_PT2))

    with pytest.raises(ManifestError, match="program 'predict', but not as PROGRAM_FORMAT_ONNX"):
        infer(WEIGHTS, photos(1))


def test_a_server_that_infers_nothing_imports_no_onnxruntime() -> None:
    program = (
        "import sys, fedlens_server.http.app\n"
        "print([name for name in ('onnxruntime', 'sklearn', 'scipy') if name in sys.modules])"
    )

    assert run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "[]\n"
