from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.emulation.partitions import SETTINGS, BadRegime, PhotoPool, Regime, RegimeName


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"beta": 0.0}, "beta of regime dirichlet is 0.0; allowed is more than 0"),
        ({"beta": float("nan")}, "beta of regime dirichlet is nan"),
        ({"sigma": -0.1}, "sigma of regime dirichlet is -0.1; allowed is 0 or more"),
        ({"sigma": float("inf")}, "sigma of regime dirichlet is inf"),
        ({"drift": 1.5}, "drift of regime dirichlet is 1.5; allowed is 0 to 1"),
        ({"mislabelled": -0.5}, "mislabelled of regime dirichlet is -0.5; allowed is 0 to 1"),
        ({"clients": 0}, "clients of regime dirichlet is 0; allowed is at least 1"),
        ({"per_class": 0}, "per_class of regime dirichlet is 0"),
        ({"min_photos": 0}, "min_photos of regime dirichlet is 0"),
        ({"classes_per_client": 0}, "classes_per_client of regime dirichlet is 0"),
        ({"unseen": 1.0}, "unseen of regime dirichlet is 1.0; allowed is 0 or more and less than 1"),
        ({"unseen": -0.1}, "unseen of regime dirichlet is -0.1; allowed"),
        ({"test_photos": -1}, "test_photos of regime dirichlet is -1; allowed is 0 or more"),
    ],
)
def test_a_setting_out_of_its_range_is_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRegime, match=told):
        Regime(name=RegimeName.DIRICHLET, seed=1, **settings)


def test_a_setting_of_another_regime_is_refused_with_what_there_is() -> None:
    with pytest.raises(BadRegime, match="'sigma' is no setting of regime dirichlet; it has beta, min_photos, test_"):
        Regime.of(RegimeName.DIRICHLET, {"sigma": 1.0}, seed=1, clients=2)


def test_every_setting_of_every_regime_can_be_set() -> None:
    for name, keys in SETTINGS.items():
        values = {key: 0.5 if key == "unseen" else 1 for key in keys}
        regime = Regime.of(name, values, seed=1, clients=2)
        assert {key: getattr(regime, key) for key in keys} == values


def test_a_regime_that_divides_photos_must_know_how_many_clients_there_are(tmp_path: Path) -> None:
    pool = PhotoPool(root=tmp_path, class_names=("a", "b"), train=((), ()), test=((), ()), skipped={})

    with pytest.raises(BadRegime, match="regime two-classes divides the photos among the clients; say how many"):
        Regime(name=RegimeName.TWO_CLASSES, seed=1).album(pool, 0)


def test_people_are_told_a_regimes_name_and_settings() -> None:
    assert Regime(name=RegimeName.CAMERA_IID, seed=1, per_class=5).summary == "camera-iid, per class 5"
    assert Regime(name=RegimeName.POOLED_HALVES, seed=1).summary == "pooled-halves, beta 0.5, min photos 40"
    assert Regime(name=RegimeName.TWO_CLASSES, seed=1, test_photos=0).summary == "two-classes, test photos 0"
    assert Regime(name=RegimeName.CLIENTS, seed=1, unseen=0.2).summary == "clients, unseen 0.2"
