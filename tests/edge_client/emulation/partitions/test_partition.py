from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client.emulation.partitions import SETTINGS, BadPartition, Partition, PartitionName, PhotoPool


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"beta": 0.0}, "beta of partition dirichlet is 0.0; allowed is more than 0"),
        ({"beta": float("nan")}, "beta of partition dirichlet is nan"),
        ({"sigma": -0.1}, "sigma of partition dirichlet is -0.1; allowed is 0 or more"),
        ({"sigma": float("inf")}, "sigma of partition dirichlet is inf"),
        ({"drift": 1.5}, "drift of partition dirichlet is 1.5; allowed is 0 to 1"),
        ({"mislabelled": -0.5}, "mislabelled of partition dirichlet is -0.5; allowed is 0 to 1"),
        ({"clients": 0}, "clients of partition dirichlet is 0; allowed is a whole number, at least 1"),
        ({"per_class": 0}, "per_class of partition dirichlet is 0"),
        ({"min_photos": 0}, "min_photos of partition dirichlet is 0"),
        ({"classes_per_client": 0}, "classes_per_client of partition dirichlet is 0"),
        ({"unseen": 1.0}, "unseen of partition dirichlet is 1.0; allowed is 0 or more and less than 1"),
        ({"unseen": -0.1}, "unseen of partition dirichlet is -0.1; allowed"),
        ({"test_photos": -1}, "test_photos of partition dirichlet is -1; allowed is a whole number, 0 or more"),
        ({"per_class": 2.5}, "per_class of partition dirichlet is 2.5; allowed is a whole number, at least 1"),
    ],
)
def test_a_setting_out_of_its_range_is_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(BadPartition, match=told):
        Partition(name=PartitionName.DIRICHLET, seed=1, **settings)


def test_a_setting_of_another_partition_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        BadPartition, match="'sigma' is no setting of partition dirichlet; it has beta, min_photos, test_"
    ):
        Partition.of(PartitionName.DIRICHLET, {"sigma": 1.0}, seed=1, clients=2)


def test_every_setting_of_every_partition_can_be_set() -> None:
    for name, keys in SETTINGS.items():
        values = {key: 0.5 if key == "unseen" else 1 for key in keys}
        partition = Partition.of(name, values, seed=1, clients=2)
        assert {key: getattr(partition, key) for key in keys} == values


def test_a_partition_that_divides_photos_must_know_how_many_clients_there_are(tmp_path: Path) -> None:
    pool = PhotoPool(root=tmp_path, class_names=("a", "b"), train=((), ()), test=((), ()), skipped={})

    with pytest.raises(BadPartition, match="partition two-classes divides the photos among the clients; set"):
        Partition(name=PartitionName.TWO_CLASSES, seed=1).album(pool, 0)


def test_people_are_told_a_partitions_name_and_settings() -> None:
    assert Partition(name=PartitionName.CAMERA_IID, seed=1, per_class=5).summary == "camera-iid, per class 5"
    assert Partition(name=PartitionName.POOLED_HALVES, seed=1).summary == "pooled-halves, beta 0.5, min photos 40"
    assert Partition(name=PartitionName.TWO_CLASSES, seed=1, test_photos=0).summary == "two-classes, test photos 0"
    assert Partition(name=PartitionName.CLIENTS, seed=1, unseen=0.2).summary == "clients, unseen 0.2"
