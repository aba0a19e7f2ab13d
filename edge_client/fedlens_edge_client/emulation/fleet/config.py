"""A fleet's configuration: clients, photos and server."""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR, client_name
from fedlens_edge_client.emulation.partitions import Partition, PhotoPool
from fedlens_edge_client.emulation.presence import HOUR_S, PresencePlan
from fedlens_edge_client.engines.choice import EngineName
from fedlens_edge_client.errors import StateError
from fedlens_edge_client.storage.album import Album
from fedlens_proto import keyed_hash

KEY_FILE = "fleet.key"
KEY_BYTES = 32
MADE_PHOTOS = "made-photos"
# The evaluator's index in the fleet's secrets, beyond every trainer's.
EVALUATOR_SECRET_INDEX = 1 << 63


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """A fleet; pickled to every worker.

    Attributes:
        server: Address of the server.
        clients: Number of trainers here.
        first: Index of the first of them; a fleet may be spread over machines.
        key: Fleet key, 32 bytes; key, the partition's seed and an index give a client's secret.
        state: Folder with a sub-folder for each client and, if shared, the cache.
        token: Enrolment token of the trainers; None if all have enrolled before.
        evaluator_token: Enrolment token of the evaluator, which has all test photos; None: no evaluator.
        ca: Certificates (PEM) to trust instead of the system's.
        task: The only task to take part in; None: all.
        workers: Number of processes, at least 1.
        models: Names of models, as in a bundle; client i names the i-th, cyclically. The evaluator, and every client if
            this is empty, takes any model.
        engines: Engines; trainer i has the i-th, cyclically, the evaluator the first.
        shares_downloads: Whether clients share a cache of downloads; otherwise each downloads everything, as phones do.
            Features of photos are shared in any case.
        made_photos: Folder for photos that the partition makes, which fleets may share; None: one in `state`.
        photo_features: Folder for photos' features, which may outlive the fleet; None: one in `state`.
        presence: The hours in which trainers are there; None: always.
        hour_lasts_s: Seconds for which an hour lasts, for pauses, delays and `presence`.
    """

    server: str
    clients: int
    pool: PhotoPool
    partition: Partition
    plan: FaultPlan
    key: bytes
    state: Path
    workers: int
    first: int = 0
    token: str | None = None
    evaluator_token: str | None = None
    ca: Path | None = None
    task: int | None = None
    models: tuple[str, ...] = ()
    engines: tuple[EngineName, ...] = (EngineName.TORCH,)
    shares_downloads: bool = True
    made_photos: Path | None = None
    photo_features: Path | None = None
    presence: PresencePlan | None = None
    hour_lasts_s: float = HOUR_S

    @property
    def indices(self) -> list[int]:
        """All clients, the evaluator last."""
        trainers = range(self.first, self.first + self.clients)
        return [*trainers, *([EVALUATOR] if self.evaluator_token is not None else [])]

    def clients_of_worker(self, worker: int) -> list[int]:
        """A worker's clients."""
        return self.indices[worker :: self.workers]

    def secret(self, index: int) -> bytes:
        """A client's secret, 32 bytes."""
        place = EVALUATOR_SECRET_INDEX if index == EVALUATOR else index
        return keyed_hash.fleet_secret(self.key, self.partition.seed, place)

    def client_id(self, index: int) -> bytes:
        """A client's public id, 32 bytes."""
        return keyed_hash.client_id(self.secret(index))

    def album(self, index: int) -> Album:
        """A client's photos.

        Raises:
            EdgeClientError: The pool cannot serve the partition.
        """
        if index == EVALUATOR:
            return self.partition.evaluator_album(self.pool)
        return self.partition.album(self.pool, index, self.made_photos or self.state / MADE_PHOTOS)

    def name(self, index: int) -> str:
        """A client's name for people: its index and its owner, if it has just one."""
        owners = () if index == EVALUATOR else self.partition.owners_of(self.pool, index)
        return client_name(index) + (f" ({owners[0]})" if len(owners) == 1 else "")

    def models_of(self, index: int) -> tuple[str, ...]:
        """The models that a client names when it enrols; empty for any."""
        if index == EVALUATOR or not self.models:
            return ()
        return (self.models[index % len(self.models)],)

    def engine_of(self, index: int) -> EngineName:
        """A client's engine."""
        return self.engines[0 if index == EVALUATOR else index % len(self.engines)]

    def folder(self, index: int) -> Path:
        """A client's state folder; another seed makes other clients."""
        name = "evaluator" if index == EVALUATOR else f"client-{index:05}"
        return self.state / f"seed-{self.partition.seed}" / name

    def cache(self, index: int) -> Path:
        """A client's cache of parts and blobs."""
        return self.shared if self.shares_downloads else self.folder(index) / "cache"

    @property
    def shared(self) -> Path:
        """The folder that all clients of this fleet share."""
        return self.state / "cache"

    @property
    def features(self) -> Path:
        """The folder of photos' features, which all clients share."""
        return self.photo_features or self.shared


def default_workers(clients: int) -> int:
    """One process for each core that this process may use, at most `clients`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, clients))


def fleet_key(state: Path, *, makes: bool = True) -> bytes:
    """The key in the state folder; creates one, readable by its owner alone, if there is none and `makes` is true.

    Raises:
        StateError: The file is missing, holds something else, or cannot be created.
    """
    if not makes and not (state / KEY_FILE).exists():
        raise StateError(
            f"{state / KEY_FILE} is missing; copy that of the part with --first 0, because all parts of a fleet have "
            "one key"
        )
    try:
        text = _read_or_make_key(state)
    except OSError as error:
        raise StateError(f"{state} cannot hold a fleet's state: {error}; use another --state") from error
    if not re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text):
        raise StateError(
            f"{state / KEY_FILE} must hold {2 * KEY_BYTES} hexadecimal digits; restore the fleet's key, "
            "or use another --state"
        )
    return bytes.fromhex(text)


def _read_or_make_key(state: Path) -> str:
    state.mkdir(parents=True, exist_ok=True)
    path = state / KEY_FILE
    if not path.exists():
        unfinished = state / f".{KEY_FILE}.{secrets.token_hex(4)}"
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    return path.read_text(encoding="ascii", errors="replace").strip()
