from collections import Counter

import numpy as np
import pytest

from fedlens_edge_client.emulation.partitions import PhotoPool
from fedlens_edge_client.emulation.partitions.drift import SEASON, class_weights
from fedlens_edge_client.emulation.partitions.filling import FillingAlbum
from tests.edge_client.emulation.conftest import CLASSES


def album(pool: PhotoPool, drift: float) -> FillingAlbum:
    return FillingAlbum(pool, 1, 0, per_class=10, limit=60, mislabelled=0.0, test_per_class=1, drift=drift)


def test_at_the_start_of_a_season_the_most_frequent_class_has_weight_one() -> None:
    weights = [class_weights(5, 0, SEASON * season, 4) for season in range(20)]

    assert all(w.max() == 1 and w.min() >= 0 for w in weights)
    assert len({int(w.argmax()) for w in weights}) == 4


def test_weights_move_in_straight_lines_within_a_season() -> None:
    weights = np.array([class_weights(5, 0, r, 4) for r in range(SEASON + 1)])

    np.testing.assert_allclose(np.diff(weights, axis=0), np.tile((weights[-1] - weights[0]) / SEASON, (SEASON, 1)))


def test_clients_drift_apart() -> None:
    assert class_weights(5, 0, 7, 4).tolist() != class_weights(5, 1, 7, 4).tolist()
    assert class_weights(5, 0, 7, 4).tolist() != class_weights(6, 0, 7, 4).tolist()


@pytest.mark.parametrize("drift", [0.0, 0.4, 1.0])
def test_drift_bounds_how_many_photos_of_a_class_arrive(pool: PhotoPool, drift: float) -> None:
    for r in range(1, 41):
        arrived = Counter(arrival.label for arrival in album(pool, drift).arrivals(r))
        weights = class_weights(1, 0, r, 3)
        for label in range(3):
            # n = 10: at most 2n (1 - D + D w), rounded, and at least one.
            assert 1 <= arrived[label] <= max(1, round(20 * (1 - drift + drift * weights[label])))


def test_the_class_mix_of_an_album_follows_the_drift(pool: PhotoPool) -> None:
    def largest(drift: float, r: int) -> str:
        photos = album(pool, drift).photos(r).photos
        return Counter(photo.label for photo in photos if not photo.is_test).most_common(1)[0][0]

    rounds = range(SEASON, 10 * SEASON, SEASON)
    weighted = [CLASSES[int(class_weights(1, 0, r - 1, 3).argmax())] for r in rounds]

    # An album of 60 holds the arrivals of the last two to four rounds.
    assert sum(map(str.__eq__, weighted, (largest(1.0, r) for r in rounds))) >= 7


def test_a_drifting_album_is_a_pure_function_of_the_round(pool: PhotoPool) -> None:
    assert album(pool, 1.0).photos(23) == album(pool, 1.0).photos(23)
    assert album(pool, 1.0).photos(23) != album(pool, 0.0).photos(23)
