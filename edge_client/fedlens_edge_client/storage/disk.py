"""Work that would hold up the event loop, in a thread, and ended properly when its caller is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Interrupted(Exception):
    """Raised inside the work so that it ends; never reaches the caller, who sees his cancellation."""


class Worker:
    """Runs one function at a time for one client."""

    def __init__(self, executor: Executor | None) -> None:
        """Use this executor, which somebody else shuts down, or a thread of its own."""
        self._own = ThreadPoolExecutor(1, "fedlens-client") if executor is None else None
        self._executor: Executor = executor or self._own  # type: ignore[assignment]  # one of them is there
        self._interrupted = threading.Event()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns; on cancellation it is interrupted and waited for, so that it holds nothing after."""
        self._interrupted.clear()
        job = self._executor.submit(function, *args, **kwargs)
        future = asyncio.wrap_future(job)
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            self._interrupted.set()
            if not job.cancel():
                await _until_done(future)
            raise
        return future.result()

    def check(self) -> None:
        """Called by the work between two steps.

        Raises:
            Interrupted: Its caller has been cancelled.
        """
        if self._interrupted.is_set():
            raise Interrupted

    def close(self) -> None:
        """End the thread, if it is its own."""
        if self._own is not None:
            self._own.shutdown()


async def _until_done(future: asyncio.Future[T]) -> None:
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()
