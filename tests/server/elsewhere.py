"""Throw-away PostgreSQL and S3 servers of this machine, and a network before them that can be slow or cut."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from select import select
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import URL

from fedlens_server.store import StateAddress
from fedlens_server.store.address import Bucket
from tests.integration.processes import free_ports

_names = count(1)
# What an S3 server of tests takes; obstore finds it in the environment.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "secret of tests",
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


@cache
def _postgres_bin() -> Path | None:
    found = shutil.which("initdb")
    known = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(known) if (folder / "initdb").exists()), None)


@cache
def _gateway() -> str | None:
    return shutil.which("versitygw", path=os.pathsep.join([os.environ.get("PATH", ""), str(Path.home() / "go/bin")]))


def require_postgres() -> None:
    """Skip the test where there is no PostgreSQL."""
    if _postgres_bin() is None:
        pytest.skip("there is no PostgreSQL (apt install postgresql)")


def require_s3() -> None:
    """Skip the test where there is no S3 server."""
    if _gateway() is None:
        pytest.skip("there is no versitygw (.ci/run installs it)")


class Cluster:
    """A PostgreSQL server with databases for tests, reached by a Unix socket or through a `Link`."""

    def __init__(self, *, durable: bool = False) -> None:
        self._fsync = "on" if durable else "off"
        found = _postgres_bin()
        assert found is not None
        self._bin = found
        self.folder = Path(tempfile.mkdtemp(prefix="fedlens-pg-"))
        # PostgreSQL refuses to run as root.
        self._user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
        if self._user:
            shutil.chown(self.folder, "postgres", "postgres")
        made = ["--auth=trust", "--username=fedlens", "--encoding=UTF8", "--locale=C", "--no-sync"]
        command = [self._bin / "initdb", "-D", self.folder / "data", *made]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder, **self._user)
        self.start()

    def start(self) -> None:
        """Start it, also after `kill`; return when it answers."""
        # What it has written stays with the machine when its processes end; only a power failure takes that.
        settings = {"unix_socket_directories": self.folder, "listen_addresses": "", "fsync": self._fsync}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.folder / "data", *options],
                **{"cwd": self.folder, "stdout": log, "stderr": log, **self._user},
            )
        self._until_it_answers()

    def _until_it_answers(self) -> None:
        for _ in range(1000):
            with suppress(psycopg.OperationalError), self.connect("postgres"):
                return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
                break
        raise RuntimeError(f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2000:]}")

    def stop(self) -> None:
        """Cut all connections, and stop it."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def kill(self) -> None:
        """Kill all of its processes, as `kill -9` does, and return when they are gone."""
        leader = self._process.pid
        self._process.send_signal(signal.SIGSTOP)  # it starts none meanwhile
        os.waitid(os.P_PID, leader, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        workers = [int(pid) for pid in Path(f"/proc/{leader}/task/{leader}/children").read_text().split()]
        for pid in (leader, *workers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for pid in workers:
            _gone(pid)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / ".s.PGSQL.5432"

    def create(self, template: str = "template0") -> URL:
        """A new database, as a copy of another."""
        name = f"state_{next(_names)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")  # type: ignore[arg-type]
        return URL.create("postgresql", "fedlens", database=name, query={"host": str(self.folder)})

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """A connection that commits each statement."""
        return psycopg.connect(host=str(self.folder), user="fedlens", dbname=database, autocommit=True)

    def remove(self) -> None:
        """Stop it, and delete what it has written."""
        if self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder)


