"""Features of all photos before the first round: computed on all cores, kept by photo, with a bar meanwhile."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedlens.jobs import Ended, Told, run_jobs
from fedlens_edge_client.client.client import DEFAULT_CACHE_BYTES
from fedlens_edge_client.engines.choice import ABILITIES, EngineName
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo
from fedlens_edge_client.training.features import FeatureCache, space
from fedlens_proto.manifest import Bundle

TELL_EVERY_S = 0.1


class EmbeddingFailed(Exception):
    """Features could not be computed; the text says why."""


@dataclass(frozen=True)
class Embedding:
    """Embed some photos.

    Attributes:
        number: Of the job.
        features: Folder of the cache.
    """

    number: int
    bundle: Path
    engine: EngineName
    photos: tuple[Photo, ...]
    features: Path

    @property
    def name(self) -> str:
        """For people."""
        return f"embedding {self.number}"

    def work(self, tell: Callable[[Any], None]) -> None:
        """Have the features in the cache; tells how many photos are done, from time to time."""
        from fedlens_edge_client.engines.choice import make_engine
        from fedlens_edge_client.training import photo_set

        last = 0.0

        def count(done: int, total: int) -> None:
            nonlocal last
            if done == total or time.monotonic() - last >= TELL_EVERY_S:
                last = time.monotonic()
                tell(done)

        cache = FeatureCache.in_folder(self.features, DEFAULT_CACHE_BYTES)
        try:
            engine = make_engine(self.engine, Bundle.open(self.bundle))
            photo_set.prepare(AlbumSnapshot(self.photos), engine, cache, only_test=True, on_photo=count)
        finally:
            cache.close()

    def known_errors(self) -> tuple[type[Exception], ...]:
        """Of the engine and the cache."""
        return (EdgeClientError,)


def embed(
    bundle: Bundle, engine: EngineName, photos: Sequence[Photo], features: Path, workers: int, console: Console
) -> tuple[set[bytes], int]:
    """Have the features of these photos in a folder, whichever are not there yet.

    Returns:
        The digests of those that can be read, and how many of them were there before.

    Raises:
        EmbeddingFailed: A process died, or the backbone cannot be run.
    """
    wanted = {photo.digest: photo for photo in photos}
    name = space(bundle.manifest, ABILITIES[engine].program_format)
    cache = FeatureCache.in_folder(features, DEFAULT_CACHE_BYTES)
    try:
        before = cache.get(name, wanted).keys()
        missing = [wanted[digest] for digest in wanted.keys() - before]
        if missing:
            missing.sort(key=lambda photo: photo.digest)
            parts = [tuple(missing[i::workers]) for i in range(min(workers, len(missing)))]
            _run([Embedding(i, bundle.folder, engine, part, features) for i, part in enumerate(parts)], console)
        return set(cache.get(name, wanted)), len(before)
    finally:
        cache.close()


def _run(jobs: Sequence[Embedding], console: Console) -> None:
    total = sum(len(job.photos) for job in jobs)
    done: dict[str, int] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("reading photos", total=total)
        for message in run_jobs(jobs, len(jobs)):
            if isinstance(message, Told):
                done[message.job] = message.what
                progress.update(bar, completed=sum(done.values()))
            elif isinstance(message, Ended) and message.failure is not None:
                raise EmbeddingFailed(f"photos cannot be embedded: {message.failure}")
