"""One thread that all clients of a worker share for computing."""

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ClientExecutor(Executor):
    """A client's access to the shared thread.

    A client's step lies between two calls to the server and may submit several functions. After `stop_starting` no
    new step begins; a step that has begun may submit further functions.

    Attributes:
        has_begun: A step has begun since the last call to the server; set by the transport.
        on_refused: Called for each step that may not begin.
    """

    def __init__(self, thread: Executor) -> None:
        """`thread` has one thread; the worker shuts it down."""
        self._thread = thread
        self.has_begun = False
        self._stopped = False
        # A step begins in the shared thread and is stopped in the event loop's.
        self._lock = threading.Lock()
        self.on_refused: Callable[[], None] = lambda: None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call of `fn` in the shared thread."""
        if self._stopped and not self.has_begun:
            self.on_refused()
            return Future()

        def call() -> T:
            with self._lock:
                if self._stopped and not self.has_begun:
                    raise CancelledError  # the client is cancelled, too
                self.has_begun = True
            return fn(*args, **kwargs)

        return self._thread.submit(call)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Do nothing: the thread belongs to the worker."""

    def stop_starting(self) -> None:
        """Let no new step begin; `on_refused` is called for each one that tries."""
        with self._lock:
            self._stopped = True
