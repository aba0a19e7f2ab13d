"""Blocking work in a thread, so that the event loop stays free; cancelling the caller interrupts the work."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Interrupted(Exception):
    """Raised inside the work to end it; the caller sees its own cancellation instead."""


class CancellableExecutor:
    """Runs one function at a time for one client."""

    def __init__(self, executor: Executor | None) -> None:
        """Use an executor that its owner shuts down, or else a new thread."""
        self._own = ThreadPoolExecutor(1, "fedlens-client") if executor is None else None
        self._executor: Executor = executor or self._own  # type: ignore[assignment]  # one of them is there
        self._interrupted = threading.Event()

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the function's result; on cancellation, interrupt the function and wait until it has ended."""
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
        """Let a long function end early; it calls this between two steps.

        Raises:
            Interrupted: The caller has been cancelled.
        """
        if self._interrupted.is_set():
            raise Interrupted

    def close(self) -> None:
        """End the thread, if it is this object's own."""
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
