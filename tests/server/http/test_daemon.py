"""The process around the server: it ends by itself where only a new start helps."""

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedlens_server import daemon
from fedlens_server.errors import StoreUnusable
from fedlens_server.store import Store, Transaction
from tests.server.http.running import config, connected, head
from tests.server.telemetry.logs import logged

NOBODY = 65534


async def test_a_server_that_can_write_no_more_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path)
    Store.open(settings.server.data).close()
    opened: list[Store] = []
    monkeypatch.setattr(daemon, "Store", lambda candidate: opened.append(Store(candidate)) or opened[0])

    def fault() -> None:
        raise RuntimeError("the view would no longer be what the database holds")

    def spoil(transaction: Transaction) -> None:
        transaction.after_commit(fault)

    def announce(line: str) -> None:
        opened[0].submit(spoil)

    with pytest.raises(StoreUnusable, match="could not be written"):
        await daemon.serve(settings, announce)


async def test_a_server_that_is_to_wait_for_nobody_stops_though_a_request_has_begun(tmp_path: Path) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    settings = config(tmp_path, stop_s=0)
    Store.open(settings.server.data).close()

    async with asyncio.timeout(20):
        server = asyncio.create_task(daemon.serve(settings, ready.set_result, stop=stop))
        port = re.findall(r":(\d+)", await ready)[0]
        async with connected(f"http://127.0.0.1:{port}") as (reader, writer):
            request = head(f"Bearer {'A' * 43}", "/v1/clients", 9, method="POST")
            writer.write(request.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
            goes_on = await reader.readuntil(b"\r\n\r\n")  # with nine bytes that never come
            stop.set()
            await server
            rest = await reader.read()

    assert (goes_on, rest) == (b"HTTP/1.1 100 Continue\r\n\r\n", b"")


async def test_a_hangup_signal_ends_no_server_that_has_no_certificate(tmp_path: Path) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    stop = asyncio.Event()
    settings = config(tmp_path)
    Store.open(settings.server.data).close()
    server = asyncio.create_task(daemon.serve(settings, ready.set_result, stop=stop))
    port = re.findall(r":(\d+)", await ready)[0]

    os.kill(os.getpid(), signal.SIGHUP)
    async with connected(f"http://127.0.0.1:{port}") as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        status = await reader.readline()
    stop.set()
    await server

    assert status == b"HTTP/1.1 200 OK\r\n"


async def test_a_folder_for_backups_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    stop = asyncio.Event()
    settings = config(tmp_path, backups=tmp_path / "taken" / "backups")
    (tmp_path / "taken").touch()
    Store.open(settings.server.data).close()

    with logged("human") as log:
        await daemon.serve(settings, lambda line: stop.set(), stop=stop)

    told = f'WARNING backup-failed reason="server.backups: {tmp_path}/taken is no folder that user '
    assert told in str(log)


@pytest.mark.parametrize("there", ["", "disk", "disk/data", "disk/data/blobs"])
def test_a_server_without_its_state_is_refused_and_makes_none(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    settings = config(tmp_path)
    data = tmp_path / "disk" / "data"
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"data": data})})

    with pytest.raises(StoreUnusable, match=r"disk/data holds no server's state.* mount it.* --new-data") as caught:
        asyncio.run(daemon.serve(settings, pytest.fail))

    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def not_by_root() -> Iterator[Path]:
    """A folder of a user who is not root, as whom the test runs."""
    user = os.geteuid()
    # Nobody else may enter pytest's own folder for temporary files.
    with tempfile.TemporaryDirectory() as folder:
        if user == 0:
            os.chown(folder, NOBODY, -1)
            os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(user)


@pytest.mark.parametrize(
    ("closed", "mode", "told"),
    [
        ("disk", 0, "disk/data cannot be reached"),
        ("disk/data", 0, "disk/data cannot be read and written"),
        ("disk/data", 0o500, "disk/data cannot be read and written"),
        ("disk/data/blobs", 0o500, "disk/data/blobs cannot be read and written"),
        ("disk/data/blobs", 0o600, "disk/data/blobs cannot be read and written"),
    ],
)
def test_a_server_that_may_not_write_its_state_is_refused(not_by_root: Path, closed: str, mode: int, told: str) -> None:
    data = not_by_root / "disk" / "data"
    (data / "blobs").mkdir(parents=True)
    (not_by_root / closed).chmod(mode)
    settings = config(not_by_root)
    settings = settings.model_copy(update={"server": settings.server.model_copy(update={"data": data})})

    with pytest.raises(StoreUnusable, match=rf"^server.data: .*{told} by user \d+, as which"):
        asyncio.run(daemon.serve(settings, pytest.fail))
