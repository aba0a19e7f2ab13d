"""From an assignment to a result in the outbox: fetch what is missing, read the album, train, store."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedlens_edge_client.client.events import Downloaded, Embedded, Event, PhotosSkipped, RoundStarted
from fedlens_edge_client.client.policy import Policy
from fedlens_edge_client.client.progress import Progress
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.errors import NoKnownClass, PassFailed
from fedlens_edge_client.storage.album import Album, AlbumSnapshot, Photo
from fedlens_edge_client.storage.cache import Cache, Shortcut
from fedlens_edge_client.storage.client_state import KeptSets
from fedlens_edge_client.storage.disk import Worker
from fedlens_edge_client.storage.outbox import Outbox, Result
from fedlens_edge_client.storage.tensor_files import StoredBlob, TensorFiles
from fedlens_edge_client.training import extracted, header, local_training, photo_set, prediction, requirements, sources
from fedlens_edge_client.training.features import FeatureCache
from fedlens_edge_client.training.label_distribution import KeptAnswers
from fedlens_edge_client.training.restoring import restore
from fedlens_proto import manifest
from fedlens_proto.blob import FLOATS, Array, Blob
from fedlens_proto.difference import Differences
from fedlens_proto.errors import BlobError, ManifestError
from fedlens_proto.keyed_hash import DIGEST_BYTES
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, blob_pb2, check_in_pb2, manifest_pb2, update_pb2

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What carrying out an assignment needs.

    Attributes:
        transport: Where parts and blobs come from.
        cache: Where they are put.
        features: What was computed of photos before.
        files: Where large tensors are stored.
        kept: Sets of earlier rounds.
        outbox: Where results go.
        answers: Noisy answers that were given before.
        album: The photos.
        policy: What may be told.
        engine_factory: Makes an engine for a bundle.
        program_format: Which file of each program that engine runs.
        worker: Where photos are read and models trained.
        disk: Where results are stored, while another client's turn to train may have come.
        emit: Takes events.
    """

    transport: Transport
    cache: Cache
    features: FeatureCache
    files: TensorFiles
    kept: KeptSets
    outbox: Outbox
    answers: KeptAnswers
    album: Album
    policy: Policy
    engine_factory: Callable[[Bundle], Engine]
    program_format: manifest_pb2.ProgramFormat
    worker: Worker
    disk: Worker
    emit: Callable[[Event], None]


