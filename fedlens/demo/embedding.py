"""Compute the features of all photos on all cores before the first round, with a progress bar."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedlens.errors import FedlensError
from fedlens.jobs import Job, JobProgress, Report, run_jobs, throttled
from fedlens_edge_client.client.client import DEFAULT_CACHE_BYTES
from fedlens_edge_client.engines.choice import ABILITIES, EngineName
from fedlens_edge_client.storage.album import AlbumSnapshot, Photo
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training.features import space
from fedlens_proto.manifest import Bundle


class EmbeddingFailed(FedlensError):
    """Features could not be computed; the text has the reason."""


def embed(
    bundle: Bundle, engine: EngineName, photos: Sequence[Photo], features: Path, workers: int, console: Console
) -> tuple[set[bytes], int]:
    """Compute the features of photos that are not in the folder `features` yet.

    Returns:
        The digests of all readable photos, and the number of features that were there before.

    Raises:
        EmbeddingFailed: A process died, or the backbone cannot run.
    """
    wanted = {photo.digest: photo for photo in photos}
    name = space(bundle.manifest, ABILITIES[engine].program_format)
    with closing(FeatureCache.in_folder(features, DEFAULT_CACHE_BYTES)) as cache:
        before = cache.get(name, wanted).keys()
        missing = [wanted[digest] for digest in wanted.keys() - before]
        if missing:
            missing.sort(key=lambda photo: photo.digest)
            parts = [tuple(missing[i::workers]) for i in range(min(workers, len(missing)))]
            work = (partial(_embed_part, bundle.folder, engine, part, features) for part in parts)
            _run([Job(f"embedding {i}", each) for i, each in enumerate(work)], len(missing), console)
        return set(cache.get(name, wanted)), len(before)


def _run(jobs: Sequence[Job], total: int, console: Console) -> None:
    done: dict[str, int] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("reading photos", total=total)
        for message in run_jobs(jobs, len(jobs)):
            if isinstance(message, JobProgress):
                done[message.job] = message.value
                progress.update(bar, completed=sum(done.values()))
            elif message.failure is not None:
                raise EmbeddingFailed(f"photos cannot be embedded: {message.failure}")


def _embed_part(
    bundle: Path, engine_name: EngineName, photos: tuple[Photo, ...], features: Path, report: Report
) -> None:
    """Fill the feature cache, and report the number of finished photos from time to time."""
    from fedlens_edge_client.engines.choice import make_engine
    from fedlens_edge_client.training import photo_set

    count = throttled(report)
    with closing(FeatureCache.in_folder(features, DEFAULT_CACHE_BYTES)) as cache:
        engine = make_engine(engine_name, Bundle.open(bundle))
        photo_set.prepare(
            AlbumSnapshot(photos),
            engine,
            cache,
            only_test=True,
            on_photo=lambda done, total: count(done, done == total),
        )
