"""Rows of outputs of several frozen extractors side by side, each computed once per photo and cached.

A photo's digest determines its position in the program's batch, and the other positions do not affect its outputs. So
they are independent of batch composition and of which client of a shared cache computes them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fedlens_edge_client.engines import Engine, Rows
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training import features
from fedlens_edge_client.training.photo_set import PhotoSet, PreparedPhotos
from fedlens_edge_client.training.sources import Tensors
from fedlens_proto import manifest as manifests
from fedlens_proto.v1 import manifest_pb2

# Batches per call of the program; the work can be interrupted between calls.
_BATCHES_AT_ONCE = 8


@dataclass(frozen=True)
class Extractor:
    """A downloaded extractor.

    Attributes:
        sha256: Digest of its blob.
        read: Returns the tensors; called only if outputs are missing in the cache.
    """

    sha256: bytes
    read: Callable[[], Tensors]


def side_by_side(
    photos: PreparedPhotos,
    engine: Engine,
    extractors: Sequence[Extractor | None],
    cache: FeatureCache,
    check: Callable[[], None] = lambda: None,
) -> PreparedPhotos:
    """Replace the rows by float32 [N, len(extractors) * d]: each extractor's outputs, zeros for None.

    Args:
        photos: With rows of features or pixels.
        engine: Runs `extract`.
        extractors: In the order of their outputs.
        cache: Outputs computed before.
        check: Called between batches; an exception that it raises ends the work.

    Raises:
        EngineError: An extractor does not fit the program, or gave a NaN.
    """
    inputs = {
        digest: row
        for part in (photos.train, photos.test)
        for (digest, _), row in zip(part.entries, part.rows.inputs, strict=True)
    }
    blocks = [None if one is None else _outputs(inputs, engine, one, cache, check) for one in extractors]
    width = _width(engine.bundle.manifest)

    def replaced(part: PhotoSet) -> PhotoSet:
        rows = np.zeros((len(part), len(blocks) * width), np.float32)
        for i, block in enumerate(blocks):
            if block is not None:
                for row, (digest, _) in zip(rows, part.entries, strict=True):
                    row[i * width : (i + 1) * width] = np.frombuffer(block[digest], "<f4")
        return PhotoSet(part.entries, Rows(rows, part.rows.labels))

    return PreparedPhotos(replaced(photos.train), replaced(photos.test), photos.skipped)


def one_row(photo: NDArray[np.float32], engine: Engine, extractors: Sequence[Tensors | None]) -> NDArray[np.float32]:
    """The row of one photo, float32 [1, len(extractors) * d], from its inputs [1, ...]; errors as in `side_by_side`."""
    nothing = np.zeros((1, _width(engine.bundle.manifest)), np.float32)
    return np.concatenate([nothing if one is None else engine.extract(one, photo) for one in extractors], axis=1)


def _outputs(
    inputs: Mapping[bytes, NDArray[np.float32]],
    engine: Engine,
    extractor: Extractor,
    cache: FeatureCache,
    check: Callable[[], None],
) -> dict[bytes, bytes]:
    """The extractor's outputs by photo digest, as little-endian float32."""
    space = features.extracted_space(engine.bundle.manifest, engine.program_format, extractor.sha256)
    outputs = cache.get(space, inputs)
    missing = sorted(inputs.keys() - outputs.keys())
    if not missing:
        return outputs
    tensors = extractor.read()
    batch = engine.bundle.manifest.batch
    batches = iter(_placed(missing, batch))
    while some := list(islice(batches, _BATCHES_AT_ONCE)):
        check()
        rows = np.zeros((len(some) * batch, *inputs[missing[0]].shape), np.float32)
        places = {digest: i * batch + place for i, one in enumerate(some) for place, digest in one.items()}
        for digest, place in places.items():
            rows[place] = inputs[digest]
        found = engine.extract(tensors, rows).astype("<f4", copy=False)
        fresh = {digest: found[place].tobytes() for digest, place in places.items()}
        cache.put(space, fresh)
        outputs.update(fresh)
    return outputs


def _placed(digests: Sequence[bytes], batch: int) -> list[dict[int, bytes]]:
    """The fewest batches that hold these photos, each at its own position."""
    batches: list[dict[int, bytes]] = []
    taken: dict[int, int] = defaultdict(int)
    for digest in digests:
        place = int.from_bytes(digest[:8], "big") % batch
        if taken[place] == len(batches):
            batches.append({})
        batches[taken[place]][place] = digest
        taken[place] += 1
    return batches


def _width(manifest: manifest_pb2.Manifest) -> int:
    outputs = manifests.program(manifest, "extract").outputs
    return next(slot.shape[1] for slot in outputs if slot.kind == manifest_pb2.SLOT_KIND_FEATURES)