class Assignments:
    """Carries out the assignments of one client, one after the other."""

    def __init__(self, desk: Desk) -> None:
        """The engine of the last bundle is kept for the next assignment."""
        self._desk = desk
        self._bundle: Bundle | None = None
        self._engine: Engine | None = None
        self._parts = ExitStack()
        self._held: set[bytes] = set()  # digests of what `_parts` keeps in the cache
        self._turn = asyncio.Lock()

    async def carry_out(self, assignment: assignment_pb2.Assignment, *, only_test: bool) -> Result:
        """Compute the result of an assignment; it is in the outbox when this returns.

        Args:
            assignment: As the server sent it.
            only_test: All photos are test photos, as for an evaluator.

        Raises:
            PassFailed: It cannot be carried out.
            EngineError: A program could not be run, or gave a NaN.
            Refused: The server does not give something that the assignment needs.
        """
        requirements.check_policy(assignment, self._desk.policy)
        async with self._turn:
            bundle = await self._open(assignment.bundle)
            requirements.check(assignment, bundle.manifest)
            plan = assignment.local_plan
            requirements.check_earlier_answers(plan, bundle.manifest, self._desk.answers, self._desk.policy)
            stages = (*plan.stages, *plan.evaluation.fine_tuning)
            await self._obtain_programs(bundle, {stage.program for stage in stages})
            sets = self._needed(plan, assignment.task, assignment.sets, bundle)
            with ExitStack() as held:
                await self._hold_sets(sets.values(), held)
                result = await self._desk.worker.run(
                    self._compute, assignment, bundle, sets, only_test, asyncio.get_running_loop()
                )
                # The base of a difference is read once more, so what is held is let go of only then.
                return await self._desk.disk.run(self._store, assignment, bundle, sets, result)

    async def predict(self, model: check_in_pb2.CurrentModel, photo: Path) -> dict[str, float]:
        """The probability of each class, with what the client's next pass would start from; waits for one under way.

        Raises:
            PassFailed: The model cannot be put together from its sets.
            PhotoUnreadable: The photo cannot be decoded.
            EngineError: A program could not be run.
            Refused: The server does not give something that is needed.
        """
        return await self._use(model, lambda used: self._predict(used, photo))

    async def classify(self, model: check_in_pb2.CurrentModel, photos: Sequence[Photo]) -> dict[bytes, int]:
        """The most probable label index of each photo that can be read, by digest; otherwise as `predict`."""
        return await self._use(model, lambda used: self._classify(used, photos))

    async def _use(self, model: check_in_pb2.CurrentModel, compute: Callable[["_Model"], T]) -> T:
        """What `compute` gives, in the worker's thread, with the model put together from its sets and what is kept."""
        async with self._turn:
            bundle = await self._open(model.bundle)
            await self._obtain_programs(bundle, set())
            last = self._last_pass(model, bundle.manifest)
            if last is None:
                sets = {entry.name: entry for entry in model.sets}
            else:
                sets = self._needed(last, model.task, model.sets, bundle)
            with ExitStack() as held:
                await self._hold_sets(sets.values(), held)
                return await self._desk.worker.run(lambda: compute(self._put_together(model.task, last, bundle, sets)))

    async def _open(self, digest: bytes) -> Bundle:
        requirements.check_pinned(digest, self._desk.policy)
        if self._bundle is not None and self._bundle.id == digest:
            return self._bundle
        self.close()
        cache = self._desk.cache
        raw: bytes | None = None
        while raw is None:
            await cache.obtain(digest, manifest.MAX_MANIFEST_BYTES, self._desk.transport.fetch, exact=False)
            # Another process may evict it before it is read here.
            with suppress(FileNotFoundError):
                raw = cache.path(digest).read_bytes()
        try:
            self._bundle = Bundle(manifest.parse(raw), raw, cache.folder)
        except ManifestError as error:
            raise PassFailed(update_pb2.FAILURE_REASON_BUNDLE, str(error)) from error
        return self._bundle

    async def _obtain_programs(self, bundle: Bundle, stages: set[str]) -> None:
        """Have what these programs need, and what every pass needs, on this machine."""
        sizes = {part.sha256: part.size for part in bundle.manifest.parts}
        names = stages | {"embed", "extract", "predict", "view"}
        wanted = {
            file.sha256: sizes[file.sha256]
            for program in bundle.manifest.programs
            for file in program.files
            if program.name in names and file.format == self._desk.program_format
        }
        # Programs of the other formats have it inside.
        if bundle.manifest.frozen and self._desk.program_format == manifest_pb2.PROGRAM_FORMAT_PT2:
            wanted[bundle.manifest.frozen] = sizes[bundle.manifest.frozen]
        missing = {digest: size for digest, size in wanted.items() if digest not in self._held}
        await self._hold(missing, self._parts)
        self._held |= missing.keys()

    async def _hold_sets(self, entries: Iterable[assignment_pb2.BlobSet], stack: ExitStack) -> None:
        desk = self._desk

        def fetched(digest: bytes, size: int) -> None:
            desk.emit(Downloaded(digest, size))

        def shortcut(entry: assignment_pb2.BlobSet) -> Shortcut:
            return lambda file: restore(desk.cache, desk.transport.fetch, entry, file, fetched)

        entries = list(entries)
        shortcuts = {entry.sha256: shortcut(entry) for entry in entries if entry.HasField("difference")}
        await self._hold({entry.sha256: entry.size for entry in entries}, stack, shortcuts)

    async def _hold(
        self, wanted: Mapping[bytes, int], stack: ExitStack, shortcuts: Mapping[bytes, Shortcut] | None = None
    ) -> None:
        cache = self._desk.cache
        for digest, size in wanted.items():
            if len(digest) != DIGEST_BYTES or size == 0 or sum(wanted.values()) > cache.max_bytes:
                raise PassFailed(
                    update_pb2.FAILURE_REASON_UNSUPPORTED,
                    f"blob {digest.hex()} of {size} bytes, {sum(wanted.values())} in all; the cache of this client "
                    f"takes up to {cache.max_bytes}",
                )
        fetched = await cache.hold(wanted, self._desk.transport.fetch, stack, shortcuts or {})
        for digest in fetched:
            self._desk.emit(Downloaded(digest, wanted[digest]))
        if fetched or shortcuts:
            cache.trim()

    def _compute(
        self,
        assignment: assignment_pb2.Assignment,
        bundle: Bundle,
        sets: Mapping[str, assignment_pb2.BlobSet],
        only_test: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> local_training.PassResult:
        """What the photos are needed for; runs in the worker's thread."""
        desk = self._desk
        progress = Progress(desk.worker.check, desk.emit, loop)
        task, round_number = assignment.task, assignment.round
        engine = self._load(bundle)
        snapshot = desk.album.photos(round_number)
        photos = photo_set.prepare(
            snapshot,
            engine,
            desk.features,
            only_test=only_test,
            on_photo=lambda done, total: progress.tell(Embedded(done, total), is_last=done == total),
        )
        plan = assignment.local_plan
        photos = self._rows_for(photos, engine, [sets.get(name) for name in plan.extractors])
        if photos.skipped:
            progress.tell(PhotosSkipped(photos.skipped), is_last=True)
        progress.tell(RoundStarted(task, round_number, len(photos.train), len(photos.test)), is_last=True)
        try:
            return local_training.execute(
                assignment,
                engine,
                photos,
                self._downloads(plan, sets),
                lambda name: desk.kept.current(task, name),
                lambda step, steps, loss: progress.trained(task, round_number, step, steps, loss),
            )
        except PassFailed as failure:
            found, known = {photo.label for photo in snapshot.photos}, bundle.manifest.class_names
            if failure.reason == update_pb2.FAILURE_REASON_NO_PHOTOS and found and found.isdisjoint(known):
                raise NoKnownClass(found, known) from failure
            raise

    def _last_pass(
        self, model: check_in_pb2.CurrentModel, bundle: manifest_pb2.Manifest
    ) -> assignment_pb2.LocalPlan | None:
        """How the last pass started, if the next one will start so: the downloads are not of another phase."""
        stored = self._desk.kept.start_rules(model.task)
        if stored is None:
            return None
        last = assignment_pb2.LocalPlan.FromString(stored)
        wanted = sources.needed(last, bundle, lambda name: self._desk.kept.current(model.task, name))
        names = {entry.name for entry in model.sets}
        return last if wanted - set(last.extractors) <= names | {manifest.INITIAL} else None

    def _put_together(
        self,
        task: int,
        last: assignment_pb2.LocalPlan | None,
        bundle: Bundle,
        sets: Mapping[str, assignment_pb2.BlobSet],
    ) -> "_Model":
        engine = self._load(bundle)
        downloads = self._downloads(assignment_pb2.LocalPlan() if last is None else last, sets)
        plan = sources.starting_from(downloads, bundle.manifest) if last is None else last
        found = sources.Sources(bundle.manifest, downloads, lambda name: self._desk.kept.current(task, name))
        return _Model(engine, found.start(plan.start), [sets.get(name) for name in plan.extractors])

    def _predict(self, model: "_Model", photo: Path) -> dict[str, float]:
        extractors = [None if entry is None else self._read(entry) for entry in model.extractors]
        return prediction.predict(model.engine, model.weights, photo, extractors)

    def _classify(self, model: "_Model", photos: Sequence[Photo]) -> dict[bytes, int]:
        desk, engine = self._desk, model.engine
        # The label plays no part, but a photo whose label the bundle does not know would be left out.
        name = engine.bundle.manifest.class_names[0]
        snapshot = AlbumSnapshot(tuple(replace(photo, label=name) for photo in photos))
        rows = photo_set.prepare(
            snapshot, engine, desk.features, only_test=True, on_photo=lambda *_: desk.worker.check()
        )
        return prediction.classify(engine, model.weights, self._rows_for(rows, engine, model.extractors).test)

    def _needed(
        self,
        plan: assignment_pb2.LocalPlan,
        task: int,
        given: Iterable[assignment_pb2.BlobSet],
        bundle: Bundle,
    ) -> dict[str, assignment_pb2.BlobSet]:
        """The sets to fetch, by name; of `given` and the initial weights those that are read."""
        names = sources.needed(plan, bundle.manifest, lambda name: self._desk.kept.current(task, name))
        return {name: entry for name, entry in sources.available(given, bundle.manifest).items() if name in names}

    def _downloads(self, plan: assignment_pb2.LocalPlan, sets: Mapping[str, assignment_pb2.BlobSet]) -> dict[str, Blob]:
        """The tensors of these sets by name; not those of extractors, which are read when they are run."""
        return {name: self._read(entry) for name, entry in sets.items() if name not in plan.extractors}

    def _load(self, bundle: Bundle) -> Engine:
        if self._engine is None:
            self._engine = self._desk.engine_factory(bundle)
        return self._engine

    def _rows_for(
        self, photos: photo_set.PassPhotos, engine: Engine, entries: Sequence[assignment_pb2.BlobSet | None]
    ) -> photo_set.PassPhotos:
        """The photos with the rows that a model on these extractors takes; None: one that is absent."""
        if not entries:
            return photos
        extractors = [None if e is None else extracted.Extractor(e.sha256, partial(self._read, e)) for e in entries]
        return extracted.side_by_side(photos, engine, extractors, self._desk.features, self._desk.worker.check)

    def _read(self, entry: assignment_pb2.BlobSet) -> Blob:
        try:
            found = Blob.open(self._desk.cache.path(entry.sha256), entry.sha256)
        except BlobError as error:
            raise PassFailed(update_pb2.FAILURE_REASON_INTERNAL, f"set {entry.name!r}: {error}") from error
        if (base := found.layout.base) is not None:
            raise PassFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED,
                f"set {entry.name!r} holds the difference to blob {base.hex()}; a set must hold whole weights",
            )
        return found

    def _store(
        self,
        assignment: assignment_pb2.Assignment,
        bundle: Bundle,
        sets: Mapping[str, assignment_pb2.BlobSet],
        result: local_training.PassResult,
    ) -> Result:
        """Tensors first, then the row that names them."""
        files = self._desk.files
        plan = assignment.local_plan
        upload: StoredBlob | None = None
        try:
            if result.upload is not None:
                tensors, base = self._to_send(plan.upload, sets, result.upload)
                upload = files.store(tensors, FLOATS[plan.upload.codec], base)
            keep = {name: files.store(tensors, blob_pb2.DTYPE_FLOAT32) for name, tensors in result.keep.items()}
        except BlobError as error:
            raise PassFailed(update_pb2.FAILURE_REASON_NON_FINITE, str(error)) from error
        composed = header.compose(assignment, bundle.manifest, result, upload, self._desk.answers)
        return self._desk.outbox.put(assignment, composed, upload, keep)

    def _to_send(
        self,
        upload: assignment_pb2.Upload,
        sets: Mapping[str, assignment_pb2.BlobSet],
        trained: Mapping[str, Array],
    ) -> tuple[Mapping[str, Array], bytes | None]:
        """What is uploaded of the trained tensors, and the digest of the base where that is the difference to one."""
        name = upload.base_set
        if not name:
            return trained, None
        entry = sets[name]
        base = self._read(entry)
        shapes = {spec.name: spec.shape for spec in base.layout.specs}
        if unfit := [each for each, value in trained.items() if shapes.get(each) != value.shape]:
            raise PassFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED, f"set {name!r}, the base of the upload, lacks {unfit[0]!r}"
            )
        return Differences(trained, base), entry.sha256

    def close(self) -> None:
        """Let go of the bundle."""
        self._parts.close()
        self._held.clear()
        self._engine = None
        self._bundle = None


@dataclass(frozen=True)
class _Model:
    """What a client would use now; `extractors` are the sets of those side by side, None for an absent one."""

    engine: Engine
    weights: Mapping[str, Array]
    extractors: Sequence[assignment_pb2.BlobSet | None]
