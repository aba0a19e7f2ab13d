"""Trials of `.pte` programs in a separate process: ExecuTorch's runtime is not hardened against hostile files.

A damaged file can make the runtime access invalid memory and crash; a program can also run forever or use all memory.
A trial confines this to the other process and turns it into an error here. One process serves many trials; after a
crash a new one is started.
"""

import atexit
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Self

from fedlens_edge_client.engines import BundleUnusable, trial_process
from fedlens_edge_client.engines.installed import runtime_version
from fedlens_proto.v1 import manifest_pb2 as pb

START_TIMEOUT_S = 120.0
GRACE_S = 10.0
IDLE_S = 20.0
LIMIT_S = 60.0
"""Longest trial of one program; then the process kills itself with SIGALRM."""
MAX_REASON_BYTES = 1 << 16
MAX_SAID = 300  # characters
_MISSING_OPERATOR = re.compile(r"Missing operator: \[\d+\] (\S+)")


class Trials:
    """Trials made by this process, their results, and the separate process that runs them."""

    def __init__(self, idle_s: float = IDLE_S, limit_s: float = LIMIT_S) -> None:
        """The trial process ends after `idle_s` without work; it kills itself after `limit_s` in one program."""
        self._idle_s = idle_s
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._failures: dict[bytes, str | None] = {}
        self._process: _TrialProcess | None = None

    def try_program(self, message: pb.Program, raw: bytes, tried: Path | None = None) -> None:
        """Load and run a program in the trial process, unless these bytes have been tried before.

        Args:
            message: The manifest's description of the program.
            raw: Its `.pte`.
            tried: Folder that records, for later processes, which programs have passed.

        Raises:
            BundleUnusable: The program cannot be loaded or run; the text names it and gives the reason.
            RuntimeMissing: ExecuTorch is not installed.
        """
        described = message.SerializeToString(deterministic=True)
        version = runtime_version()
        key = sha256(b"".join([sha256(described).digest(), sha256(raw).digest(), version.encode()])).digest()
        note = None if tried is None else tried / key.hex()
        with self._turn:
            if key not in self._failures:
                noted = note is not None and note.exists()
                self._failures[key] = None if noted else self._failure(message.name, described, raw)
            failure = self._failures[key]
        if failure is not None:
            raise BundleUnusable(failure)
        if note is not None:
            # Without the record, the next process only repeats the trial.
            with suppress(OSError):
                note.parent.mkdir(parents=True, exist_ok=True)
                note.touch()

    def _failure(self, name: str, described: bytes, raw: bytes) -> str | None:
        """The reason that a program cannot be used; None if it can."""
        was_killed = False
        while True:
            kept, self._process = self._process, None
            process = kept or _TrialProcess.start(name, self._idle_s, self._limit_s)
            reason = process.ask(described, raw)
            if reason is None:
                status, said = process.end()
                if status == 0 and kept is not None:
                    continue  # it ended just now, after idling
                if status == -signal.SIGKILL and not was_killed:
                    was_killed = True  # perhaps for lack of memory that other processes held
                    continue
                return f"program {name!r} cannot be used: {self._cause_of_end(status)}{_quoted(said)}"
            self._process = process
            if not reason:
                return None
            missing = _MISSING_OPERATOR.search(process.last_lines())
            if missing is None:
                return reason + _quoted(process.last_lines())
            return (
                f"program {name!r} cannot be used: ExecuTorch {runtime_version()} has no operator {missing[1]}; "
                "install the version that the bundle was exported with, or export it with this one"
            )

    def _cause_of_end(self, status: int) -> str:
        if status == -signal.SIGALRM:
            return f"it did not end within {self._limit_s:g} s"
        if status == -signal.SIGKILL:
            return "the process in which it was tried was killed, twice; out of memory?"
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return f"the process in which it was tried ended with {how}; the file is damaged or hostile"

    def close(self) -> None:
        """End the process; another trial would start a new one."""
        with self._turn:
            if self._process is not None:
                self._process.end()
                self._process = None


class _TrialProcess:
    """One trial process; it ends by itself when it idles too long or this process is gone."""

    def __init__(self, idle_s: float, limit_s: float) -> None:
        self._limit_s = limit_s
        ours, theirs = socket.socketpair()
        self._output: IO[bytes] = tempfile.TemporaryFile()
        self._output_before = 0
        with theirs:
            # If this process was started without standard streams, the socket may have one of their numbers.
            passed = fcntl(theirs, F_DUPFD_CLOEXEC, 3)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", trial_process.__name__, str(passed), str(idle_s), str(limit_s)],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[passed],
                # Ctrl-C reaches every process of a terminal's group, and would look like a crash of the program.
                process_group=0,
            )
        finally:
            os.close(passed)
        self._connection = Connection(ours.detach())

    @classmethod
    def start(cls, name: str, idle_s: float, limit_s: float) -> Self:
        """Start a process and wait until it can try program `name`.

        Raises:
            BundleUnusable: The process ended first.
        """
        process = cls(idle_s, limit_s)
        if process._receive(START_TIMEOUT_S) is None:
            status, said = process.end()
            raise BundleUnusable(
                f"program {name!r} cannot be tried: the trial process ended with status {status} before it was "
                f"ready{_quoted(said)}"
            )
        return process

    def ask(self, described: bytes, raw: bytes) -> str | None:
        """The reason that the program cannot be used, empty if it can; None if the process has ended."""
        self._output_before = self._output.seek(0, os.SEEK_END)
        try:
            self._connection.send_bytes(described)
            self._connection.send_bytes(raw)
        except OSError:
            return None
        return self._receive(self._limit_s + GRACE_S)

    def _receive(self, timeout_s: float) -> str | None:
        try:
            if not self._connection.poll(timeout_s):
                return None
            return self._connection.recv_bytes(MAX_REASON_BYTES).decode(errors="replace")
        except (EOFError, OSError):
            return None

    def last_lines(self) -> str:
        """The last lines that the runtime has written since the last request."""
        self._output.seek(self._output_before)
        text = self._output.read(MAX_REASON_BYTES).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return next(filter(_MISSING_OPERATOR.search, lines), "; ".join(lines[-2:]))[:MAX_SAID]

    def end(self) -> tuple[int, str]:
        """End the process; its exit status, or the negative number of a signal, and the runtime's last lines."""
        self._connection.close()
        try:
            status = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            status = -signal.SIGALRM  # as its own alarm should have ended it
        with self._output:
            return status, self.last_lines()


def _quoted(said: str) -> str:
    return f" (ExecuTorch: {said})" if said else ""


_TRIALS = Trials()
atexit.register(_TRIALS.close)
try_program = _TRIALS.try_program
