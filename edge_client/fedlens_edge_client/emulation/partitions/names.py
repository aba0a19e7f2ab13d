"""The partitions' names and settings."""

from collections.abc import Mapping
from enum import StrEnum


class PartitionName(StrEnum):
    """Names of the partitions, as on the command line."""

    CAMERA_IID = "camera-iid"
    CAMERA_NONIID = "camera-noniid"
    ALBUM = "album"
    DIRICHLET = "dirichlet"
    CLASSES = "classes"
    TWO_CLASSES = "two-classes"
    POOLED_HALVES = "pooled-halves"
    FEATURE_SKEW = "feature-skew"
    CLIENTS = "clients"


_CAMERA = ("per_class", "test_per_class")
SETTINGS: Mapping[PartitionName, tuple[str, ...]] = {
    PartitionName.CAMERA_IID: _CAMERA,
    PartitionName.CAMERA_NONIID: _CAMERA,
    PartitionName.ALBUM: (*_CAMERA, "limit", "mislabelled", "drift"),
    PartitionName.DIRICHLET: ("beta", "min_photos", "test_photos"),
    PartitionName.CLASSES: ("classes_per_client", "test_photos"),
    PartitionName.TWO_CLASSES: ("test_photos",),
    PartitionName.POOLED_HALVES: ("beta", "min_photos"),
    PartitionName.FEATURE_SKEW: ("sigma", "test_photos"),
    PartitionName.CLIENTS: ("unseen",),
}
"""The settings of each partition; those of another partition would have no effect."""
DRAWING = frozenset({PartitionName.CAMERA_IID, PartitionName.CAMERA_NONIID, PartitionName.ALBUM})
"""The partitions whose clients draw photos, each for itself; the others divide them, among all clients of a fleet."""
