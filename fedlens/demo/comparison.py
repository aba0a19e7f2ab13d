"""The shared model beside what there would be without it: every client alone, and one server that has all photos.

All three answer the same test photos, by the same programs. A client alone trains as long on its own photos as it
does in the federation. The server trains at a rate of its own: no average takes the noise out of its steps.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.client.client import DEFAULT_CACHE_BYTES
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.storage.album import AlbumSnapshot
from fedlens_edge_client.training import local_training, photo_set
from fedlens_edge_client.training.evaluation import log_softmax
from fedlens_edge_client.training.features import FeatureCache
from fedlens_edge_client.training.photo_set import PhotoSet
from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2

STEP = "step"


@dataclass(frozen=True, kw_only=True)
class Training:
    """How long, and with which hyper-parameters by name, a model is trained beside the federation."""

    epochs: int
    hyper: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Answers:
    """One model's answers to all N test photos.

    Attributes:
        labels: The likeliest class of each, int64 [N].
        likelihoods: Its probability, float64 [N].
        right: Whether it is the true class, bool [N].
    """

    labels: NDArray[np.int64]
    likelihoods: NDArray[np.float64]
    right: NDArray[np.bool_]

    def share(self, rows: NDArray[np.int64] | slice = slice(None)) -> float:
        """The accuracy on these rows, 0 to 1; NaN without any."""
        chosen = self.right[rows]
        return float(chosen.mean()) if len(chosen) else float("nan")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Three ways of learning, measured on the same N test photos.

    Attributes:
        paths: Of the test photos.
        labels: Their true classes, int64 [N].
        together: By the model of the last round.
        alone: By each client's own model; empty where that was not trained.
        pooled: By the model of a server with all train photos; None where that was not trained.
        own: For each client of `alone` the rows that are its own test photos, int64.
        names: Of these clients.
        photo_bytes: Size of all train photos' files, which a server would have to be sent.
    """

    class_names: tuple[str, ...]
    paths: tuple[Path, ...]
    labels: NDArray[np.int64]
    together: Answers
    alone: tuple[Answers, ...]
    pooled: Answers | None
    own: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]
    photo_bytes: int

    @property
    def alone_share(self) -> float:
        """The accuracy of the mean client that trains alone, 0 to 1."""
        return float(np.mean([answers.share() for answers in self.alone]))

    @property
    def wrong(self) -> list[int]:
        """The rows that the shared model gets wrong, those of which it is surest first."""
        rows = np.flatnonzero(~self.together.right)
        return [int(row) for row in rows[np.argsort(-self.together.likelihoods[rows], kind="stable")]]

    def rows_of(self, label: int) -> NDArray[np.int64]:
        """The test photos of a class."""
        return np.flatnonzero(self.labels == label)


def compare(
    fleet: FleetConfig,
    engine: Engine,
    model: Mapping[str, Array],
    *,
    alone: Training | None,
    pooled: Training | None,
) -> Comparison:
    """Test the shared model, and train and test the others.

    Args:
        fleet: Whose albums are the same in every round.
        engine: Of the bundle.
        model: The shared model's tensors.
        alone: How each client trains by itself; None: it does not.
        pooled: How a server trains; None: it does not.

    Raises:
        EngineError: A program could not be run, or gave a NaN.
    """
    cache = FeatureCache.in_folder(fleet.features, DEFAULT_CACHE_BYTES)
    try:
        held = fleet.album(EVALUATOR).photos(1)
        tested = photo_set.prepare(held, engine, cache, only_test=True).test
        indices = range(fleet.clients if alone else 0)
        clients = [photo_set.prepare(fleet.album(i).photos(1), engine, cache) for i in indices]
        everything = AlbumSnapshot(fleet.pool.entries(is_test=False) if pooled else ())
        all_photos = photo_set.prepare(everything, engine, cache).train
    finally:
        cache.close()
    paths = {(photo.digest, photo.copy): photo.path for photo in held.photos}
    rows_of: dict[bytes, list[int]] = {}
    for row, (digest, _) in enumerate(tested.entries):
        rows_of.setdefault(digest, []).append(row)

    def answers(weights: Mapping[str, Array]) -> Answers:
        probabilities = np.exp(log_softmax(engine.predict(weights, tested.rows.inputs)))
        labels = probabilities.argmax(axis=1)
        return Answers(labels, probabilities.max(axis=1), labels == tested.rows.labels)

    def trained(photos: PhotoSet, how: Training, index: int) -> Answers:
        seed = sha256(b"fedlens/demo/comparison/v1" + struct.pack("<QQ", fleet.partition.seed, index)).digest()
        stage = assignment_pb2.Stage(program=STEP, epochs=how.epochs)
        order = local_training.batches(photos, seed, 0, stage, engine.bundle.manifest)
        rows = photos.training_rows(engine, seed)
        return answers(engine.train(STEP, engine.bundle.initial(), rows, order, how.hyper, {}))

    return Comparison(
        class_names=tuple(engine.bundle.manifest.class_names),
        paths=tuple(paths[entry] for entry in tested.entries),
        labels=tested.rows.labels,
        together=answers(model),
        alone=() if alone is None else tuple(trained(photos.train, alone, i) for i, photos in enumerate(clients)),
        pooled=None if pooled is None else trained(all_photos, pooled, fleet.clients),
        own=tuple(
            np.array(sorted({row for digest, _ in photos.test.entries for row in rows_of.get(digest, ())}), np.int64)
            for photos in clients
        ),
        names=tuple(map(fleet.name, indices)),
        photo_bytes=sum(photo.path.stat().st_size for members in fleet.pool.train for photo in members),
    )