def _gone(pid: int) -> None:
    """Return when a process that is no child of ours has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select([descriptor], [], [], 10)
    finally:
        os.close(descriptor)


class Gateway:
    """An S3 server that keeps buckets as folders."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedlens-s3-"))
        (self.port,) = free_ports(1)
        self.start()

    def start(self) -> None:
        """Start it, also after `kill`; return when it listens."""
        program = _gateway()
        assert program is not None
        command = [program, "--port", f"127.0.0.1:{self.port}", "--quiet", "posix", str(self.folder)]
        key, secret = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
        own = {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, env={**os.environ, **own}, **quiet)
        for _ in range(1000):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.01)
                break
        raise RuntimeError("versitygw does not listen")

    def kill(self) -> None:
        """Kill it, as `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def bucket(self) -> Bucket:
        """A new bucket."""
        name = f"bucket-{next(_names)}"
        (self.folder / name).mkdir()
        return Bucket(name, "prefix")

    def environment(self, port: int | None = None) -> dict[str, str]:
        """The environment in which clients reach it, by its own port or another."""
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}"}

    def remove(self) -> None:
        """Stop it, and delete what it holds."""
        self.kill()
        shutil.rmtree(self.folder)


class Link:
    """A network of one hop: a port of this machine whose bytes go on to another server, unless they are held or cut."""

    def __init__(self, target: Path | int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[_Pair] = []
        self._passing = threading.Event()
        self._passing.set()
        self._is_cut = False
        self._swallow = self._hold_after = self._of = b""
        self.swallowed, self.held = threading.Event(), threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def hold(self) -> None:
        """From now on, bytes wait."""
        self._passing.clear()

    def go_on(self) -> None:
        """End `hold` and `cut`."""
        self._is_cut = False
        self._passing.set()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self._is_cut = True
        for pair in self._pairs:
            pair.close()
        self._pairs.clear()
        self._passing.set()

    def cut_after(self, sent: bytes, of: bytes = b"") -> None:
        """Once a client has sent these bytes, deliver them, keep the answer, and `cut`; see `hold_after`."""
        self.swallowed.clear()
        self._of, self._swallow = of, sent

    def hold_after(self, sent: bytes, of: bytes = b"") -> None:
        """Once a client has sent these bytes, deliver them, and `hold`; where `of` was sent since now."""
        self.held.clear()
        self._of, self._hold_after = of, sent

    def close(self) -> None:
        """End it."""
        self.cut()
        end_accepting(self._listener, self._accepting)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_cut:
                    near.close()
                    continue
                try:
                    far = self._connected()
                except ConnectionRefusedError:
                    near.close()
                    continue
                self._pairs.append(pair := _Pair(near, far))
                if self._is_cut:  # since the first look
                    pair.close()
                threading.Thread(target=self._pass_on, args=(near, far), daemon=True).start()

    def _connected(self) -> socket.socket:
        if isinstance(self._target, int):
            return socket.create_connection(("127.0.0.1", self._target))
        far = socket.socket(socket.AF_UNIX)
        far.connect(str(self._target))
        return far

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        sent_of = b""  # the last `of` that this client has sent
        with suppress(OSError, ValueError), closing(_Pair(near, far)):
            while True:
                for ready in select([near, far], [], [])[0]:
                    raw = ready.recv(1 << 16)
                    self._passing.wait()
                    if not raw:
                        return
                    (far if ready is near else near).sendall(raw)
                    if ready is far:
                        continue
                    sent_of = self._of if self._of in raw else sent_of
                    is_it = sent_of == self._of
                    if is_it and self._hold_after and self._hold_after in raw:
                        self._hold_after = b""
                        self.hold()
                        self.held.set()
                    if is_it and self._swallow and self._swallow in raw:
                        self._swallow = b""
                        far.recv(1 << 16)  # the answer: what was asked for is done
                        self.cut()
                        self.swallowed.set()
                        return


def end_accepting(listener: socket.socket, thread: threading.Thread) -> None:
    """Close a socket on which a thread accepts connections, and return when the thread has ended.

    Were it only closed, the thread would go on to wait, and after a signal for whatever socket has got the descriptor:
    it would take the connections of another test.
    """
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


class _Pair(NamedTuple):
    near: socket.socket
    far: socket.socket

    def close(self) -> None:
        for each in self:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@contextmanager
def running_cluster(*, durable: bool = False) -> Iterator[Cluster]:
    """A `Cluster` for some tests; `durable` ones survive a power failure, and are slower."""
    require_postgres()
    found = Cluster(durable=durable)
    try:
        yield found
    finally:
        found.remove()


@contextmanager
def running_gateway() -> Iterator[Gateway]:
    """A `Gateway` for some tests."""
    require_s3()
    found = Gateway()
    try:
        yield found
    finally:
        found.remove()


def through(link: Link, url: URL) -> URL:
    """The address of a database by way of a link."""
    return url.set(host="127.0.0.1", port=link.port, query={})


_states: dict[Path, StateAddress] = {}
HERE: list[tuple[Cluster, Gateway]] = []
"""The servers that hold the state of every test, while FEDLENS_TEST_STATE is `elsewhere`; none: a folder holds it."""


needs_a_folder = pytest.mark.skipif(
    os.environ.get("FEDLENS_TEST_STATE") == "elsewhere", reason="it looks into the state's folder"
)


def address_of(folder: Path) -> StateAddress:
    """The address of a test's state, the same for the same folder."""
    if not HERE:
        return StateAddress(folder=folder)
    if folder not in _states:
        _states[folder] = elsewhere(folder, *HERE[0])
    return _states[folder]


def elsewhere(folder: Path, cluster: Cluster | None, gateway: Gateway | None) -> StateAddress:
    """The address of a new state, with a database and a bucket of these."""
    return StateAddress(
        folder=folder,
        database=None if cluster is None else cluster.create(),
        bucket=None if gateway is None else gateway.bucket(),
    )
