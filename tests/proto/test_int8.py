"""int8 tensors: what they hold, and that nothing else passes for them; `tests/vectors` has their bytes."""

import struct
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from fedlens_proto import int8
from fedlens_proto.blob import Array, Blob, Checker, TensorSpec, encode
from fedlens_proto.errors import BlobError
from fedlens_proto.layout import Layout
from fedlens_proto.v1 import blob_pb2 as pb

LARGEST = 2.0**127
ROWS = npst.arrays(
    np.float32,
    npst.array_shapes(min_dims=2, max_dims=4, max_side=5),
    elements=st.floats(-LARGEST, LARGEST, width=32) | st.floats(-1, 1, width=32) | st.just(0),
)
OTHERS = npst.arrays(
    np.float32, npst.array_shapes(min_dims=0, max_dims=1), elements=st.floats(-9, 9, width=32)
) | npst.arrays(np.int64, npst.array_shapes(min_dims=0))


def stored(tensors: dict[str, Array]) -> bytes:
    return encode(tensors, floats=pb.DTYPE_INT8)


def blob_with(scales: list[float], values: list[int]) -> bytes:
    """A blob of one int8 tensor `w` with these scales and values."""
    rows = len(scales)
    start = stored({"w": np.ones((rows, len(values) // rows), np.float32)})[:64]
    return start + struct.pack(f"<{rows}f", *scales) + np.array(values, np.int8).tobytes()


@given(st.dictionaries(st.sampled_from("abcdef"), ROWS | OTHERS, max_size=4))
def test_elements_come_back_within_half_a_scale_and_the_rest_bit_by_bit(tensors: dict[str, Array]) -> None:
    blob = Blob.from_bytes(stored(tensors))

    assert blob.keys() == tensors.keys()
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or tensor.dtype == np.int64:
            assert blob[name].tobytes() == tensor.tobytes()
            continue
        rows = tensor.reshape(len(tensor), -1).astype(np.float64)
        # Below the normal range a scale itself is rounded: by half of the least number, 127 times.
        slack = np.abs(rows).max(axis=1, keepdims=True) / 127 * (0.5 + 1e-4) + 127 * 2.0**-149
        assert blob[name].shape == tensor.shape and blob[name].dtype == np.float32
        assert (np.abs(blob[name].reshape(rows.shape) - rows) <= slack).all()


@given(ROWS)
def test_what_was_decoded_encodes_to_the_same_values(tensor: NDArray[np.float32]) -> None:
    values = int8.encode(tensor)[1]

    again = int8.encode(Blob.from_bytes(stored({"w": tensor}))["w"])[1]

    small = np.abs(tensor.reshape(len(tensor), -1)).max(axis=1) < 2.0**-118  # scales below the normal range
    np.testing.assert_array_equal(again[~small], values[~small])


@given(ROWS, st.data())
def test_any_run_of_elements_is_decoded_as_in_the_whole(tensor: NDArray[np.float32], data: st.DataObject) -> None:
    scales, values = int8.encode(tensor)
    length = values.shape[1]
    whole = int8.decode(scales, values.reshape(-1), length)
    start = data.draw(st.integers(0, values.size - 1))
    stop = data.draw(st.integers(start + 1, values.size))

    rows = slice(start // length, (stop - 1) // length + 1)
    run = int8.decode(scales[rows], values.reshape(-1)[start:stop], length, start % length)

    np.testing.assert_array_equal(run, whole[start:stop])


@given(
    st.dictionaries(st.sampled_from("abcdef"), ROWS | OTHERS, max_size=4),
    st.sampled_from([pb.DTYPE_FLOAT32, pb.DTYPE_INT8]),
    st.lists(st.integers(0, 2000)),
)
@example({"a": np.ones((2, 3), np.float32), "b": np.arange(3), "c": np.array(1.5, np.float32)}, 1, list(range(2000)))
@settings(max_examples=200)
def test_a_blob_checked_in_pieces_is_checked_as_in_one(
    tensors: dict[str, Array], floats: pb.Dtype, cuts: list[int]
) -> None:
    raw = encode(tensors, floats=floats)
    checker = Checker()

    for left, right in pairwise([0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]):
        checker.feed(raw[left:right])

    assert checker.finish() == Blob.from_bytes(raw).layout
    assert checker.digest == sha256(raw).digest()


@pytest.mark.parametrize(
    ("scales", "values", "reason"),
    [
        ([np.nan, 1], [127, 0, 0, 127], "a scale that is a NaN, an infinity or too large"),
        ([1, np.inf], [127, 0, 0, 127], "a scale that is a NaN"),
        # 127 * 2.7e36 = 3.43e38, above 3.403e38, the largest float32.
        ([1, 2.7e36], [127, 0, 0, 127], "too large"),
        ([-1, 1], [127, 0, 0, 127], "a negative scale"),
        ([-0.0, 1], [0, 0, 0, 127], "a negative scale"),
        ([1, 1], [127, -128, 0, 127], "holds -128"),
        ([1, 0], [127, 0, 0, 1], "values are not what its scale gives, up to row 1"),
        ([1, 1], [126, -126, 0, 127], "values are not what its scale gives"),
        ([1, 1], [127, 0, 0, 0], "values are not what its scale gives"),
        ([1e-44, 1], [63, 0, 0, 127], "values are not what its scale gives"),
    ],
)
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_content_that_the_encoder_does_not_write_is_refused(
    scales: list[float], values: list[int], reason: str, piece: int
) -> None:
    raw = blob_with(scales, values)
    checker = Checker()

    with pytest.raises(BlobError, match=f"tensor 'w' .*{reason}"):
        for start in range(0, len(raw), piece):
            checker.feed(raw[start : start + piece])


def test_the_same_by_hand_with_right_values_is_accepted() -> None:
    assert Blob.from_bytes(blob_with([1, 0], [127, -3, 0, 0]))["w"].tolist() == [[127, -3], [0, 0]]


@pytest.mark.parametrize("columns", [1 << 63, (1 << 64) - 1])
def test_a_row_longer_than_numbers_of_64_bits_go_is_truncated_like_any_other(columns: int) -> None:
    layout = Layout.of([TensorSpec("w", pb.DTYPE_INT8, (1, columns))])
    start = layout.prefix + bytes(layout.offsets[0] - len(layout.prefix))

    with pytest.raises(BlobError, match="truncated"):
        Blob.from_bytes(start + np.array([1], "<f4").tobytes() + bytes([127, 1, 2]))


@given(npst.arrays(np.float32, (3, 7), elements=st.floats(0, 2.0**-126, width=32, allow_subnormal=True)))
def test_rows_below_the_normal_range_are_what_the_checker_accepts(tensor: NDArray[np.float32]) -> None:
    assert Blob.from_bytes(stored({"w": tensor}))["w"].shape == (3, 7)
