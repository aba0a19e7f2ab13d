"""Blobs in every codec, blobs that must be refused, and tensors that no blob can hold."""

import struct
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlens_proto.blob import Blob, encode
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.layout import MAX_HEADER_BYTES, MAX_NAME_BYTES, PREFIX
from fedlens_proto.v1 import blob_pb2 as pb
from tests.vectors.forms import Files, arrays, document, encoded, refusal

Tensors = dict[str, NDArray[Any]]

CODECS = {"float32": pb.DTYPE_FLOAT32, "float16": pb.DTYPE_FLOAT16, "int8": pb.DTYPE_INT8}
_SMALLEST = 2.0**-149  # the least float32 above 0
_MOST = 3.4028234663852886e38  # the greatest


def _f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def _ramp(*shape: int) -> NDArray[np.float32]:
    """Multiples of 1/64 on both sides of 0, all different for up to 127 elements."""
    count = int(np.prod(shape))
    return (((np.arange(count) * 37) % 127 - 63) / 64).astype(np.float32).reshape(shape)


_LAYER: Tensors = {"fc.bias": _ramp(3), "fc.weight": _ramp(3, 5)}
_SHAPES: Tensors = {
    "block": _ramp(2, 3, 4),
    "column": _ramp(4, 1),
    "one_row": _ramp(1, 6),
    "scalar": _f32(-2.5).reshape(()),
    "vector": _ramp(17),
}
# By UTF-8 bytes: 5a, 61, c3, ef, f0. By UTF-16 code units the last one would stand before the one in front of it.
_NAMES: Tensors = {name: _ramp(1) for name in ("\U0001f4f7", "é", "Z", "a", "\uff5e")}
_F32_EDGES = _f32(0.0, -0.0, _SMALLEST, -_SMALLEST, 2**-126 - 2**-149, 2**-126, _MOST, -_MOST, 1 + 2**-23, 0.1)
_F16_EDGES = _f32(
    *(0.0, -0.0, 2**-24, -(2**-24)),
    *(2**-25, 2**-25 + 2**-40, 3 * 2**-25),  # halfway to 0: even, so 0; just above: 2^-24; halfway to 2^-23: even
    *(2**-14 - 2**-24, 2**-14, 1 + 2**-11, 1 + 3 * 2**-11),  # the last two halfway: down to 1, up to 1 + 2^-9
    *(65504.0, -65504.0, 65519.99609375),  # the last is the greatest that rounds to 65504
)
_INT8_EDGES: Tensors = {
    # Scale 1: halves to even. Both ends occur.
    "halves": _f32(127, -127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 125.5).reshape(1, 9),
    "zeros": _f32(0, 0, -0.0, -0.0, 1, -1).reshape(3, 2),  # a row of -0 has the scale 0, not -0
    # Scales below 2^-126: 127 * 2^-149, whose scale is 2^-149; 64 of them, whose scale rounds to 2^-149; 63, to 0.
    "subnormal": _f32(*(n * _SMALLEST for n in (127, 1, 64, -64, 63, -63, 2000, 999))).reshape(4, 2),
    "largest": _f32(3.0e38, -1.0e38, 1.0, 0.0).reshape(2, 2),
    "thirds": _f32(*(n / 3 for n in range(-6, 6))).reshape(3, 4),
}
_INTEGERS: Tensors = {
    "counter": np.array(7, np.int64),
    "ends": np.array([2**63 - 1, -(2**63), -1, 0, 1], np.int64),
}

# By name: tensors, codec, base's name.
_CASES: dict[str, tuple[Tensors, str]] = {
    "empty": ({}, "float32"),
    "layer-float32": (_LAYER, "float32"),
    "layer-float16": (_LAYER, "float16"),
    "layer-int8": (_LAYER, "int8"),
    "shapes-float32": (_SHAPES, "float32"),
    "shapes-float16": (_SHAPES, "float16"),
    "shapes-int8": (_SHAPES, "int8"),
    "names": (_NAMES, "float32"),
    "edges-float32": ({"edges": _F32_EDGES}, "float32"),
    "edges-float16": ({"edges": _F16_EDGES}, "float16"),
    "edges-int8": (_INT8_EDGES, "int8"),
    "integers-float16": ({**_INTEGERS, "weight": _ramp(2, 2)}, "float16"),
}
_BASE: Tensors = {**_LAYER, "counter": np.array(2**63 - 1, np.int64), "left_out": _ramp(2)}
_TRAINED: Tensors = {
    "fc.bias": _LAYER["fc.bias"] + _f32(1e-3, -0.0, 1 / 3),
    "fc.weight": (_LAYER["fc.weight"] * np.float32(1.01) + np.float32(1e-4)).astype(np.float32),
    "counter": np.array(-(2**63) + 2, np.int64),  # three more, modulo 2^64
}

_NOT_ENCODABLE: dict[str, tuple[Tensors, str]] = {
    "nan": ({"w": _f32(0, np.nan)}, "float32"),
    "infinity": ({"w": _f32(-np.inf)}, "float32"),
    "float16-overflow": ({"w": _f32(65520)}, "float16"),
    # 127 * (max / 127) must be finite.
    "int8-too-large": ({"w": _f32(_MOST, 0).reshape(1, 2)}, "int8"),
    "int8-nan": ({"w": _f32(np.nan, 0).reshape(1, 2)}, "int8"),
}


