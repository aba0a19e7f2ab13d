"""A child as the client sees it: executed, not forked, so that it has nothing of this process's memory."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from functools import cache
from pathlib import Path
from typing import NoReturn

from fedlens_edge_client.engines import BundleUnusable, ProgramCrashed, RuntimeMissing
from fedlens_edge_client.engines.child.confinement import MAX_OUTPUT_BYTES
from fedlens_edge_client.engines.child.link import MAX_TEXT_BYTES, REPLY, REQUEST, Kind
from fedlens_proto.v1 import manifest_pb2 as pb

PROCESS = "fedlens_edge_client.engines.child.process"
START_TIMEOUT_S = 120.0
LIMIT_S = 60.0
"""Longest time for one run of a program, or for loading one."""
GRACE_S = 10.0
_LOOK_EVERY_S = 0.1
_MAX_SAID = 300  # characters
# The only variables that a child has beside its path of modules: where the system's loader looks for libraries.
_KEPT = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class Child:
    """A process that runs programs of one format. One thread uses it at a time.

    Attributes:
        on_lost: Called if it ends although nobody here wanted it to; gives a text for the error.
        has_ended: Whether it is gone, as far as is known.
        status: With which it ended by itself, or the negative number of a signal; 0: it was ended from here.
    """

    def __init__(
        self,
        program_format: pb.ProgramFormat,
        *,
        process: str = PROCESS,
        idle_s: float = 0.0,
        limit_s: float = LIMIT_S,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Start the process; it gets ready meanwhile.

        Args:
            program_format: The only format that it loads.
            process: The module to run.
            idle_s: It ends after so many seconds without work; 0: never.
            limit_s: It is ended after so many seconds in one request.
            check: Called while the child works; an exception that it raises ends the child and reaches the caller.
        """
        self._limit_s, self._check = limit_s, check
        self._sent = self._answered = 0
        self._failures: dict[int, str] = {}
        self._is_ready = False
        self.has_ended, self.status = False, 0
        self.on_lost: Callable[[], str] = str
        self._link, theirs = socket.socketpair()
        # The child writes at most `MAX_OUTPUT_BYTES` into it.
        self._output = tempfile.TemporaryFile()  # closed in `end`
        with theirs:
            # If this process was started without standard streams, the socket may have one of their numbers.
            passed = fcntl(theirs, F_DUPFD_CLOEXEC, 3)
        arguments = (str(passed), str(int(program_format)), str(os.getpid()), str(idle_s))
        try:
            self._process = _starter().submit(_start, process, arguments, passed, self._output.fileno()).result()
        finally:
            os.close(passed)
        self._link.settimeout(min(_LOOK_EVERY_S, limit_s))

    @property
    def pid(self) -> int:
        """Its process's number."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until the process has confined itself.

        Raises:
            RuntimeMissing: It cannot be started or confined here; the text says why.
        """
        if self._is_ready:
            return
        on_lost, self.on_lost = self.on_lost, str  # no bundle can have ended it
        try:
            failure = self._reply(START_TIMEOUT_S)
        except ProgramCrashed as error:
            raise RuntimeMissing(f"programs cannot run in a process of their own: {error}") from error
        if failure:
            self.end()
            raise RuntimeMissing(failure)
        self._is_ready, self.on_lost = True, on_lost

    def submit(self, kind: Kind, program: int, first: int = 0, second: int = 0, descriptors: Sequence[int] = ()) -> int:
        """Send a request; its number, for `settle`.

        Raises:
            ProgramCrashed: The child is gone.
            RuntimeMissing: It cannot be started or confined here.
        """
        self.wait_until_ready()
        if kind == Kind.LOAD:
            self._output.seek(0)
            self._output.truncate()
        try:
            request = REQUEST.pack(kind, program, first, second)
            sent = socket.send_fds(self._link, [request], descriptors) if descriptors else self._link.send(request)
            assert sent == len(request), "a request fits into an empty link"
        except OSError:
            self._lost()
        self._sent += 1
        return self._sent

    def settle(self, request: int) -> None:
        """Wait for the answer to a request, and thus to all before it.

        Raises:
            BundleUnusable: The request has failed; the text says why.
            ProgramCrashed: The child is gone.
        """
        while self._answered < request:
            self._answer()
        failure = self._failures.pop(request, "")
        if failure:
            raise BundleUnusable(failure)

    def settle_all(self) -> None:
        """Wait for the answers to all requests; their failures stay for `settle`.

        Raises:
            ProgramCrashed: The child is gone.
        """
        while self._answered < self._sent:
            self._answer()

    def said(self) -> str:
        """The lines that the runtime has written since the last program was loaded, in characters that print."""
        lines = _printable(os.pread(self._output.fileno(), MAX_OUTPUT_BYTES, 0)).splitlines()
        return "\n".join(line.strip()[:_MAX_SAID] for line in lines if line.strip())

    def end(self) -> None:
        """End the process, if it has not ended."""
        if self.has_ended:
            return
        self.has_ended = True
        self._link.close()
        if self._process.poll() is None:
            self._process.kill()
        else:
            self.status = self._process.returncode
        self._process.wait()
        self._output.close()

    def _answer(self) -> None:
        failure = self._reply(self._limit_s)
        self._answered += 1
        if failure:
            self._failures[self._answered] = failure

    def _reply(self, limit_s: float) -> str:
        """The failure in the next reply; empty: there was none."""
        if self.has_ended:
            raise ProgramCrashed("its process has ended")
        end = time.monotonic() + limit_s
        header = self._received(REPLY.size, end)
        succeeded, length = REPLY.unpack(header)
        if header[0] > 1 or length > MAX_TEXT_BYTES or succeeded != (length == 0):
            self._lost("does not keep to the protocol")
        return _printable(self._received(length, end)) if length else ""

    def _received(self, size: int, end: float) -> bytes:
        found = b""
        while len(found) < size:
            try:
                more = self._link.recv(size - len(found))
            except TimeoutError:
                self._look(end)
                continue
            except OSError:
                more = b""
            if not more:
                self._lost()
            found += more
        return found

    def _look(self, end: float) -> None:
        """Let the caller be interrupted, or end a child that takes too long."""
        try:
            self._check()
        except BaseException:
            self.end()
            raise
        if time.monotonic() > end:
            self._lost(f"did not answer within {self._limit_s:g} s")

    def _lost(self, why: str = "") -> NoReturn:
        """Give the child up: it is about to end by itself, or has done what it must not."""
        if not why:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        last = "; ".join(self.said().splitlines()[-2:])
        self.end()
        how = f"its process {why or _how(self.status)}" + (f" ({last})" if last else "")
        raise ProgramCrashed("; ".join(text for text in (how, self.on_lost()) if text))


@cache
def _starter() -> ThreadPoolExecutor:
    """A thread that starts children and ends with this process: a child ends with the thread that started it."""
    return ThreadPoolExecutor(1, "fedlens-children")


def _start(process: str, arguments: Sequence[str], link: int, output: int) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", process, *arguments],
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1", **kept},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[link],
        # Ctrl-C reaches every process of a terminal's group, and would look like a crash of the program.
        process_group=0,
    )


def _how(status: int) -> str:
    """The end of a process in words."""
    if status == -signal.SIGSYS:
        return "asked the system for what programs may not have (signal SIGSYS)"
    if status == -signal.SIGKILL:
        return "was killed; out of memory?"
    if status < 0:
        return f"ended with signal {signal.Signals(-status).name}: the program is damaged or hostile"
    return f"ended with status {status}"


def _printable(raw: bytes) -> str:
    text = raw.decode(errors="replace")
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)
