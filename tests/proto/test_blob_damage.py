"""Bytes that are no blob, or not the expected one, are refused with a reason, before anything is allocated by them.

`tests/vectors` has more of them, each with its reason.
"""

import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlens_proto.blob import Array, Blob, Checker, TensorSpec, encode
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import blob_pb2 as pb

TENSORS: dict[str, Array] = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array(7),
    "c": np.ones(5, np.float32),
}
SPECS = [
    TensorSpec("a", pb.DTYPE_FLOAT32, (2, 3)),
    TensorSpec("b", pb.DTYPE_INT64, ()),
    TensorSpec("c", pb.DTYPE_FLOAT32, (5,)),
]
RAW = encode(TENSORS)


def tensor(dtype: pb.Dtype = pb.DTYPE_FLOAT32, shape: tuple[int, ...] = (1,)) -> bytes:
    return pb.BlobTensor(name="w", dtype=dtype, shape=shape).SerializeToString()


def blob_with(header: bytes, data: bytes = b"") -> bytes:
    start = b"FEDLENS\0" + struct.pack("<II", 1, len(header)) + header
    return start.ljust(-(-len(start) // 64) * 64, b"\0") + data


def header_of(tensor: bytes) -> bytes:
    """A header of one tensor, with its length as a protobuf varint of two bytes at most."""
    low, high = len(tensor) & 0x7F, len(tensor) >> 7
    return b"\x0a" + (bytes([low | 0x80, high]) if high else bytes([low])) + tensor


def test_the_blobs_made_by_hand_here_are_what_the_encoder_makes() -> None:
    assert blob_with(header_of(tensor()), struct.pack("<f", 1.5)) == encode({"w": np.array([1.5], np.float32)})


@pytest.mark.parametrize("length", range(len(RAW)))
def test_a_blob_cut_off_anywhere_is_refused(length: int, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(RAW[:length])

    with pytest.raises(BlobError):
        Blob.from_bytes(RAW[:length])
    with pytest.raises(BlobError):
        Blob.open(tmp_path / "cut")


@given(st.lists(st.tuples(st.integers(0, len(RAW) - 1), st.integers(1, 255)), min_size=1, max_size=4))
@settings(max_examples=500)
def test_flipped_bits_give_another_blob_or_a_blob_error(flips: list[tuple[int, int]]) -> None:
    damaged = bytearray(RAW)
    for position, bits in flips:
        damaged[position] ^= bits

    with suppress(BlobError):
        blob = Blob.from_bytes(bytes(damaged))
        assert [value.shape for value in blob.values()] == [spec.shape for spec in blob.layout.specs]


@given(st.binary(max_size=300))
def test_a_header_of_random_bytes_gives_a_blob_or_a_blob_error(header: bytes) -> None:
    with suppress(BlobError):
        assert Blob.from_bytes(blob_with(header)).layout.header == header


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (RAW[:8] + struct.pack("<I", 0) + RAW[12:], "version 0"),
        (RAW[:12] + struct.pack("<I", 0xFFFFFFFF) + RAW[16:], "at most 1048576"),
        (RAW + RAW, "behind the end"),
        # `a` ends at 64 + 24 = 88 and `b` begins at 128.
        (RAW[:100] + b"\1" + RAW[101:], "padding before tensor 'b'"),
    ],
)
def test_damage_is_named(raw: bytes, reason: str) -> None:
    with pytest.raises(BlobError, match=reason):
        Blob.from_bytes(raw)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (header_of(tensor() + b"\x20\x01"), "canonical"),  # field 4 of a tensor, which nobody defined
        (header_of(b"\x10\x01\x0a\x01w\x1a\x01\x01"), "canonical"),  # dtype before name
        (header_of(b"\x0a\x01w\x10\x01\x18\x01"), "canonical"),  # shape not packed
        (header_of(b"\x0a\x02\xc3\x28\x10\x01"), "header is damaged"),  # no UTF-8
        (header_of(tensor(dtype=pb.DTYPE_INT8, shape=())), "'w' is int8 of 0 dimensions"),
    ],
)
def test_a_header_that_is_not_as_a_writer_makes_it_is_refused(header: bytes, reason: str) -> None:
    with pytest.raises(BlobError, match=reason):
        Blob.from_bytes(blob_with(header, struct.pack("<f", 1)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("dtype", "stored"), [(pb.DTYPE_FLOAT32, "<f4"), (pb.DTYPE_FLOAT16, "<f2")])
@pytest.mark.parametrize("chunk", [1, 3, 4, 1000])
def test_a_value_that_is_not_finite_is_found_however_the_chunks_cut_it(
    value: float, dtype: pb.Dtype, stored: str, chunk: int
) -> None:
    raw = blob_with(header_of(tensor(dtype=dtype, shape=(4,))), np.array([0, 1, 2, value], stored).tobytes())
    checker = Checker()

    with pytest.raises(BlobError, match="'w' holds a NaN or an infinity"):
        for i in range(0, len(raw), chunk):
            checker.feed(raw[i : i + chunk])


@pytest.mark.parametrize("shape", [(1 << 60,), (1 << 63, 1 << 63, 1 << 63), ((1 << 64) - 1,) * 32])
def test_a_header_that_claims_a_huge_tensor_allocates_nothing(shape: tuple[int, ...], tmp_path: Path) -> None:
    raw = blob_with(header_of(tensor(shape=shape)), bytes(64))
    (tmp_path / "lie").write_bytes(raw)
    tracemalloc.start()

    with pytest.raises(BlobError, match="truncated"):
        Blob.from_bytes(raw)
    with pytest.raises(BlobError, match="truncated"):
        Blob.open(tmp_path / "lie")

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


def test_a_shape_that_lies_about_the_data_is_refused(tmp_path: Path) -> None:
    raw = blob_with(header_of(tensor(shape=(3,))), struct.pack("<2f", 1, 2))
    (tmp_path / "short").write_bytes(raw)

    with pytest.raises(BlobError, match=r"72 bytes found, its header says 76"):  # 64 + 2 * 4 against 64 + 3 * 4
        Blob.from_bytes(raw)
    with pytest.raises(BlobError, match="72 bytes found"):
        Blob.open(tmp_path / "short")


@pytest.mark.parametrize(
    ("given_tensors", "reason"),
    [
        ({k: v for k, v in TENSORS.items() if k != "b"}, "'b' is missing"),
        (TENSORS | {"d": np.zeros(1, np.float32)}, "'d' was not asked for"),
        (TENSORS | {"a": np.zeros((3, 2), np.float32)}, r"a float32\[3, 2\] found where a float32\[2, 3\]"),
        (TENSORS | {"b": np.zeros((), np.float32)}, r"b float32\[\] found where b int64\[\]"),
    ],
)
def test_a_blob_of_other_tensors_is_refused_at_its_header(given_tensors: dict[str, Array], reason: str) -> None:
    raw = encode(given_tensors)
    (length,) = struct.unpack_from("<I", raw, 12)
    checker = Checker(SPECS)

    with pytest.raises(BlobError, match=reason):
        checker.feed(raw[: 16 + length])


@pytest.mark.parametrize(("wanted", "found"), [(None, bytes(32)), (bytes(32), None), (bytes(32), b"\1" * 32)])
def test_a_difference_from_another_base_is_refused(wanted: bytes | None, found: bytes | None) -> None:
    checker, expected = Checker(SPECS, base=wanted), Checker(SPECS, base=found)

    with pytest.raises(BlobError, match="base is not the expected one"):
        checker.feed(encode(TENSORS, base=found))
    expected.feed(encode(TENSORS, base=found))
    assert expected.finish().base == found


def test_an_empty_body_is_no_blob() -> None:
    with pytest.raises(BlobError, match="truncated inside its header"):
        Checker().finish()


def test_an_empty_file_is_no_blob(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()

    with pytest.raises(BlobError, match="at least 16 bytes, found 0"):
        Blob.open(tmp_path / "empty")
