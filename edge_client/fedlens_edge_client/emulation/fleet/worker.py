"""A worker process: an event loop with some of a fleet's clients, which share one thread for computing."""

import asyncio
import os
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fedlens_edge_client.client.client import DEFAULT_CACHE_BYTES, DEFAULT_HOLD_MS, EdgeClient
from fedlens_edge_client.client.clock import Clock
from fedlens_edge_client.client.events import Embedded, Event, Retrying, Trained
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.client.retrying import Backoff
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.client.unattended import take_part
from fedlens_edge_client.emulation.emulated_time import FastClock, come_and_go
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from fedlens_edge_client.emulation.fleet import parent_signals
from fedlens_edge_client.emulation.fleet.client_executor import ClientExecutor
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR, ClientEnded, Happened, Message, WorkerEnded
from fedlens_edge_client.emulation.fleet.stopping import StoppableTransport
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.engines.choice import TRIED, EngineName, make_engine
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.policy import EMULATED
from fedlens_edge_client.storage.feature_cache import FeatureCache
from fedlens_edge_client.training.label_distribution import private_generator
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_proto.manifest import Bundle

STOP = b"stop"
EXIT_ABANDONED = 70  # the process that started the fleet is gone
# A fleet and its server are near each other, and a person waits for them.
BACKOFF = Backoff(first_s=0.1, most_s=2.0)
PROGRESS_EVERY_S = 0.25


def main(connection: Connection, config: FleetConfig, worker: int) -> None:
    """Run a worker's clients until all have ended or the fleet stops; the main function of a process."""
    parent_signals.ignore()  # this process ends with its parent
    from fedlens_edge_client.engines.memory import keep_freed_memory

    keep_freed_memory()
    asyncio.run(_run(connection, config, worker))


async def _run(connection: Connection, config: FleetConfig, worker: int) -> None:
    loop = asyncio.get_running_loop()
    # A future for each client: at the end of every call, a shared one would search through the callbacks of all.
    stopping: dict[int, asyncio.Future[None]] = {
        index: loop.create_future() for index in config.clients_of_worker(worker)
    }

    def stop() -> None:
        for each in stopping.values():
            each.set_result(None)

    sending = threading.Lock()

    def send(message: Message) -> None:
        with sending:
            connection.send(message)

    def follow_parent() -> None:
        try:
            while connection.recv_bytes() != STOP:
                pass
            loop.call_soon_threadsafe(stop)
            connection.recv_bytes()
        except (EOFError, OSError):
            # The parent has ended. All that matters is on the disk, as after any kill.
            os._exit(EXIT_ABANDONED)

    threading.Thread(target=follow_parent, name="fleet-commands", daemon=True).start()
    context = trust(config.ca) if config.server.startswith("https:") else None
    with (
        ThreadPoolExecutor(1, "fleet-disk") as disk,
        _ComputeThread(config.features) as trainers,
        _ComputeThread(config.features) as evaluators,
    ):
        clients = [
            _FleetClient(
                config, worker, index, context, evaluators if index == EVALUATOR else trainers, disk, stopped, send
            ).start()
            for index, stopped in stopping.items()
        ]
        await asyncio.gather(*clients)
    send(WorkerEnded(worker))


class _ComputeThread(ThreadPoolExecutor):
    """A thread that clients share, with one engine of each kind for each bundle, and one file of photos' features.

    An engine reads programs from the folder of the first client that uses it, so all its clients must fetch the same
    programs. The evaluator, which fetches no `step`, has a thread of its own; waiting for all trainers, it would miss
    models.
    """

    def __init__(self, features: Path) -> None:
        super().__init__(1, "fleet-compute")
        self._engines: dict[tuple[EngineName, bytes], Engine] = {}
        # Thousands of clients would else open it thousands of times.
        self.features = FeatureCache.in_folder(features, DEFAULT_CACHE_BYTES)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.features.close()

    def engine_of(self, name: EngineName, tried: Path, bundle: Bundle) -> Engine:
        """The engine of a bundle; for calls in the thread. `tried` as in `make_engine`."""
        key = name, bundle.id
        if key not in self._engines:
            # Importing torch takes seconds; in this thread it runs beside enrolment and downloads.
            self._engines[key] = make_engine(name, bundle, tried)
        return self._engines[key]


@dataclass
class _FleetClient:
    """One client of a fleet."""

    config: FleetConfig
    worker: int
    index: int
    context: ssl.SSLContext | None
    computing: _ComputeThread
    disk: Executor
    stopping: asyncio.Future[None]
    send: Callable[[Message], None]
    last_embedded: float = 0.0
    stoppable: StoppableTransport | None = None  # while the client is there

    async def start(self) -> None:
        """Take part until all tasks have ended or the fleet stops; reports a failure instead of raising it."""
        presence, clock = self.config.presence, FastClock(self.config.hour_lasts_s)
        if presence is None or self.index == EVALUATOR:
            taking_part = self._take_part(clock, DEFAULT_HOLD_MS)
        else:
            # An operating system ends a background job that holds a connection for nothing.
            taking_part = come_and_go(presence, self.index, clock, partial(self._take_part, hold_ms=0))
        running = asyncio.create_task(taking_part)
        await asyncio.wait([running, self.stopping], return_when=asyncio.FIRST_COMPLETED)
        if not running.done() and self.stoppable is not None:
            await self.stoppable.settle(running)
        elif not running.done():
            running.cancel()
            await asyncio.wait([running])
        self.send(ClientEnded(self.worker, self.index, _failure(running)))

    async def _take_part(self, clock: Clock, hold_ms: int) -> None:
        config, index = self.config, self.index
        secret, engine, executor = config.secret(index), config.engine_of(index), ClientExecutor(self.computing)
        transport: Transport = HttpTransport(
            config.server,
            secret,
            ssl_context=self.context,
            backoff=BACKOFF,
            on_retry=lambda *retry: self._happened(Retrying(*retry)),
        )
        if index != EVALUATOR:
            transport = FaultyTransport(transport, config.plan, index, clock.sleep)
        self.stoppable = StoppableTransport(transport, executor, self.stopping)
        client = EdgeClient(
            config.server,
            config.folder(index),
            config.album(index),
            publishers=TRUST_SERVER,
            enrolment_token=config.evaluator_token if index == EVALUATOR else config.token,
            task=config.task,
            models=config.models_of(index),
            policy=EMULATED,
            on_event=self._happened,
            secret=secret,
            private_generator=partial(private_generator, secret),
            transport=self.stoppable,
            engine=engine,
            engine_factory=partial(self.computing.engine_of, engine, config.shared / TRIED),
            cache=config.cache(index),
            features=self.computing.features,
            executor=executor,
            disk=self.disk,
            hold_ms=hold_ms,
            durable=False,
            clock=clock,
        )
        try:
            async with client:
                await take_part(client)
        finally:
            self.stoppable = None

    def _happened(self, event: Event) -> None:
        """Send an event to the parent, unless it is one of hundreds."""
        if isinstance(event, Trained) and event.step < event.steps:
            return
        if isinstance(event, Embedded) and event.done < event.total:
            now = time.monotonic()
            if now - self.last_embedded < PROGRESS_EVERY_S:
                return
            self.last_embedded = now
        self.send(Happened(self.worker, self.index, event))


def _failure(client: asyncio.Task[None]) -> str | None:
    error = None if client.cancelled() else client.exception()
    if error is not None and not isinstance(error, EdgeClientError):
        raise error
    return None if error is None else str(error)
