"""The driver of rounds: closes and aggregates each when it is due, woken by changes and deadlines, never by polling.

It also deletes receipts when their time is over, what is stored of deleted tasks, and objects that nothing names, and
tells which statements end.
"""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor

from fedlens_server.clock import DAY_S
from fedlens_server.engine import aggregation, garbage
from fedlens_server.engine.arrivals.places import Places
from fedlens_server.engine.cohorts.members import RoundKey
from fedlens_server.engine.operators import backups, deletion, statements
from fedlens_server.engine.view import Federation
from fedlens_server.errors import Unavailable

FAILURE_PAUSE_S = 5.0
TIDY_EVERY_S = 600.0
_log = logging.getLogger(__name__)


class Driver:
    """Calls of `aggregation.advance` in threads, one a round at a time, and of `garbage.delete_receipts`."""

    def __init__(self, federation: Federation, places: Places, retention_s: float) -> None:
        """It runs on the running event loop from now on until `stop`; receipts are kept for `retention_s`."""
        self._federation = federation
        self._places = places
        self._clock = federation.clock
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._deleted = asyncio.Event()
        self._deleted.set()  # a stop of the server may have cut a deletion short
        # Threads of their own: rounds of large models must not keep requests from theirs.
        self._pool = ThreadPoolExecutor(max(2, os.cpu_count() or 1), thread_name_prefix="fedlens-aggregation")
        self._advancing: dict[RoundKey, asyncio.Task[None]] = {}
        self._not_before: dict[RoundKey, float] = {}
        self._running = asyncio.create_task(self._run())
        self._retention_s = retention_s
        beside = (self._delete_receipts(), self._delete_tasks(), self._tell_ends(), self._tidy())
        self._beside = [asyncio.create_task(each) for each in beside]

    def wake(self) -> None:
        """Look again at what is due."""
        self._changed.set()
        if self._federation.deleting:
            self._deleted.set()

    async def stop(self) -> None:
        """Return when nothing is being advanced any more."""
        self._stopping.set()
        self._changed.set()
        for each in self._beside:
            each.cancel()
        await self._running
        if self._advancing:
            await asyncio.wait(self._advancing.values())
        self._pool.shutdown()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self._changed.clear()
            try:
                again_at = self._advance_due()
            except Exception:  # without this loop no round of any task would go on
                _log.exception("rounds could not be looked at; next try in %g s", FAILURE_PAUSE_S)
                await self._pause()
                continue
            alarm = asyncio.create_task(self._wake_at(again_at))
            await self._changed.wait()
            alarm.cancel()

    def _advance_due(self) -> float:
        """Begin to advance the rounds that are due; returns when to look again, by `Clock.elapsed`."""
        now = self._clock.elapsed()
        self._not_before = {key: when for key, when in self._not_before.items() if when > now}
        for key in aggregation.due(self._federation):
            if key not in self._advancing and key not in self._not_before:
                self._advancing[key] = asyncio.create_task(self._advance(key))
        waits = [*self._not_before.values(), self._places.next_look()]
        deadline = aggregation.next_deadline(self._federation)
        if deadline is not None and deadline > now:
            waits.append(deadline)
        return min(waits)

    async def _wake_at(self, when: float) -> None:
        await self._clock.sleep_until(when)
        self._places.look()
        self.wake()

    async def _pause(self) -> None:
        """Return after `FAILURE_PAUSE_S`, or when the driver is to stop."""
        pause = self._clock.sleep_until(self._clock.elapsed() + FAILURE_PAUSE_S)
        either = [asyncio.create_task(pause), asyncio.create_task(self._stopping.wait())]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        for each in either:
            each.cancel()

    async def _delete_receipts(self) -> None:
        """Delete receipts that are too old, then sleep until others are; no round that ends meanwhile comes first."""
        while True:
            before = self._clock.now() - self._retention_s
            try:
                oldest = await asyncio.wrap_future(garbage.delete_receipts(self._federation, before))
                pause_s = min(oldest - before, self._retention_s)
            except Exception:
                _log.exception("old receipts could not be deleted; next try in %g s", FAILURE_PAUSE_S)
                pause_s = FAILURE_PAUSE_S
            await self._clock.sleep_until(self._clock.elapsed() + pause_s)

    async def _tell_ends(self) -> None:
        """Tell operators once a day which statements of publishers end soon."""
        while True:
            try:
                statements.note_ends(self._federation)
            except Exception:
                _log.exception("operators could not be told which statements end soon; next try in %g s", DAY_S)
            await self._clock.sleep_until(self._clock.elapsed() + DAY_S)

    async def _tidy(self) -> None:
        """Have the store delete what nothing names, now and then."""
        while True:
            try:
                await asyncio.to_thread(backups.tidy, self._federation)
                await asyncio.to_thread(self._federation.store.tidy, self._clock.now())
            except Unavailable as error:
                _log.warning("blobs that nothing names could not be deleted: %s", error)
            except Exception:
                _log.exception("blobs that nothing names could not be deleted; next try in %g s", TIDY_EVERY_S)
            await self._clock.sleep_until(self._clock.elapsed() + TIDY_EVERY_S)

    async def _delete_tasks(self) -> None:
        """Delete what is stored of deleted tasks, piece by piece."""
        while True:
            await self._deleted.wait()
            self._deleted.clear()
            try:
                while self._federation.deleting:
                    await asyncio.wrap_future(deletion.go_on(self._federation))
            except Exception:
                _log.exception("a task could not be deleted; next try in %g s", FAILURE_PAUSE_S)
                await self._clock.sleep_until(self._clock.elapsed() + FAILURE_PAUSE_S)
                self._deleted.set()

    async def _advance(self, key: RoundKey) -> None:
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._pool, aggregation.advance, self._federation, key)
        except Exception:
            _log.exception(
                "round %d of task %d could not be advanced; next try in %g s", key.round, key.task, FAILURE_PAUSE_S
            )
            self._not_before[key] = self._clock.elapsed() + FAILURE_PAUSE_S
        finally:
            del self._advancing[key]
            self._changed.set()
