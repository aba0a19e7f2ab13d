"""A blob holds what was put in, in one encoding; `tests/vectors` has its bytes in every codec."""

from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedlens_proto import layout
from fedlens_proto.blob import Array, Blob, Layout, TensorSpec, encode, write
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


def test_a_blob_without_tensors_is_a_blob(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(encode({}))

    # magic 8 + version 4 + header length 4, and an empty header.
    assert len(Blob.open(tmp_path / "empty").raw) == 16


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        *(({"w": np.array([0.0, value])}, "'w' holds a NaN, an infinity or a") for value in (np.nan, -np.inf, 1e39)),
        *(({"w": np.zeros(2, kind)}, "'w' has dtype") for kind in (np.bool_, np.int32, np.uint8, np.complex64)),
        *(({"w": np.zeros(shape)}, "'w' has an empty dimension") for shape in ((0,), (3, 0))),
        ({"w": np.zeros((1,) * 33)}, "'w' has 33 dimensions"),
        *(({name: np.zeros(1)}, "tensor name") for name in ("", "x" * 256, "\u00e9" * 128)),
    ],
)
def test_what_a_blob_cannot_hold_is_refused_by_name(tensors: dict[str, Array], reason: str) -> None:
    with pytest.raises(BlobError, match=reason):
        encode(tensors)


@pytest.mark.parametrize("codec", [pb.DTYPE_INT64, pb.DTYPE_UNSPECIFIED])
def test_other_codecs_are_refused_by_name(codec: pb.Dtype) -> None:
    with pytest.raises(BlobError, match=pb.Dtype.Name(codec)):
        encode({"w": np.zeros(2)}, floats=codec)


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


def test_a_spec_reads_as_in_a_message() -> None:
    assert str(TensorSpec("fc.weight", pb.DTYPE_FLOAT32, (10, 512))) == "fc.weight float32[10, 512]"


def test_the_layout_of_a_long_header_is_not_kept_in_memory() -> None:
    before = layout._kept.cache_info().currsize
    specs = [TensorSpec(f"t{i}", pb.DTYPE_FLOAT32, (1,)) for i in range(1000)]

    long = Layout.of(specs)

    assert Layout.parse(long.prefix) == long
    assert layout._kept.cache_info().currsize == before