def files() -> Files:
    """`blobs.json` and the blobs that it names."""
    found: Files = {}
    listed: list[dict[str, Any]] = []

    def add(name: str, tensors: Tensors, codec: str, base: bytes | None = None, **more: Any) -> Blob:
        raw = encode(tensors, floats=CODECS[codec], base=base)
        found[f"blobs/{name}.blob"] = raw
        entry = {"name": name, "file": f"{name}.blob", "sha256": sha256(raw).hexdigest(), "codec": codec}
        blob = Blob.from_bytes(raw)
        listed.append(entry | {"tensors": arrays(tensors), "decoded": arrays(blob)} | more)
        return blob

    for name, (tensors, codec) in _CASES.items():
        add(name, tensors, codec)
    base = add("base", _BASE, "float32")
    for codec in CODECS:
        differences = dict(Differences(_TRAINED, base))
        more = {"base_file": "base.blob", "trained": arrays(_TRAINED)}
        blob = add(f"difference-{codec}", differences, codec, base.digest, **more)
        listed[-1]["sums"] = arrays(Sums(base, blob))
    refused = _refused()
    not_encodable = [
        {
            "name": name,
            "codec": codec,
            "tensors": arrays(tensors),
            "reason": refusal(lambda given, floats: encode(given, floats=floats), tensors, CODECS[codec]),
        }
        for name, (tensors, codec) in _NOT_ENCODABLE.items()
    ]
    reasons = [
        {"name": name, "file": f"refused/{name}.blob", "reason": refusal(Blob.from_bytes, raw)}
        for name, raw in refused.items()
    ]
    listing = {"blobs": listed, "refused": reasons, "not_encodable": not_encodable}
    return {
        **found,
        **{f"blobs/refused/{name}.blob": raw for name, raw in refused.items()},
        "blobs/blobs.json": document(listing),
    }


def _refused() -> dict[str, bytes]:
    """Bytes that are no blob, by what is wrong with them."""
    layer = encode(_LAYER)
    scaled = encode({"w": _f32(127, 1, 0, 0).reshape(2, 2)}, floats=pb.DTYPE_INT8)
    length = PREFIX.unpack_from(layer)[2]
    header = layer[PREFIX.size : PREFIX.size + length]
    first = 64  # where fc.bias begins: prefix and header take less than that
    assert not any(layer[PREFIX.size + length : first])

    def changed(raw: bytes, at: int, new: bytes) -> bytes:
        return raw[:at] + new + raw[at + len(new) :]

    def with_header(raw: bytes) -> bytes:
        prefix = struct.pack("<8sII", b"FEDLENS\0", 1, len(raw)) + raw
        return prefix + bytes(-len(prefix) % 64) + bytes(64)

    def tensors(*given: tuple[str, Any, tuple[int, ...]], base: bytes = b"") -> bytes:
        listed = [pb.BlobTensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in given]
        return with_header(encoded(pb.BlobHeader(tensors=listed, base=base)))

    f32, nan, infinity = pb.DTYPE_FLOAT32, struct.pack("<f", np.nan), struct.pack("<f", np.inf)
    scales = 64  # where the scales of `scaled` begin, its values 8 bytes later
    return {
        "nothing": b"",
        "another-magic": changed(layer, 0, b"FEDLENZ"),
        "another-version": changed(layer, 8, struct.pack("<I", 2)),
        "big-endian-version": changed(layer, 8, struct.pack(">I", 1)),
        "header-too-long": changed(layer, 12, struct.pack("<I", MAX_HEADER_BYTES + 1)),
        "cut-in-the-prefix": layer[:10],
        "cut-in-the-header": layer[: PREFIX.size + length - 1],
        "cut-in-the-data": layer[:-1],
        "bytes-behind-the-end": layer + b"\0",
        "padding-not-zero": changed(layer, first - 1, b"\1"),
        "nan": changed(layer, first, nan),
        "infinity": changed(layer, first, infinity),
        "float16-infinity": changed(encode({"w": _f32(1)}, floats=pb.DTYPE_FLOAT16), 64, struct.pack("<e", np.inf)),
        "damaged-header": changed(layer, PREFIX.size, b"\xff"),
        "names-not-ascending": tensors(("b", f32, (1,)), ("a", f32, (1,))),
        "name-twice": tensors(("a", f32, (1,)), ("a", f32, (1,))),
        "name-empty": tensors(("", f32, (1,))),
        "name-too-long": tensors(("a" * (MAX_NAME_BYTES + 1), f32, (1,))),
        "name-not-printable": tensors(("a\n", f32, (1,))),
        "dtype-unset": tensors(("a", pb.DTYPE_UNSPECIFIED, (1,))),
        "dtype-unknown": tensors(("a", 9, (1,))),
        "dimension-zero": tensors(("a", f32, (3, 0))),
        "too-many-dimensions": tensors(("a", f32, (1,) * 33)),
        "base-too-short": tensors(("a", f32, (1,)), base=bytes(31)),
        "header-with-an-unknown-field": with_header(header + b"\xc0\x3e\x01"),  # field 1000, a varint
        # A length as 82 00 (two bytes) instead of 02.
        "header-not-in-its-shortest-form": with_header(header[:1] + bytes([header[1] | 0x80, 0]) + header[2:]),
        "int8-without-rows": tensors(("a", pb.DTYPE_INT8, (4,))),
        "int8-negative-scale": changed(scaled, scales, struct.pack("<f", -1)),
        "int8-scale-minus-zero": changed(scaled, scales + 4, struct.pack("<f", -0.0)),
        "int8-scale-nan": changed(scaled, scales, nan),
        "int8-scale-too-large": changed(scaled, scales, struct.pack("<f", _MOST / 126)),
        "int8-minus-128": changed(scaled, scales + 8, b"\x80"),
        "int8-row-without-127": changed(scaled, scales + 8, b"\x7e"),
        "int8-value-in-a-row-of-zeros": changed(scaled, scales + 10, b"\1"),
    }
