"""Local computation with the server's bundles and sets: results of assignments, and predictions by current models."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from fedlens_edge_client.background import CancellableExecutor
from fedlens_edge_client.client.events import Embedded, Event, PhotosSkipped, RoundStarted
from fedlens_edge_client.client.fetching import Fetcher
from fedlens_edge_client.client.progress import Progress
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.errors import AssignmentFailed, NoKnownClass
from fedlens_edge_client.policy import Policy
from fedlens_edge_client.storage.album import Album, AlbumSnapshot, Photo
from fedlens_edge_client.storage.client_state import ClientState
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.storage.outbox import Outbox, Result
from fedlens_edge_client.storage.tensor_files import EncodedTensors, TensorFiles
from fedlens_edge_client.training import extracted, header, local_training, photo_set, prediction, requirements, sources
from fedlens_edge_client.training.label_distribution import NoisyAnswers
from fedlens_edge_client.trust import Trust
from fedlens_proto import manifest
from fedlens_proto.blob import FLOATS, Array, Blob
from fedlens_proto.difference import Differences
from fedlens_proto.errors import BlobError
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import assignment_pb2, blob_pb2, check_in_pb2, update_pb2

T = TypeVar("T")


@dataclass(frozen=True)
class _Model:
    """A client's current model; `extractors` are the sets side by side, None for an absent one."""

    engine: Engine
    weights: Mapping[str, Array]
    extractors: Sequence[assignment_pb2.BlobSet | None]


