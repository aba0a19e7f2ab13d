import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedlens_edge_client.emulation.fleet.client_executor import ClientExecutor
from fedlens_edge_client.emulation.fleet.stopping import StoppableTransport
from fedlens_proto.v1 import check_in_pb2, enrolment_pb2, update_pb2


@dataclass
class Server:
    """Takes everything; check-ins last until there is work, updates until `takes_updates` is set."""

    calls: list[str] = field(default_factory=list[str])
    work: asyncio.Event = field(default_factory=asyncio.Event)
    takes_updates: asyncio.Event = field(default_factory=asyncio.Event)

    async def enrol(self, token: str, capabilities: enrolment_pb2.Capabilities) -> enrolment_pb2.EnrolResponse:
        self.calls.append("enrol")
        return enrolment_pb2.EnrolResponse()

    async def check_in(self, request: check_in_pb2.CheckInRequest) -> check_in_pb2.CheckInResponse:
        self.calls.append("check-in")
        await self.work.wait()
        return check_in_pb2.CheckInResponse()

    async def fetch(self, sha256: bytes, into: Path, max_bytes: int) -> None:
        self.calls.append("fetch")

    async def put_update(
        self, task: int, round_number: int, header: bytes, blob: bytes | Path | None
    ) -> update_pb2.Receipt:
        self.calls.append("update begins")
        await self.takes_updates.wait()
        self.calls.append("update ends")
        return update_pb2.Receipt()

    async def put_evaluation(self, task: int, round_number: int, header: bytes) -> update_pb2.Receipt:
        return await self.put_update(task, round_number, header, None)

    async def report_failure(self, task: int, round_number: int, request: update_pb2.FailureRequest) -> None:
        self.calls.append("failure")

    async def forget(self) -> enrolment_pb2.ForgetResponse:
        return enrolment_pb2.ForgetResponse()

    async def close(self) -> None:
        self.calls.append("close")


@dataclass
class Member:
    """A client reduced to its arrows; `disk` is what outlives it."""

    transport: StoppableTransport
    executor: ClientExecutor
    may_train: threading.Event = field(default_factory=threading.Event)
    training: threading.Event = field(default_factory=threading.Event)
    disk: list[str] = field(default_factory=list[str])

    async def run(self) -> None:
        while True:
            await self.transport.check_in(check_in_pb2.CheckInRequest())
            await asyncio.wrap_future(self.executor.submit(self._train))
            await asyncio.wrap_future(self.executor.submit(self.disk.append, "outbox"))
            await self.transport.put_update(1, 1, b"", None)
            await asyncio.wrap_future(self.executor.submit(self.disk.append, "receipt"))

    def _train(self) -> None:
        self.training.set()
        assert self.may_train.wait(10)


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def member_of(server: Server, thread: ThreadPoolExecutor) -> tuple[Member, asyncio.Future[None]]:
    stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    executor = ClientExecutor(thread)
    return Member(StoppableTransport(server, executor, stopping), executor), stopping


async def until(reached: Callable[[], bool]) -> None:
    while not reached():  # noqa: ASYNC110  (what is waited for happens in another thread)
        await asyncio.sleep(0.001)


async def settle(member: Member, running: asyncio.Task[None]) -> None:
    await asyncio.wait_for(member.transport.settle(running), 10)


async def test_a_client_that_waits_for_work_stops_at_once(thread: ThreadPoolExecutor) -> None:
    server = Server()
    member, stopping = member_of(server, thread)
    running = asyncio.create_task(member.run())
    await asyncio.sleep(0)

    stopping.set_result(None)
    await settle(member, running)

    assert running.cancelled()
    assert member.disk == []


async def test_training_that_has_begun_ends_in_the_outbox_and_is_not_sent(thread: ThreadPoolExecutor) -> None:
    server = Server()
    server.work.set()
    member, stopping = member_of(server, thread)
    running = asyncio.create_task(member.run())
    await asyncio.to_thread(member.training.wait, 10)

    stopping.set_result(None)
    settling = asyncio.create_task(settle(member, running))
    await asyncio.sleep(0)
    member.may_train.set()
    await settling

    assert member.disk == ["outbox"]
    assert server.calls == ["check-in"]


async def test_training_that_has_not_begun_never_begins(thread: ThreadPoolExecutor) -> None:
    server = Server()
    server.work.set()
    busy = threading.Event()
    occupied = thread.submit(busy.wait, 10)  # another client's training
    member, stopping = member_of(server, thread)
    running = asyncio.create_task(member.run())
    await until(lambda: server.calls == ["check-in"])

    stopping.set_result(None)
    await settle(member, running)
    busy.set()

    assert occupied.result()
    assert running.cancelled()
    assert member.disk == []


async def test_an_upload_that_has_begun_gets_its_receipt_noted(thread: ThreadPoolExecutor) -> None:
    server = Server()
    server.work.set()
    member, stopping = member_of(server, thread)
    member.may_train.set()
    running = asyncio.create_task(member.run())
    await until(lambda: "update begins" in server.calls)

    stopping.set_result(None)
    settling = asyncio.create_task(settle(member, running))
    await asyncio.sleep(0)
    server.takes_updates.set()
    await settling

    assert server.calls == ["check-in", "update begins", "update ends"]
    assert member.disk == ["outbox", "receipt"]


async def test_an_upload_that_does_not_end_is_given_up_after_its_grace(
    thread: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedlens_edge_client.emulation.fleet.stopping.UPLOAD_GRACE_S", 0.01)
    server = Server()
    server.work.set()
    member, stopping = member_of(server, thread)
    member.may_train.set()
    running = asyncio.create_task(member.run())
    await until(lambda: "update begins" in server.calls)

    stopping.set_result(None)
    await settle(member, running)

    assert server.calls == ["check-in", "update begins"]
    assert member.disk == ["outbox"]


async def test_an_assignment_that_arrives_with_the_stop_is_not_begun(thread: ThreadPoolExecutor) -> None:
    server = Server()
    member, stopping = member_of(server, thread)
    running = asyncio.create_task(member.run())
    await asyncio.sleep(0)

    server.work.set()
    stopping.set_result(None)
    await settle(member, running)

    assert running.cancelled()
    assert not member.training.is_set()


async def test_a_client_that_fails_while_the_fleet_stops_keeps_its_error(thread: ThreadPoolExecutor) -> None:
    server = Server()
    server.work.set()
    member, stopping = member_of(server, thread)

    async def fails_after_training() -> None:
        await asyncio.wrap_future(member.executor.submit(member.may_train.wait, 10))
        raise OSError("disk full")

    running = asyncio.create_task(fails_after_training())
    await until(lambda: member.executor.has_begun)
    stopping.set_result(None)
    settling = asyncio.create_task(settle(member, running))
    await asyncio.sleep(0)
    member.may_train.set()
    await settling

    assert str(running.exception()) == "disk full"
