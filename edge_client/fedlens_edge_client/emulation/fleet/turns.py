"""One thread for all clients of a worker: they compute in turn, and each turn is known to have begun or not."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Turns(Executor):
    """One client's access to the thread that it shares; not to be shut down by the client.

    Between two calls to the server a client may take several turns. After `hold`, work of which nothing has begun
    never begins; what has begun gets its further turns.
    """

    def __init__(self, thread: Executor) -> None:
        """`thread` has one thread and is shut down by the worker."""
        self._thread = thread
        self._begun = False
        self._held = False
        # Between two threads: a turn begins, or is held.
        self._deciding = threading.Lock()
        self.on_refused: Callable[[], None] = lambda: None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `fn` called when it is this client's turn; on the event loop's thread."""
        if self._held and not self._begun:
            self.on_refused()
            return Future()

        def turn() -> T:
            with self._deciding:
                if self._held and not self._begun:
                    raise CancelledError  # it was still queued; the client is cancelled, too
                self._begun = True
            return fn(*args, **kwargs)

        return self._thread.submit(turn)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing: the thread belongs to the worker."""

    def start_afresh(self) -> None:
        """The client calls the server: what it has computed so far is on its disk, or of no importance."""
        self._begun = False

    def carry_on(self) -> None:
        """The client has an answer with which it must do something before anything else."""
        self._begun = True

    def hold(self) -> None:
        """Let nothing begin any more; what is refused from now on is told by `on_refused`."""
        with self._deciding:
            self._held = True

    @property
    def has_begun(self) -> bool:
        """Whether something was computed since the last call to the server, or is being computed."""
        return self._begun
