"""Results that another thread computes, brought to the event loop many at a time.

`asyncio.wrap_future` wakes the loop once for each result; the writing thread gives hundreds at once.
"""

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Outcomes:
    """Futures of other threads, awaited on one event loop."""

    def __init__(self) -> None:
        """For the event loop that is running when `of` is first called, and no other."""
        self._done: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._woken = False

    async def of(self, future: Future[T]) -> T:
        """The result of `future`, which goes on if this is cancelled."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()

        def done(ended: Future[T]) -> None:
            self._done.append((waiter, ended))
            if not self._woken:
                self._woken = True
                loop.call_soon_threadsafe(self._deliver)

        future.add_done_callback(done)
        return await waiter

    def _deliver(self) -> None:
        # First the flag, then the queue: what is appended from here on either is delivered below or wakes the loop.
        self._woken = False
        while self._done:
            waiter, ended = self._done.popleft()
            if waiter.done():
                continue
            error = ended.exception()
            if error is None:
                waiter.set_result(ended.result())
            else:
                waiter.set_exception(error)
