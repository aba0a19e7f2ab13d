"""Events from the computing thread, limited in rate so that they do not slow the event loop down."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fedlens_edge_client.client.events import Event, Trained

PROGRESS_EVERY_S = 0.1


@dataclass
class Progress:
    """Forwards the events of one round to the event loop; for use in the computing thread only.

    Attributes:
        check: Raises an error if the work must end.
        emit: Called in `loop` with each event.
        loop: The client's event loop.
    """

    check: Callable[[], None]
    emit: Callable[[Event], None]
    loop: asyncio.AbstractEventLoop
    _last: float = field(default=-PROGRESS_EVERY_S, init=False)
    _losses: float = field(default=0.0, init=False)

    def report(self, event: Event, *, is_last: bool) -> None:
        """Emit this event, unless another one was emitted a moment ago and more will follow."""
        self.check()
        now = time.monotonic()
        if is_last or now - self._last >= PROGRESS_EVERY_S:
            self._last = now
            self.loop.call_soon_threadsafe(self.emit, event)

    def trained(self, task: int, round_number: int, step: int, steps: int, loss: float) -> None:
        """Report a step; its number, from 1, counts all steps of the round."""
        self._losses += loss
        event = Trained(task, round_number, step, steps, loss, mean_loss=self._losses / step)
        self.report(event, is_last=step == steps)
