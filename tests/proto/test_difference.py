"""Differences to a base, and the sums that undo them."""

import numpy as np
import pytest

from fedlens_proto.blob import Blob, encode
from fedlens_proto.difference import Differences, Sums
from fedlens_proto.errors import BlobError
from fedlens_proto.v1 import blob_pb2 as pb

BASE = {"w": np.array([[1.0, 2.0]], np.float32), "n": np.array(5), "unused": np.zeros(3, np.float32)}
TRAINED = {"w": np.array([[1.5, -2.0]], np.float32), "n": np.array(9)}


def test_a_sum_of_base_and_difference_is_what_was_trained() -> None:
    raw = encode(Differences(TRAINED, BASE), base=bytes(32))

    found = Sums(BASE, Blob.from_bytes(raw))

    assert Blob.from_bytes(raw)["w"].tolist() == [[0.5, -4.0]]
    assert Blob.from_bytes(raw)["n"] == 4
    assert encode(found) == encode(TRAINED)


def test_what_an_int8_difference_loses_does_not_add_up_over_rounds() -> None:
    # Weights go from 0 to 1 in 100 steps of 0.01, one of them by 1 each step, so that the scale is 1 / 127 and half of
    # it, 0.0039, is lost at most a round. If losses added up, they could be 0.39 after 100 rounds.
    target = np.zeros((1, 2), np.float32)
    held = {"w": target.copy()}
    for _ in range(100):
        target += np.array([[0.01, 1.0]], np.float32)
        difference = Blob.from_bytes(encode(Differences({"w": target}, held), floats=pb.DTYPE_INT8))
        held = {"w": Sums(held, difference)["w"]}

    assert np.abs(held["w"] - target).max() <= 1 / 127 / 2 + 1e-5


@pytest.mark.parametrize(
    ("base", "reason"),
    [
        ({}, "has no tensor 'w'"),
        ({"w": np.zeros((2, 1), np.float32)}, r"'w' is float32\[1, 2\], in the base float32\[2, 1\]"),
        ({"w": np.zeros((1, 2), np.int64)}, r"in the base int64\[1, 2\]"),
    ],
)
def test_a_base_that_does_not_fit_is_refused(base: dict[str, np.ndarray], reason: str) -> None:
    with pytest.raises(BlobError, match=reason):
        encode(Differences({"w": TRAINED["w"]}, base))


def test_a_difference_beyond_float32_is_not_encoded() -> None:
    with pytest.raises(BlobError, match="infinity"):
        encode(Differences({"w": np.array([3e38], np.float32)}, {"w": np.array([-3e38], np.float32)}))
