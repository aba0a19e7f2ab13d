import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from fedlens_edge_client.emulation.fleet.client_executor import ClientExecutor
from fedlens_edge_client.emulation.fleet.stopping import StoppableTransport
from fedlens_proto.v1 import check_in_pb2
from tests.edge_client.emulation.transports import RecordingTransport


class Server(RecordingTransport):
    """Check-ins last until there is work, updates until `may_upload` is set."""

    def __init__(self, *, has_work: bool = True) -> None:
        self.has_work, self.may_upload = asyncio.Event(), asyncio.Event()
        if has_work:
            self.has_work.set()
        super().__init__(work=self.has_work.wait, takes_updates=self.may_upload.wait)


@dataclass
class Member:
    """A client reduced to its arrows; `disk` is what outlives it."""

    transport: StoppableTransport
    executor: ClientExecutor
    stopping: asyncio.Future[None]
    may_train: threading.Event = field(default_factory=threading.Event)
    training: threading.Event = field(default_factory=threading.Event)
    disk: list[str] = field(default_factory=list[str])

    async def run(self) -> None:
        while True:
            await self.transport.check_in(check_in_pb2.CheckInRequest())
            await asyncio.wrap_future(self.executor.submit(self._train))
            await asyncio.wrap_future(self.executor.submit(self.disk.append, "outbox"))
            await self.transport.put_update(1, 1, b"", ())
            await asyncio.wrap_future(self.executor.submit(self.disk.append, "receipt"))

    def _train(self) -> None:
        self.training.set()
        assert self.may_train.wait(10)

    async def stop(self, running: asyncio.Task[None], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Stop the fleet; `meanwhile` is called when the client has begun to settle."""
        self.stopping.set_result(None)
        settling = asyncio.create_task(self.transport.settle(running))
        await asyncio.sleep(0)
        meanwhile()
        await asyncio.wait_for(settling, 10)


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def member_of(server: Server, thread: ThreadPoolExecutor) -> Member:
    stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    executor = ClientExecutor(thread)
    return Member(StoppableTransport(server, executor, stopping), executor, stopping)


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110  (what is waited for happens in another thread)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("arrives", [False, True])
async def test_a_client_that_waits_for_work_stops_at_once_even_if_work_arrives_with_the_stop(
    thread: ThreadPoolExecutor, arrives: bool
) -> None:
    server = Server(has_work=False)
    member = member_of(server, thread)
    running = asyncio.create_task(member.run())
    await asyncio.sleep(0)

    if arrives:
        server.has_work.set()
    await member.stop(running)

    assert running.cancelled()
    assert not member.training.is_set()
    assert member.disk == []


async def test_training_that_has_begun_ends_in_the_outbox_and_is_not_sent(thread: ThreadPoolExecutor) -> None:
    server = Server()
    member = member_of(server, thread)
    running = asyncio.create_task(member.run())
    await asyncio.to_thread(member.training.wait, 10)

    await member.stop(running, member.may_train.set)

    assert member.disk == ["outbox"]
    assert server.calls == ["check-in"]


async def test_training_that_has_not_begun_never_begins(thread: ThreadPoolExecutor) -> None:
    server = Server()
    busy = threading.Event()
    occupied = thread.submit(busy.wait, 10)  # another client's training
    member = member_of(server, thread)
    running = asyncio.create_task(member.run())
    await until(lambda: server.calls == ["check-in"])

    await member.stop(running)
    busy.set()

    assert occupied.result()
    assert running.cancelled()
    assert member.disk == []


@pytest.mark.parametrize("ends", [True, False])
async def test_an_upload_that_has_begun_gets_its_receipt_noted_or_is_given_up_after_its_grace(
    thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr("fedlens_edge_client.emulation.fleet.stopping.UPLOAD_GRACE_S", 10 if ends else 0.01)
    server = Server()
    member = member_of(server, thread)
    member.may_train.set()
    running = asyncio.create_task(member.run())
    await until(lambda: "update begins" in server.calls)

    await member.stop(running, server.may_upload.set if ends else lambda: None)

    assert server.calls == ["check-in", "update begins"] + ["update ends"] * ends
    assert member.disk == ["outbox"] + ["receipt"] * ends


async def test_a_client_that_fails_while_the_fleet_stops_keeps_its_error(thread: ThreadPoolExecutor) -> None:
    member = member_of(Server(), thread)

    async def fails_after_training() -> None:
        await asyncio.wrap_future(member.executor.submit(member.may_train.wait, 10))
        raise OSError("disk full")

    running = asyncio.create_task(fails_after_training())
    await until(lambda: member.executor.has_begun)
    await member.stop(running, member.may_train.set)

    assert str(running.exception()) == "disk full"
