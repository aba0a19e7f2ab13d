"""Compare the shared model with models trained by each client alone and by one server with all photos.

The same programs run all three on the same test photos. A client alone trains as long on its own photos as it does in
the federation. The server has its own learning rate, because no average takes the noise out of its steps.
"""

import struct
from collections.abc import Mapping
from contextlib import closing
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
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training import local_training, photo_set
from fedlens_edge_client.training.evaluation import log_softmax
from fedlens_edge_client.training.photo_set import PhotoSet
from fedlens_proto.blob import Array
from fedlens_proto.v1 import assignment_pb2

STEP = "step"


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training of a model outside the federation: passes over its photos, and hyper-parameters by name."""

    epochs: int
    hyper: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Predictions:
    """One model's predictions for all N test photos.

    Attributes:
        labels: Most likely class, int64 [N].
        probabilities: That class's probability, float64 [N].
        correct: Whether it is the true class, bool [N].
    """

    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    correct: NDArray[np.bool_]

    def accuracy(self, rows: NDArray[np.int64] | slice = slice(None)) -> float:
        """The accuracy on these rows, 0 to 1; NaN without any."""
        chosen = self.correct[rows]
        return float(chosen.mean()) if len(chosen) else float("nan")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Three ways of learning, measured on the same N test photos of C classes.

    Attributes:
        paths: Files of the test photos.
        labels: True classes, int64 [N].
        together: Predictions of the last round's model.
        alone: Predictions of each client's own model; empty if none was trained.
        pooled: Predictions of the model of one server with all train photos; None if it was not trained.
        own: For each client of `alone`, the rows of its own test photos, int64.
        names: Names of the clients of `alone`.
        photo_bytes: Total size of the train photos' files, which clients would have to send to one server.
    """

    class_names: tuple[str, ...]
    paths: tuple[Path, ...]
    labels: NDArray[np.int64]
    together: Predictions
    alone: tuple[Predictions, ...]
    pooled: Predictions | None
    own: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...]
    photo_bytes: int

    @property
    def alone_accuracy(self) -> float:
        """The mean accuracy of the clients that train alone, 0 to 1."""
        return float(np.mean([each.accuracy() for each in self.alone]))

    @property
    def mistakes(self) -> list[int]:
        """The rows that the shared model gets wrong, the most probable predictions first."""
        rows = np.flatnonzero(~self.together.correct)
        return [int(row) for row in rows[np.argsort(-self.together.probabilities[rows], kind="stable")]]

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Test photos by true class and the shared model's prediction, int64 [C, C]."""
        counts = np.zeros((len(self.class_names),) * 2, np.int64)
        np.add.at(counts, (self.labels, self.together.labels), 1)
        return counts

    def rows_of(self, label: int) -> NDArray[np.int64]:
        """The rows of a class."""
        return np.flatnonzero(self.labels == label)


def compare(
    fleet: FleetConfig,
    engine: Engine,
    model: Mapping[str, Array],
    *,
    alone: Training | None,
    pooled: Training | None,
) -> Comparison:
    """Test the shared model; train and test the others.

    Args:
        fleet: Clients with the same albums in every round.
        engine: Engine of the bundle.
        model: The shared model's tensors.
        alone: Training of each client by itself; None: not compared.
        pooled: Training of one server; None: not compared.

    Raises:
        EngineError: A program could not be run, or gave a NaN.
    """
    with closing(FeatureCache.in_folder(fleet.features, DEFAULT_CACHE_BYTES)) as cache:
        held = fleet.album(EVALUATOR).photos(1)
        tested = photo_set.prepare(held, engine, cache, only_test=True).test
        indices = range(fleet.clients if alone else 0)
        clients = [photo_set.prepare(fleet.album(i).photos(1), engine, cache) for i in indices]
        everything = AlbumSnapshot(fleet.pool.entries(is_test=False) if pooled else ())
        all_photos = photo_set.prepare(everything, engine, cache).train
    paths = {(photo.digest, photo.copy): photo.path for photo in held.photos}
    rows_of: dict[bytes, list[int]] = {}
    for row, (digest, _) in enumerate(tested.entries):
        rows_of.setdefault(digest, []).append(row)

    def predictions(weights: Mapping[str, Array]) -> Predictions:
        probabilities = np.exp(log_softmax(engine.predict(weights, tested.rows.inputs)))
        labels = probabilities.argmax(axis=1)
        return Predictions(labels, probabilities.max(axis=1), labels == tested.rows.labels)

    def trained(photos: PhotoSet, how: Training, index: int) -> Predictions:
        seed = sha256(b"fedlens/demo/comparison/v1" + struct.pack("<QQ", fleet.partition.seed, index)).digest()
        manifest = engine.bundle.manifest
        train = assignment_pb2.Train(program=STEP, epochs=how.epochs)
        order = local_training.batches(photos, seed, 0, train, manifest.batch, manifest.last_batch)
        rows = photos.training_rows(engine, seed)
        return predictions(engine.train(STEP, engine.bundle.initial(), rows, order, how.hyper, {}))

    return Comparison(
        class_names=tuple(engine.bundle.manifest.class_names),
        paths=tuple(paths[entry] for entry in tested.entries),
        labels=tested.rows.labels,
        together=predictions(model),
        alone=() if alone is None else tuple(trained(photos.train, alone, i) for i, photos in enumerate(clients)),
        pooled=None if pooled is None else trained(all_photos, pooled, fleet.clients),
        own=tuple(
            np.array(sorted({row for digest, _ in photos.test.entries for row in rows_of.get(digest, ())}), np.int64)
            for photos in clients
        ),
        names=tuple(map(fleet.name, indices)),
        photo_bytes=sum(photo.path.stat().st_size for members in fleet.pool.train for photo in members),
    )
