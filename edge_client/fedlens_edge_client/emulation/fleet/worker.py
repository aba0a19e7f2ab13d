"""A worker process: an event loop with its share of a fleet's clients, and one thread in which they compute in turn."""

import asyncio
import os
import signal
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from fedlens_edge_client.client.client import TRIED, EdgeClient
from fedlens_edge_client.client.events import Embedded, Event, Retrying, Trained
from fedlens_edge_client.client.http_transport import HttpTransport, trust
from fedlens_edge_client.client.retrying import Backoff
from fedlens_edge_client.client.transport import Transport
from fedlens_edge_client.client.unattended import take_part
from fedlens_edge_client.emulation.faulty_transport import FaultyTransport
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.fleet.messages import EVALUATOR, ClientEnded, Happened, Message, WorkerEnded
from fedlens_edge_client.emulation.fleet.parking import ParkingTransport
from fedlens_edge_client.emulation.fleet.turns import Turns
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.engines.choice import EngineName, make_engine
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.training.label_distribution import private_generator
from fedlens_proto.manifest import Bundle

STOP = b"stop"
EXIT_ABANDONED = 70  # the process that started the fleet is gone
# A fleet and its server are near each other, and a waiting fleet is a waiting person.
BACKOFF = Backoff(first_s=0.1, most_s=2.0)
PROGRESS_EVERY_S = 0.25


def main(connection: Connection, config: FleetConfig, worker: int) -> None:
    """Run the clients of one worker until all have ended or a stop arrives; for a new process of its own."""
    # Ctrl-C in a terminal, as systemd's SIGTERM, reaches every process of the group; the one that started the fleet
    # decides, and this process ends with it in any case.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    from fedlens_edge_client.engines.memory import keep_freed_memory

    keep_freed_memory()
    asyncio.run(_run(connection, config, worker))


async def _run(connection: Connection, config: FleetConfig, worker: int) -> None:
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()
    sending = threading.Lock()

    def send(message: Message) -> None:
        with sending:
            connection.send(message)

    def stop() -> None:
        if not stopping.done():
            stopping.set_result(None)

    def obey() -> None:
        try:
            while connection.recv_bytes() != STOP:
                pass
            loop.call_soon_threadsafe(stop)
            connection.recv_bytes()
        except (EOFError, OSError):
            # Nobody is there to report to. What counts is on the disk, as at any kill.
            os._exit(EXIT_ABANDONED)

    threading.Thread(target=obey, name="fleet-commands", daemon=True).start()
    context = trust(config.ca) if config.server.startswith("https:") else None
    with ThreadPoolExecutor(1, "fleet-disk") as disk, _Computing() as trainers, _Computing() as evaluators:
        clients = [
            _Member(
                config, worker, index, context, evaluators if index == EVALUATOR else trainers, disk, stopping, send
            ).start()
            for index in config.share_of(worker)
        ]
        await asyncio.gather(*clients)
    send(WorkerEnded(worker))


class _Computing(ThreadPoolExecutor):
    """A thread for clients that compute in turn, with one engine of a kind for each bundle, whichever client asks.

    Such an engine reads programs from the folder of the first who asks, so those who share it must fetch the same ones.
    The evaluator, which fetches no `step`, has a thread of its own: behind all trainers it would miss models.
    """

    def __init__(self) -> None:
        super().__init__(1, "fleet-compute")
        self._engines: dict[tuple[EngineName, bytes], Engine] = {}

    def engine_of(self, name: EngineName, tried: Path, bundle: Bundle) -> Engine:
        """The engine of a bundle; called in the thread alone. `tried` as in `make_engine`."""
        key = name, bundle.id
        if key not in self._engines:
            # Importing torch takes seconds, which pass beside enrolment and downloads here.
            self._engines[key] = make_engine(name, bundle, tried)
        return self._engines[key]


class _Member:
    """One client of a fleet."""

    def __init__(
        self,
        config: FleetConfig,
        worker: int,
        index: int,
        context: ssl.SSLContext | None,
        computing: _Computing,
        disk: Executor,
        stopping: asyncio.Future[None],
        send: Callable[[Message], None],
    ) -> None:
        self._config = config
        self._worker = worker
        self._index = index
        self._context = context
        self._engine = config.engine_of(index)
        self._engine_of = partial(computing.engine_of, self._engine, config.shared / TRIED)
        self._disk = disk
        self._stopping = stopping
        self._send = send
        self._turns = Turns(computing)
        self._last_embedded = 0.0

    async def start(self) -> None:
        """Take part until there is no work any more, or the fleet stops; a failure is told, not raised."""
        config, index = self._config, self._index
        secret = config.secret(index)
        transport: Transport = HttpTransport(
            config.server, secret, ssl_context=self._context, backoff=BACKOFF, on_retry=self._retrying
        )
        if index != EVALUATOR:
            transport = FaultyTransport(transport, config.plan, index)
        parking = ParkingTransport(transport, self._turns, self._stopping)
        client = EdgeClient(
            config.server,
            config.folder(index),
            config.album(index),
            enrolment_token=config.evaluator_token if index == EVALUATOR else config.token,
            task=config.task,
            models=config.models_of(index),
            on_event=self._happened,
            secret=secret,
            private_generator=partial(private_generator, secret),
            transport=parking,
            engine=self._engine,
            engine_factory=self._engine_of,
            cache=config.cache(index),
            features=config.features,
            executor=self._turns,
            disk=self._disk,
        )
        running = asyncio.create_task(self._take_part(client))
        await asyncio.wait([running, self._stopping], return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await parking.settle(running)
        self._send(ClientEnded(self._worker, index, _failure(running)))

    async def _take_part(self, client: EdgeClient) -> None:
        async with client:
            await take_part(client)

    def _happened(self, event: Event) -> None:
        """Pass an event on, but for those that come by the hundred."""
        if isinstance(event, Trained) and event.step < event.steps:
            return
        if isinstance(event, Embedded) and event.done < event.total:
            now = time.monotonic()
            if now - self._last_embedded < PROGRESS_EVERY_S:
                return
            self._last_embedded = now
        self._send(Happened(self._worker, self._index, event))

    def _retrying(self, reason: str, delay_s: float, attempt: int) -> None:
        self._happened(Retrying(reason, delay_s, attempt))


def _failure(client: asyncio.Task[None]) -> str | None:
    if client.cancelled():
        return None
    error = client.exception()
    if error is None:
        return None
    if isinstance(error, EdgeClientError):
        return str(error)
    raise error
