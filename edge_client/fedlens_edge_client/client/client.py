"""The client that an app embeds: all steps from a check-in to a receipt.

    check in -> fetch what is missing -> embed new photos -> run the local plan -> outbox -> upload -> clean up

The process may end at any arrow; the next process continues there.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from fedlens_edge_client.background import CancellableExecutor
from fedlens_edge_client.client.assignments import Assignments
from fedlens_edge_client.client.clock import Clock, SystemClock
from fedlens_edge_client.client.current_models import CurrentModels
from fedlens_edge_client.client.delivery import Delivery, Failure
from fedlens_edge_client.client.events import (
    Enrolled,
    Event,
    Retrying,
    RoundFailed,
    RoundRefused,
    RoundReported,
    TasksFinished,
)
from fedlens_edge_client.client.fetching import Fetcher
from fedlens_edge_client.client.http_transport import HttpTransport
from fedlens_edge_client.client.pacing import Pauses
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.engines import Engine, EngineError
from fedlens_edge_client.engines.choice import ABILITIES, TRIED, EngineName, make_children, make_engine
from fedlens_edge_client.errors import AssignmentFailed, BadResponse, Refused, StateError
from fedlens_edge_client.policy import Policy
from fedlens_edge_client.storage.album import Album, Photo
from fedlens_edge_client.storage.cache import Cache, Downloads
from fedlens_edge_client.storage.client_state import ClientState
from fedlens_edge_client.storage.crashes import Crashes
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.storage.floors import FLOORS_FILE
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_edge_client.storage.outbox import Outbox, Result
from fedlens_edge_client.storage.state_folder import StateFolder
from fedlens_edge_client.storage.tensor_files import TensorFiles
from fedlens_edge_client.training import local_training, requirements
from fedlens_edge_client.training.label_distribution import NoisyAnswers, PrivateGenerator
from fedlens_edge_client.trust import TrustServer, trust_in
from fedlens_proto import wire
from fedlens_proto.errors import ProtoError
from fedlens_proto.manifest import Bundle
from fedlens_proto.programs.statements import Publisher
from fedlens_proto.v1 import assignment_pb2, check_in_pb2, enrolment_pb2

DEFAULT_CACHE_BYTES = 2 << 30
DEFAULT_HOLD_MS = 25_000
# A server that repeats an assignment that has ended must not make a client spin.
_REPEATED_ASSIGNMENT_PAUSE_S = 5.0
_ROLES = {enrolment_pb2.CLIENT_ROLE_TRAINER: "trainer", enrolment_pb2.CLIENT_ROLE_EVALUATOR: "evaluator"}

Outcome = RoundReported | RoundFailed | RoundRefused | TasksFinished


class EdgeClient:
    """One member of a federation; use it in `async with`.

    It may be cancelled at any `await`, and the process may be killed: finished results are in the state folder and
    reach the server later, once.
    """

    def __init__(
        self,
        server: str,
        state: Path,
        album: Album,
        *,
        publishers: Sequence[Publisher] | TrustServer,
        audience: Iterable[str] = (),
        floors: Path | None = None,
        enrolment_token: str | None = None,
        ca: Path | None = None,
        task: int | None = None,
        models: Iterable[str] = (),
        client_version: int = 0,
        policy: Policy | None = None,
        on_event: Callable[[Event], None] | None = None,
        secret: bytes | None = None,
        private_generator: PrivateGenerator | None = None,
        transport: Transport | None = None,
        engine: EngineName = EngineName.TORCH,
        engine_factory: Callable[[Bundle], Engine] | None = None,
        in_process: bool = False,
        cache: Path | Downloads | None = None,
        features: Path | FeatureCache | None = None,
        max_cache_bytes: int = DEFAULT_CACHE_BYTES,
        executor: Executor | None = None,
        disk: Executor | None = None,
        execute: local_training.Execute = local_training.execute,
        hold_ms: int = DEFAULT_HOLD_MS,
        durable: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """Remember the settings; `async with` opens everything.

        Args:
            server: Such as `https://fl.example.org:8443`.
            state: Folder for data that must survive the process; bound to this server, used by one process at a time.
            album: The source of photos.
            publishers: Keys of those whose bundles may run here, read before each use; or `TRUST_SERVER`, for any.
            audience: Ids of the app, and names of federations, for which bundles may be meant.
            floors: File of what publishers withdrew, which all clients of an app share; by default one in `state`.
            enrolment_token: Required until the server knows this client.
            ca: Certificates (PEM) to trust instead of the system's.
            task: Take work of this task only.
            models: Names of the models, as in a bundle, that this client trains; none: any model.
            client_version: Of the app, as its makers count it, 0 to 2^32 - 1; a task may require a least one.
            policy: Limits what the server may learn.
            on_event: Called with every event.
            secret: 32 bytes that identify this client, instead of those in the state folder.
            private_generator: Source of the noise of noisy answers, instead of the operating system: maps the digest
                of the class names to a new generator. The server must not be able to know it.
            transport: Replaces HTTP to `server`; it must use the same `secret`. Closed with the client.
            engine: Runs the programs of bundles; the server assigns only work that it can run.
            engine_factory: Makes the engine for a bundle, instead of `make_engine`.
            in_process: Run programs in this process, with all that it may do; by default in one that may do nothing.
            cache: Downloads, or a folder for data that can be fetched or computed again, which clients may share.
            features: Values computed from photos, or their folder if it is not `cache`.
            max_cache_bytes: Bound for the blobs in these folders, and for the features; the least recently used go.
            executor: Reads photos and trains models; by default a thread of this client.
            disk: Reads and writes the state folder, one call at a time; by default a thread of this client.
            execute: Executes local plans, in a thread of `executor`.
            hold_ms: Longest time that the server may hold a check-in until there is work.
            durable: Stored data survives a power failure; otherwise, for emulated clients, only the end of the process.
            clock: Of pauses, instead of the machine's.

        Raises:
            ValueError: `client_version` is out of range.
        """
        if not 0 <= client_version < 1 << 32:
            raise ValueError(f"client_version: found {client_version}, must be 0 to {(1 << 32) - 1}")
        self._server = server.rstrip("/")
        self._folder, self._album = state, album
        self._token, self._ca, self._task, self._version = enrolment_token, ca, task, client_version
        self._capabilities = requirements.capabilities(engine, models, policy)
        self._abilities = " ".join((engine, *self._capabilities.models, *self._capabilities.tables))
        self._policy = policy or Policy()
        self._publishers, self._audience, self._floors = publishers, frozenset(audience), floors or state / FLOORS_FILE
        self._emit: Callable[[Event], None] = on_event or (lambda event: None)
        self._secret, self._given_transport, self._private_generator = secret, transport, private_generator
        self._cache_folder = cache if isinstance(cache, Path) else state / "cache"
        self._cache, self._features = cache or self._cache_folder, features or self._cache_folder
        self._max_cache_bytes, self._engine_factory, self._in_process = max_cache_bytes, engine_factory, in_process
        self._engine, self._executor, self._disk_executor, self._execute = engine, executor, disk, execute
        self._hold_ms, self._durable, self._clock = hold_ms, durable, clock or SystemClock()
        self._open = AsyncExitStack()
        self._role: str | None = None
        self._models = CurrentModels()
        self._may_have_result, self._enrolled_again = True, False
        self._ended = self._not_provided = (0, 0)  # no task and round have these numbers

    async def __aenter__(self) -> Self:
        """Open the state folder.

        Raises:
            StateError: It cannot be used.
            Untrusted: The server's address cannot be trusted with the secret.
        """
        async with AsyncExitStack() as stack:
            self._compute = CancellableExecutor(self._executor)
            self._disk = CancellableExecutor(self._disk_executor)
            stack.callback(self._disk.close)
            if self._given_transport is not None:
                stack.push_async_callback(self._given_transport.close)
            await self._disk.run(self._open_all, stack)
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close everything; finished results stay in the outbox."""
        await self._open.aclose()

    @property
    def client_id(self) -> bytes:
        """The public id, 32 bytes, by which operators know this client."""
        return self._state.client_id

    async def run(self) -> None:
        """Take part in round after round until every task has ended.

        Raises:
            Refused: The server rejects this client: wrong token, revoked.
            EdgeClientError: Another error that waiting does not cure.
        """
        while not isinstance(await self.run_once(), TasksFinished):
            pass

    async def run_once(self) -> Outcome:
        """Deliver the result in the outbox; if there is none, take part in one round.

        Raises:
            As `run`.
        """
        try:
            return await self._next_outcome()
        except Refused as refusal:
            is_unknown = refusal.code == "unauthorised" and self._role is not None
            if not is_unknown or self._token is None or self._enrolled_again:
                raise
        # The server has lost its record of this client, so earlier task and round numbers are invalid.
        self._enrolled_again = True
        self._role, self._models = None, CurrentModels()
        await self._disk.run(self._state.reset)
        return await self._next_outcome()

    async def predict(self, photo: Path, *, task: int | None = None) -> dict[str, float]:
        """The probability of each class, in label order, by the client's current model.

        The last check-in in this `async with` named the model's downloads; the client state completes it. A training
        under way is waited for.

        Args:
            photo: A file.
            task: Selects the model; None takes the first.

        Raises:
            ModelError: No check-in has named a model yet.
            PhotoUnreadable: The photo cannot be decoded.
            EdgeClientError: The model cannot be fetched, assembled or run.
        """
        return await self._assignments.predict(self._models.of(task), photo)

    async def classify(self, photos: Sequence[Photo], *, task: int | None = None) -> dict[bytes, int]:
        """The most probable class of each photo by the model of `predict`; features are cached, as in a round.

        Args:
            photos: Entries of an album; their labels, and whether they are test photos, are ignored.
            task: Selects the model; None takes the first.

        Returns:
            Index of the class in label order, by photo digest; unreadable photos are left out.

        Raises:
            ModelError: No check-in has named a model yet.
            EdgeClientError: The model cannot be fetched, assembled or run.
        """
        return await self._assignments.classify(self._models.of(task), photos)

    async def forget(self) -> bool:
        """Make the server delete everything about this client, then delete the identity here.

        Data aggregated into a model stays in it. The identity can never enrol again.

        Returns:
            Whether an update is part of a running aggregation and cannot be withdrawn; False if the client is unknown.
        """
        try:
            response = await self._transport.forget()
        except Refused as refusal:
            if refusal.code != "unauthorised":  # which it says also after a deletion whose answer was lost
                raise
            response = enrolment_pb2.ForgetResponse()
        await self._disk.run(self._state.erase)
        self._role, self._models = None, CurrentModels()
        return response.aggregating

    def _open_all(self, stack: AsyncExitStack) -> None:
        """Open files and folders; `stack` closes them even if the caller is cancelled meanwhile."""
        self._state = StateFolder.open(self._folder, self._server, self._secret, self._durable)
        stack.callback(self._state.close)
        self._pauses = Pauses(self._state, self._disk, self._emit, self._clock)
        self._transport = self._given_transport or self._http_transport(stack)
        files = TensorFiles(self._folder / "tensors", self._durable)
        client_state = ClientState(self._state, files)
        outbox = Outbox(self._state, files, client_state)
        self._delivery = Delivery(self._transport, outbox, self._disk, self._emit)
        cache = Cache(self._cache, self._max_cache_bytes) if isinstance(self._cache, Path) else self._cache
        if isinstance(features := self._features, Path):
            features = FeatureCache.in_folder(features, self._max_cache_bytes)
            stack.callback(features.close)
        stack.callback(self._compute.close)  # before the features, which its thread may be using
        if isinstance(self._album, FolderAlbum):
            self._album.remember_in(self._state)
        self._assignments = Assignments(
            fetcher=Fetcher(self._transport, cache, self._policy, ABILITIES[self._engine].program_format, self._emit),
            features=features,
            files=files,
            client_state=client_state,
            outbox=outbox,
            noisy_answers=NoisyAnswers(self._state, self._private_generator),
            album=self._album,
            policy=self._policy,
            trust=trust_in(self._publishers, self._audience, self._floors, self._clock),
            engine_factory=self._engine_factory or self._made_engine_factory(stack),
            compute=self._compute,
            disk=self._disk,
            emit=self._emit,
            execute=self._execute,
        )
        stack.callback(self._assignments.close)
        role, _, abilities = (self._state.get("enrolment") or b"").decode().partition(" ")
        self._role = role if abilities == self._abilities else None

    def _made_engine_factory(self, stack: AsyncExitStack) -> Callable[[Bundle], Engine]:
        if self._in_process:
            return lambda bundle: make_engine(self._engine, bundle, self._cache_folder / TRIED)
        children = make_children(self._engine, Crashes(self._state, self._clock.now), self._compute.check)
        stack.callback(children.close)
        return children.engine

    def _http_transport(self, stack: AsyncExitStack) -> HttpTransport:
        transport = HttpTransport(
            self._server, self._state.secret, ca=self._ca, on_retry=lambda *retry: self._emit(Retrying(*retry))
        )
        stack.push_async_callback(transport.close)
        return transport

    async def _next_outcome(self) -> Outcome:
        await self._enrol()
        if self._may_have_result:
            if (waiting := await self._delivery.waiting()) is not None:
                return await self._deliver(waiting)
            self._may_have_result = False
        await self._pauses.go_on()
        while True:
            started = time.monotonic()
            response = await self._check_in()
            self._enrolled_again = False
            if (kind := response.WhichOneof("result")) == "assignment":
                self._models.take(response.assignment)
                if (outcome := await self._take_part(response.assignment)) is not None:
                    return outcome
            elif kind == "wait":
                self._models = CurrentModels(response.wait.models)
                await self._pauses.take(response.wait, time.monotonic() - started)
            elif kind == "finished":
                self._models = CurrentModels(response.finished.models)
                self._emit(TasksFinished())
                return TasksFinished()
            else:
                raise BadResponse("the response to a check-in says nothing that this version knows")

    async def _enrol(self) -> None:
        if self._role is not None:
            return
        if self._token is None:
            found = f"is not enrolled with {self._server} yet; give an enrolment token"
            if await self._disk.run(self._state.get, "enrolment"):
                found = "is enrolled for other models, tables or another engine; give the enrolment token once more"
            raise StateError(f"{self._folder} {found} (--token-file FILE)")
        response = await self._transport.enrol(self._token, self._capabilities)
        if response.role not in _ROLES:
            raise BadResponse(f"the server enrols this client with the unknown role {response.role}")
        self._role = _ROLES[response.role]
        await self._disk.run(self._state.set, "enrolment", f"{self._role} {self._abilities}".encode())
        self._emit(Enrolled(self.client_id, self._role))

    async def _check_in(self) -> check_in_pb2.CheckInResponse:
        request = check_in_pb2.CheckInRequest(
            protocol=wire.PROTOCOL,
            task=self._task or 0,
            num_examples=await self._disk.run(self._count_photos),
            hold_ms=self._hold_ms,
            client_version=self._version,
        )
        return await self._transport.check_in(request)

    def _count_photos(self) -> int:
        if self._role == "evaluator":
            return 0
        count = sum(not photo.is_test for photo in self._album.photos(0).photos)
        return count if count >= self._policy.least_train_photos else 0

    async def _take_part(self, assignment: assignment_pb2.Assignment) -> Outcome | None:
        key = (assignment.task, assignment.round)
        if key == self._ended:
            await self._clock.sleep(_REPEATED_ASSIGNMENT_PAUSE_S)
        self._may_have_result = True
        failure: Failure
        try:
            result = await self._assignments.carry_out(assignment, only_test=self._role == "evaluator")
        except Refused as refusal:
            # The round has probably closed meanwhile and its blobs are gone; check in once more.
            if self._not_provided != key:
                self._not_provided = key
                return None
            failure = refusal
        except (AssignmentFailed, EngineError, ProtoError) as error:
            failure = error
        else:
            return await self._deliver(result)
        self._ended = key
        return await self._delivery.give_up(assignment, failure)

    async def _deliver(self, result: Result) -> RoundReported | RoundRefused:
        outcome = await self._delivery.deliver(result)
        if isinstance(outcome, RoundRefused):
            self._ended = (result.task, result.round_number)
        self._may_have_result = False
        return outcome
