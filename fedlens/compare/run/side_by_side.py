"""A round's clients trained side by side, by helpers elsewhere, for a run that has more than one core.

A client's local plan is a pure function, so it does not matter where it is executed. All else that clients do in
threads stays in this process, and goes on one at a time: what they share is not made for more. `InPlace` is for a run
that trains one client after the other.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import ParamSpec, TypeVar

from fedlens_edge_client.engines import Engine
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.training import local_training
from fedlens_edge_client.training.local_training import OnStep, TrainingResult
from fedlens_edge_client.training.photo_set import PreparedPhotos
from fedlens_edge_client.training.sources import ClientStateOf, Tensors
from fedlens_proto import plans
from fedlens_proto.blob import Blob
from fedlens_proto.v1 import assignment_pb2

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class ClientWork:
    """The arguments of `local_training.execute`, for another process.

    Attributes:
        assignment: Of one client.
        bundle: The id of the bundle.
        photos: Rows for programs.
        downloads: Encoded blobs, by name of set; what is no blob as it stands.
        client_state: What the plan may read of it, by name; None: there is none yet.
        check_amounts: As in `execute`.
    """

    assignment: assignment_pb2.Assignment
    bundle: bytes
    photos: PreparedPhotos
    downloads: Mapping[str, bytes | Tensors]
    client_state: Mapping[str, Tensors | None]
    check_amounts: Callable[[int, int], None]

    def carry_out(self, engine: Engine) -> TrainingResult | EdgeClientError:
        """The result, or the error that the client is to see."""
        downloads = {
            name: Blob.from_bytes(found) if isinstance(found, bytes) else found
            for name, found in self.downloads.items()
        }
        try:
            return local_training.execute(
                self.assignment,
                engine,
                self.photos,
                downloads,
                self.client_state.__getitem__,
                check_amounts=self.check_amounts,
            )
        except EdgeClientError as error:
            return error


@dataclass(frozen=True)
class Helpers:
    """Others that carry out the work of clients.

    Attributes:
        count: How many can at a time.
        carry_out: Waits for a result or an error; threads may call it side by side.
    """

    count: int
    carry_out: Callable[[ClientWork], TrainingResult | EdgeClientError]


class InPlace(Executor):
    """Calls each function at once: a change of threads takes longer than most of what a client does."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn`."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class SideBySide(Executor):
    """Calls functions of clients in threads, one at a time but for the local plans among them."""

    def __init__(self, helpers: Helpers) -> None:
        """Start a thread for each helper, and one for an evaluator, when there is something to do."""
        self._helpers = helpers
        self._threads = ThreadPoolExecutor(helpers.count + 1, "client")
        self._turn = Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` in its turn."""

        def call() -> T:
            with self._turn:
                return fn(*args, **kwargs)

        return self._threads.submit(call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def execute(
        self,
        assignment: assignment_pb2.Assignment,
        engine: Engine,
        photos: PreparedPhotos,
        downloads: Mapping[str, Tensors],
        client_state: ClientStateOf,
        on_step: OnStep,
        check_amounts: Callable[[int, int], None],
    ) -> TrainingResult:
        """As `local_training.execute`, but without calls of `on_step`, and in the turn of nobody."""
        plan = assignment.local_plan
        names = {use.source.state for use in plans.uses(plan, engine.bundle.manifest)} - {""}
        state = {name: client_state(name) for name in names}
        trains = any(each.WhichOneof("kind") != "assemble" for each in plan.instructions)
        encoded = {name: bytes(found.raw) if isinstance(found, Blob) else found for name, found in downloads.items()}
        work = ClientWork(assignment, engine.bundle.id, photos, encoded, state, check_amounts)
        self._turn.release()
        try:
            # An evaluator's photos take longer to send than to evaluate.
            found = self._helpers.carry_out(work) if trains else work.carry_out(engine)
        finally:
            self._turn.acquire()
        if isinstance(found, EdgeClientError):
            raise found
        return found
