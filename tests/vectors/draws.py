"""Values that follow from hashes alone (ids, orders of photos, batches, random numbers), and evaluation sums."""

import base64
from hashlib import sha256
from typing import Any

import numpy as np

from fedlens_edge_client.engines import Rows
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.evaluation import evaluate
from fedlens_edge_client.training.photo_set import PhotoSet
from fedlens_proto import keyed_hash
from fedlens_proto.v1 import assignment_pb2, manifest_pb2
from tests.vectors.forms import Files, array, document, message

_SECRETS = (bytes(32), bytes(range(32)), b"\xff" * 32, sha256(b"a secret").digest())
_SEED = sha256(b"the seed of an assignment").digest()
_TASK_SEED = sha256(b"the seed of a task").digest()
_PHOTOS = tuple(sorted(sha256(f"photo {index}".encode()).digest() for index in range(10)))
# The same photo twice in an album: copies 0 and 1.
_ENTRIES = (*((photo, 0) for photo in _PHOTOS[:4]), (_PHOTOS[4], 0), (_PHOTOS[4], 1), (_PHOTOS[5], 0))


def files() -> Files:
    """`draws.json` and `evaluation.json`."""
    return {"draws.json": document(_draws()), "evaluation.json": document(_evaluation())}


def _draws() -> dict[str, Any]:
    return {
        "client_ids": [
            {
                "secret": secret.hex(),
                "id": keyed_hash.client_id(secret).hex(),
                "authorization": "Bearer " + base64.urlsafe_b64encode(secret).rstrip(b"=").decode(),
            }
            for secret in _SECRETS
        ],
        "assignment_seeds": [
            {
                "task_seed": _TASK_SEED.hex(),
                "round": number,
                "client": keyed_hash.client_id(_SECRETS[1]).hex(),
                "seed": keyed_hash.assignment_seed(_TASK_SEED, number, keyed_hash.client_id(_SECRETS[1])).hex(),
            }
            for number in (1, 2, 2**32 + 1)
        ],
        "orders": {
            "seed": _SEED.hex(),
            "entries": [{"photo": photo.hex(), "copy": copy} for photo, copy in _ENTRIES],
            "epochs": [_order(training, epoch) for training, epoch in ((0, 0), (0, 1), (1, 0), (300, 70_000))],
        },
        "batches": [
            _batches(count, batch, last, steps)
            for count, batch, steps in ((7, 3, 0), (2, 5, 0), (6, 3, 0), (7, 3, 4))
            for last in (manifest_pb2.LAST_BATCH_MASKED, manifest_pb2.LAST_BATCH_FILLED)
        ],
        "view_uniforms": [
            {
                "seed": _SEED.hex(),
                "photo": _PHOTOS[0].hex(),
                "view": view,
                "uniforms": array(keyed_hash.view_uniforms(_SEED, _PHOTOS[0], view, count)),
            }
            for view, count in ((0, 1), (0, 8), (0, 11), (1, 11), (7, 20))
        ],
        "view_choices": [
            {
                "seed": _SEED.hex(),
                "photo": photo.hex(),
                "stored": stored,
                "count": count,
                "chosen": keyed_hash.view_choice(_SEED, photo, stored, count),
            }
            for photo in _PHOTOS[:3]
            for stored, count in ((8, 2), (2, 2), (64, 16), (1, 1))
        ],
        "step_uniforms": [
            {
                "seed": _SEED.hex(),
                "training": training,
                "step": step,
                "slot": slot,
                "uniforms": array(keyed_hash.step_uniforms(_SEED, training, step, slot, count)),
            }
            for training, step, slot, count in ((0, 0, 0, 1), (0, 0, 0, 11), (0, 1, 0, 4), (1, 0, 2, 9))
        ],
        "validation_photos": [
            {"photo": photo.hex(), "percents": [p for p in range(1, 51) if keyed_hash.is_validation_photo(photo, p)]}
            for photo in (*_PHOTOS, bytes(32), b"\xff" * 32)
        ],
        "test_photos": [
            {"photo": photo.hex(), "is_test": keyed_hash.is_test_photo(photo)}
            for photo in (*_PHOTOS, bytes(32), b"\xff" * 32)
        ],
    }


def _order(training: int, epoch: int) -> dict[str, Any]:
    ranks = keyed_hash.photo_ranks(_SEED, training, epoch, _ENTRIES)
    return {
        "training": training,
        "epoch": epoch,
        "ranks": [rank.hex() for rank in ranks],
        "order": sorted(range(len(ranks)), key=ranks.__getitem__),
    }


def _batches(count: int, batch: int, last: manifest_pb2.LastBatch, steps: int) -> dict[str, Any]:
    """The rows of each step; with 0 steps, those of two epochs."""
    entries = tuple((photo, 0) for photo in _PHOTOS[:count])
    photos = PhotoSet(entries, Rows(np.zeros((count, 1), np.float32), np.zeros(count, np.int64)))
    train = assignment_pb2.Train(steps=steps) if steps else assignment_pb2.Train(epochs=2)
    return {
        "photos": [photo.hex() for photo, _ in entries],
        "batch": batch,
        "last_batch": manifest_pb2.LastBatch.Name(last),
        "training": 1,
        **message(train),
        "rows": [rows.tolist() for rows in local_training.batches(photos, _SEED, 1, train, batch, last)],
    }


def _evaluation() -> dict[str, Any]:
    # Ties: the first class counts. Large logits: the greatest is taken away before exp.
    logits = np.array(
        [[1, 2, 3], [0.5, 0.5, 0.5], [2, 2, 1], [1000, -1000, 0], [-1e-3, 1e-3, 0], [0, 80, -80], [0.1, 0.2, 0.3]],
        np.float32,
    )
    labels = np.array([2, 0, 1, 0, 1, 0, 2], np.int64)
    found = evaluate(lambda inputs: logits, Rows(logits, labels), 3, with_confusion=True)
    return {
        "logits": array(logits),
        "labels": array(labels),
        "count": found.count,
        "correct": found.correct,
        # The last digits of exp and log are the machine's.
        "loss": float(f"{found.loss:.12g}"),
        "confusion": list(found.confusion or ()),
    }
