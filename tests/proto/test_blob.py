"""A blob holds what was put in, in one encoding."""

import struct
from hashlib import sha256
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedlens_proto.blob import Array, Blob, Checker, TensorSpec, encode, write
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import blob_pb2 as pb

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20)
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, max_side=5)
FLOATS32 = npst.arrays(np.float32, SHAPES, elements=st.floats(width=32, allow_nan=False, allow_infinity=False))
FLOATS16 = npst.arrays(np.float32, SHAPES, elements=st.floats(width=16, allow_nan=False, allow_infinity=False))
INTEGERS = npst.arrays(np.int64, SHAPES)


def same(blob: Blob, tensors: dict[str, Array]) -> bool:
    return blob.keys() == tensors.keys() and all(
        blob[name].shape == value.shape and blob[name].tobytes() == value.tobytes() for name, value in tensors.items()
    )


def test_bytes_are_laid_out_as_the_module_says() -> None:
    # Protobuf by hand. A tensor is a message of field 1 (tag 0x0a); in it name = 1 (0x0a), dtype = 2 (0x10: varint),
    # shape = 3 packed (0x1a). float32 is 1, int64 is 4.
    first = b"\x0a\x01a" + b"\x10\x01" + b"\x1a\x02\x02\x03"  # a: float32 [2, 3]
    second = b"\x0a\x01b" + b"\x10\x04"  # b: int64, a scalar, so no shape
    header = b"\x0a" + bytes([len(first)]) + first + b"\x0a" + bytes([len(second)]) + second
    start = b"FEDLENS\0" + struct.pack("<II", 1, len(header)) + header
    # 16 + 18 = 34 bytes, so `a` stands at 64 and ends at 64 + 24 = 88; `b` stands at 128 and ends at 136.
    by_hand = start.ljust(64, b"\0") + struct.pack("<6f", 0, 1, 2, 3, 4, 5).ljust(64, b"\0") + struct.pack("<q", -7)

    found = encode({"b": np.array(-7), "a": np.arange(6, dtype=np.float32).reshape(2, 3)})

    assert len(found) == 136
    assert found == by_hand


def test_a_float16_blob_takes_two_bytes_an_element() -> None:
    # One tensor of 1000: header below 48 bytes, so the data stands at 64.
    assert len(encode({"w": np.zeros(1000, np.float32)}, floats=pb.DTYPE_FLOAT16)) == 64 + 2000


@given(st.dictionaries(NAMES, FLOATS32 | INTEGERS, max_size=5))
def test_float32_and_integers_come_back_bit_by_bit(tensors: dict[str, Array]) -> None:
    assert same(Blob.from_bytes(encode(tensors)), tensors)


@given(st.dictionaries(NAMES, FLOATS16, max_size=5))
def test_values_that_float16_can_hold_come_back_as_float32(tensors: dict[str, Array]) -> None:
    assert same(Blob.from_bytes(encode(tensors, floats=pb.DTYPE_FLOAT16)), tensors)


@given(st.dictionaries(NAMES, FLOATS32, min_size=2, max_size=5))
def test_the_order_of_insertion_does_not_show_in_the_bytes(tensors: dict[str, Array]) -> None:
    backwards = dict(reversed(tensors.items()))

    assert encode(tensors) == encode(backwards)


@given(st.dictionaries(NAMES, FLOATS32 | INTEGERS, max_size=4), st.lists(st.integers(0, 2000), max_size=12))
@settings(max_examples=200)
def test_a_blob_checked_in_pieces_is_checked_as_in_one(tensors: dict[str, Array], cuts: list[int]) -> None:
    raw = encode(tensors)
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    checker = Checker()

    for left, right in pairwise(edges):
        checker.feed(raw[left:right])

    assert checker.finish() == Blob.from_bytes(raw).layout
    assert checker.digest == sha256(raw).digest()


def test_a_blob_checked_byte_by_byte_is_accepted() -> None:
    raw = encode({"a": np.arange(5, dtype=np.float32), "b": np.arange(3), "c": np.array(1.5, np.float32)})
    checker = Checker()

    for i in range(len(raw)):
        checker.feed(raw[i : i + 1])

    assert checker.finish().size == len(raw)


def test_the_data_of_every_tensor_is_aligned() -> None:
    raw = encode({f"t{i}": np.ones(i + 1, np.float32) for i in range(20)})

    assert all(offset % 64 == 0 for offset in Blob.from_bytes(raw).layout.offsets)