@dataclass(kw_only=True)
class Assignments:
    """Carries out the assignments of one client, one after the other; the engine of the last bundle is kept.

    Attributes:
        fetcher: Provides bundles and downloads.
        features: Values computed from photos before.
        files: Stores large tensors.
        client_state: Tensors of earlier rounds.
        outbox: Takes results.
        noisy_answers: Noisy label distributions sent before.
        album: The photos.
        policy: Limits what the server may learn.
        trust: In publishers of bundles; None: the server is trusted.
        engine_factory: Makes an engine for a bundle.
        compute: Reads photos and trains models.
        disk: Stores results; a separate thread, so that another client can train meanwhile.
        emit: Takes events.
        execute: Executes local plans, in a thread of `compute`.
    """

    fetcher: Fetcher
    features: FeatureCache
    files: TensorFiles
    client_state: ClientState
    outbox: Outbox
    noisy_answers: NoisyAnswers
    album: Album
    policy: Policy
    trust: Trust | None
    engine_factory: Callable[[Bundle], Engine]
    compute: CancellableExecutor
    disk: CancellableExecutor
    emit: Callable[[Event], None]
    execute: local_training.Execute = local_training.execute
    _engine: Engine | None = field(default=None, init=False)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _checked: tuple[object, ...] | None = field(default=None, init=False)  # what `requirements.check` accepted last

    async def carry_out(self, assignment: assignment_pb2.Assignment, *, only_test: bool) -> Result:
        """Compute the result of an assignment; it is in the outbox when this returns.

        Args:
            assignment: As the server sent it.
            only_test: Treat all photos as test photos, as an evaluator does.

        Raises:
            AssignmentFailed: It cannot be carried out.
            EngineError: A program failed, or gave a NaN.
            Refused: The server does not provide a blob that the assignment needs.
        """
        requirements.check_policy(assignment, self.policy)
        async with self._turn:
            bundle = await self._open(assignment, trains=True)
            plan = assignment.local_plan
            names = frozenset(entry.name for entry in assignment.sets)
            request = (bundle.id, assignment.answer, names, len(assignment.seed), plan.SerializeToString())
            # Most rounds ask for the same again.
            if request != self._checked:
                requirements.check(assignment, bundle.manifest, self.policy)
                self._checked = request
            requirements.check_earlier_answers(plan, bundle.manifest, self.noisy_answers, self.policy)
            await self.fetcher.obtain_programs(bundle, plan)
            sets = self._needed(plan, assignment.task, assignment.sets, bundle)
            with ExitStack() as held:
                await self.fetcher.hold_sets(sets.values(), held)
                result = await self.compute.run(
                    self._compute, assignment, bundle, sets, only_test, asyncio.get_running_loop()
                )
                # Storing a delta reads its base once more, so the sets stay protected until then.
                return await self.disk.run(self._store, assignment, bundle, sets, result)

    async def predict(self, model: check_in_pb2.CurrentModel, photo: Path) -> dict[str, float]:
        """The probability of each class by the client's current model; waits for a training under way.

        Raises:
            AssignmentFailed: The model cannot be assembled from its sets.
            PhotoUnreadable: The photo cannot be decoded.
            EngineError: A program failed.
            Refused: The server does not provide a blob that the model needs.
        """

        def compute(used: _Model) -> dict[str, float]:
            extractors = [None if entry is None else self.fetcher.read(entry) for entry in used.extractors]
            return prediction.predict(used.engine, used.weights, photo, extractors)

        return await self._use(model, compute)

    async def classify(self, model: check_in_pb2.CurrentModel, photos: Sequence[Photo]) -> dict[bytes, int]:
        """The most probable label index of each readable photo, by digest; errors as in `predict`."""

        def compute(used: _Model) -> dict[bytes, int]:
            engine = used.engine
            # Labels are ignored, but a photo whose label the bundle does not know would be skipped.
            name = engine.bundle.manifest.class_names[0]
            snapshot = AlbumSnapshot(tuple(replace(photo, label=name) for photo in photos))
            rows = photo_set.prepare(
                snapshot, engine, self.features, only_test=True, on_photo=lambda *_: self.compute.check()
            )
            return prediction.classify(engine, used.weights, self._rows_for(rows, engine, used.extractors).test)

        return await self._use(model, compute)

    def close(self) -> None:
        """Close the bundle."""
        self.fetcher.close()
        self._engine = None

    async def _use(self, model: check_in_pb2.CurrentModel, compute: Callable[[_Model], T]) -> T:
        """Assemble a current model from its sets and client state, and run `compute` on it in the thread."""
        async with self._turn:
            bundle = await self._open(model, trains=False)
            plan = requirements.assembling(model, bundle.manifest)
            await self.fetcher.obtain_programs(bundle, plan)
            sets = self._needed(plan, model.task, model.sets, bundle)
            with ExitStack() as held:
                await self.fetcher.hold_sets(sets.values(), held)
                return await self.compute.run(lambda: compute(self._assemble(model.task, plan, bundle, sets)))

    async def _open(self, given: assignment_pb2.Assignment | check_in_pb2.CurrentModel, *, trains: bool) -> Bundle:
        """The bundle of an assignment or a model, if it may be used so."""
        if self.trust is not None:
            await self.disk.run(partial(self.trust.check, given.bundle, given.statement, trains=trains))
        return await self.fetcher.open(given.bundle)

    def _assemble(
        self,
        task: int,
        plan: assignment_pb2.LocalPlan,
        bundle: Bundle,
        sets: Mapping[str, assignment_pb2.BlobSet],
    ) -> _Model:
        found = sources.Sources(self._downloads(plan, sets), partial(self.client_state.current, task))
        weights = local_training.assemble(plan.instructions[0], bundle.manifest, found)
        return _Model(self._load(bundle), weights, [sets.get(name) for name in plan.extractors])

    def _compute(
        self,
        assignment: assignment_pb2.Assignment,
        bundle: Bundle,
        sets: Mapping[str, assignment_pb2.BlobSet],
        only_test: bool,
        loop: asyncio.AbstractEventLoop,
    ) -> local_training.TrainingResult:
        """Read the album and execute the local plan; runs in the thread of `compute`."""
        progress = Progress(self.compute.check, self.emit, loop)
        task, round_number, plan = assignment.task, assignment.round, assignment.local_plan
        engine = self._load(bundle)
        snapshot = self.album.photos(round_number)
        photos = photo_set.prepare(
            snapshot,
            engine,
            self.features,
            only_test=only_test,
            on_photo=lambda done, total: progress.report(Embedded(done, total), is_last=done == total),
        )
        photos = self._rows_for(photos, engine, [sets.get(name) for name in plan.extractors])
        if photos.skipped:
            progress.report(PhotosSkipped(photos.skipped), is_last=True)
        progress.report(RoundStarted(task, round_number, len(photos.train), len(photos.test)), is_last=True)
        try:
            return self.execute(
                assignment,
                engine,
                photos,
                self._downloads(plan, sets),
                partial(self.client_state.current, task),
                partial(progress.trained, task, round_number),
                partial(requirements.check_amounts, plan, bundle.manifest, policy=self.policy),
            )
        except AssignmentFailed as failure:
            found, known = {photo.label for photo in snapshot.photos}, bundle.manifest.class_names
            if failure.reason == update_pb2.FAILURE_REASON_NO_PHOTOS and found and found.isdisjoint(known):
                raise NoKnownClass(found, known) from failure
            raise

    def _needed(
        self,
        plan: assignment_pb2.LocalPlan,
        task: int,
        given: Iterable[assignment_pb2.BlobSet],
        bundle: Bundle,
    ) -> dict[str, assignment_pb2.BlobSet]:
        """The sets that a plan reads, by name, out of `given` and the initial weights."""
        names = sources.needed(plan, bundle.manifest, partial(self.client_state.current, task))
        entries = (manifest.initial_set(bundle.manifest), *given)
        return {entry.name: entry for entry in entries if entry.name in names}

    def _downloads(self, plan: assignment_pb2.LocalPlan, sets: Mapping[str, assignment_pb2.BlobSet]) -> dict[str, Blob]:
        """The tensors of the sets by name, without extractors: these are read when they run."""
        return {name: self.fetcher.read(entry) for name, entry in sets.items() if name not in plan.extractors}

    def _load(self, bundle: Bundle) -> Engine:
        if self._engine is None or self._engine.bundle.id != bundle.id:
            self._engine = self.engine_factory(bundle)
        return self._engine

    def _rows_for(
        self, photos: photo_set.PreparedPhotos, engine: Engine, entries: Sequence[assignment_pb2.BlobSet | None]
    ) -> photo_set.PreparedPhotos:
        """The photos with rows for a model on these extractors, None for an absent one."""
        if not entries:
            return photos
        read = self.fetcher.read
        extractors = [None if e is None else extracted.Extractor(e.sha256, partial(read, e)) for e in entries]
        return extracted.side_by_side(photos, engine, extractors, self.features, self.compute.check)

    def _store(
        self,
        assignment: assignment_pb2.Assignment,
        bundle: Bundle,
        sets: Mapping[str, assignment_pb2.BlobSet],
        result: local_training.TrainingResult,
    ) -> Result:
        """Store tensors first, then the rows that name them."""
        plan = assignment.local_plan
        uploads: dict[str, EncodedTensors] = {}
        try:
            for upload in plan.uploads:
                tensors, base = self._to_send(upload, sets, result.uploads[upload.name])
                uploads[upload.name] = self.files.store(tensors, FLOATS[upload.codec], base)
            keeps = {name: self.files.store(tensors, blob_pb2.DTYPE_FLOAT32) for name, tensors in result.keeps.items()}
        except BlobError as error:
            raise AssignmentFailed(update_pb2.FAILURE_REASON_NON_FINITE, str(error)) from error
        composed = header.compose(assignment, bundle.manifest, result, uploads, self.noisy_answers)
        return self.outbox.put(assignment, composed, tuple(uploads.values()), keeps)

    def _to_send(
        self,
        upload: assignment_pb2.Upload,
        sets: Mapping[str, assignment_pb2.BlobSet],
        trained: Mapping[str, Array],
    ) -> tuple[Mapping[str, Array], bytes | None]:
        """The tensors to upload; for a delta, with the digest of its base."""
        name = upload.base
        if not name:
            return trained, None
        base = self.fetcher.read(sets[name])
        shapes = {spec.name: spec.shape for spec in base.layout.specs}
        if unfit := [each for each, value in trained.items() if shapes.get(each) != value.shape]:
            raise AssignmentFailed(
                update_pb2.FAILURE_REASON_UNSUPPORTED, f"set {name!r}, the base of the upload, lacks {unfit[0]!r}"
            )
        return Differences(trained, base), sets[name].sha256
