import numpy as np
import pytest

from fedlens_server.methods.arithmetic import inferred_labels
from fedlens_server.planning.method import TensorSet


def test_inferred_labels_are_the_mean_of_softmax_not_softmax_of_the_mean() -> None:
    # softmax (0, log 3) = (1/4, 3/4) and (log 9, 0) = (9/10, 1/10): mean (0.575, 0.425).
    found = inferred_labels.mean_softmax(np.log([[1, 3], [9, 1]]))

    np.testing.assert_allclose(found, [0.575, 0.425], rtol=1e-12)
    # Huge logits give no infinity.
    np.testing.assert_array_equal(inferred_labels.mean_softmax(np.float32([[1e30, -1e30]])), [1, 0])


def test_random_images_are_the_same_for_all_models_and_however_many_fit_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bright(tensors: TensorSet, photos: np.ndarray) -> np.ndarray:
        return np.stack([photos.sum((1, 2, 3)), np.zeros(len(photos), np.float32)], 1)

    def found() -> np.ndarray:
        return inferred_labels.label_distributions(bright, [{}, {}], 50, (3, 2, 2), np.random.default_rng(1))

    whole = found()
    monkeypatch.setattr(inferred_labels, "IMAGE_BYTES", 7 * 48)  # seven images of twelve floats
    pieces = found()

    np.testing.assert_array_equal(whole[0], whole[1])
    np.testing.assert_allclose(pieces, whole, rtol=1e-12)
    # Uniform in 0..1: the softmax of the sum of twelve, 6 on average, against 0.
    assert 0.99 < whole[0, 0] < 1