def test_a_mapped_file_gives_the_same_tensors(tmp_path: Path) -> None:
    tensors: dict[str, Array] = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "n": np.array(5)}
    file = tmp_path / "blob"
    file.write_bytes(encode(tensors))

    blob = Blob.open(file)

    assert same(blob, tensors)
    assert blob.digest == sha256(file.read_bytes()).digest()
    assert blob.size == file.stat().st_size == len(blob.raw)


def test_tensors_read_from_a_blob_cannot_be_written() -> None:
    blob = Blob.from_bytes(encode({"w": np.zeros(3, np.float32)}))

    with pytest.raises(ValueError, match="read-only"):
        blob["w"][0] = 1


def test_writing_to_a_stream_gives_the_digest_of_what_was_written() -> None:
    stream = BytesIO()

    digest, layout = write(stream, {"w": np.ones((2, 2), np.float64)})

    assert digest == sha256(stream.getvalue()).digest()
    assert layout.size == len(stream.getvalue())


def test_a_transposed_array_is_stored_in_the_order_of_its_rows() -> None:
    columns = np.arange(6, dtype=np.float32).reshape(2, 3).T

    np.testing.assert_array_equal(Blob.from_bytes(encode({"w": columns}))["w"], columns)


def test_a_difference_names_its_base() -> None:
    base = bytes(range(32))

    assert Blob.from_bytes(encode({"w": np.zeros(1, np.float32)}, base=base)).layout.base == base


def test_a_blob_without_tensors_is_a_blob(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(encode({}))

    # magic 8 + version 4 + header length 4, and an empty header.
    assert len(Blob.open(tmp_path / "empty").raw) == 16
    assert len(Blob.from_bytes(encode({}))) == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e39])
def test_values_that_float32_cannot_hold_are_not_written(value: float) -> None:
    with pytest.raises(BlobError, match="'w'"):
        encode({"w": np.array([0.0, value])})


def test_a_value_above_the_range_of_float16_is_not_written() -> None:
    # 65504 is the greatest float16; 65520 is the first that rounds to infinity.
    assert Blob.from_bytes(encode({"w": np.array([65519.0])}, floats=pb.DTYPE_FLOAT16))["w"][0] == 65504
    with pytest.raises(BlobError, match="too large"):
        encode({"w": np.array([65520.0])}, floats=pb.DTYPE_FLOAT16)


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.uint8, np.complex64])
def test_other_types_of_element_are_refused(dtype: type) -> None:
    with pytest.raises(BlobError, match="'w' has dtype"):
        encode({"w": np.zeros(2, dtype)})


@pytest.mark.parametrize("codec", [pb.DTYPE_INT64, pb.DTYPE_UNSPECIFIED])
def test_other_codecs_are_refused_by_name(codec: pb.Dtype) -> None:
    with pytest.raises(BlobError, match=pb.Dtype.Name(codec)):
        encode({"w": np.zeros(2)}, floats=codec)


@pytest.mark.parametrize("name", ["", "a\nb", "a\0", "\ud800", "x" * 256, "\u00e9" * 128])
def test_names_that_nobody_could_read_are_refused(name: str) -> None:
    with pytest.raises(BlobError, match="tensor name"):
        encode({name: np.zeros(1, np.float32)})


def test_which_characters_a_name_may_have_does_not_depend_on_unicodes_version() -> None:
    # As in `docs/protocol.md`; the last of each range, and the first ones outside of it.
    refused = "\x00\x1f\x7f\x80\x9f\u2028\u2029\u202a\u202e\u2066\u2069\ud800\udfff"
    # Among them characters for private use, one that is not assigned yet, and the last of all.
    taken = " ~\xa0\xe9\u2027\u202f\u2065\u206a\ud7ff\ue000\u4e2d\u0378\U0001f600\U0010ffff"

    for character in refused:
        with pytest.raises(BlobError, match="tensor name"):
            encode({f"a{character}": np.zeros(1, np.float32)})
    for character in taken:
        assert list(Blob.from_bytes(encode({f"a{character}": np.zeros(1, np.float32)}))) == [f"a{character}"]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (1,) * 33])
def test_shapes_that_are_no_use_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BlobError, match="dimension"):
        encode({"w": np.zeros(shape, np.float32)})


def test_a_spec_reads_as_in_a_message() -> None:
    assert str(TensorSpec("fc.weight", pb.DTYPE_FLOAT32, (10, 512))) == "fc.weight float32[10, 512]"
