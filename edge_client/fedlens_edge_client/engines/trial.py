"""Trying a `.pte` in a process of its own, because ExecuTorch's runtime is not made for hostile files.

Some damaged files make it read or write where it must not, which ends the process; a program may also never end, or
take all memory. All of that then happens there, and is an error here. The process is kept for the next program, and a
new one is started after a crash.
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
from fedlens_edge_client.engines.choice import runtime_version
from fedlens_proto.v1 import manifest_pb2 as pb

START_TIMEOUT_S = 120.0
GRACE_S = 10.0
IDLE_S = 20.0
LIMIT_S = 60.0
"""After so long in one program the process kills itself, with SIGALRM."""
MAX_ANSWER_BYTES = 1 << 16
MAX_SAID = 300  # characters
_MISSING_OPERATOR = re.compile(r"Missing operator: \[\d+\] (\S+)")


def try_program(message: pb.Program, raw: bytes, tried: Path | None = None) -> None:
    """Load and run a program in the process for that, unless that has been done with these bytes before.

    Args:
        message: What the manifest says of the program.
        raw: Its `.pte`.
        tried: A folder in which it is noted, for later processes, which programs could be run.

    Raises:
        BundleUnusable: It cannot be loaded or run; the text names it and says why.
        RuntimeMissing: ExecuTorch is not installed.
    """
    _TRIALS.try_program(message, raw, tried)


class Trials:
    """What has been tried in this process, and the process in which it is."""

    def __init__(self, idle_s: float = IDLE_S, limit_s: float = LIMIT_S) -> None:
        """The process ends when nothing has been tried for `idle_s`, and with a program that takes `limit_s`."""
        self._idle_s = idle_s
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._failures: dict[bytes, str | None] = {}
        self._process: _TrialProcess | None = None

    def try_program(self, message: pb.Program, raw: bytes, tried: Path | None) -> None:
        """As the function of this name."""
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
            # Without the note, it is tried again.
            with suppress(OSError):
                note.parent.mkdir(parents=True, exist_ok=True)
                note.touch()

    def _failure(self, name: str, described: bytes, raw: bytes) -> str | None:
        """Why a program cannot be used; None: it can."""
        was_killed = False
        while True:
            kept, self._process = self._process, None
            process = kept or _TrialProcess.start(name, self._idle_s, self._limit_s)
            answer = process.ask(described, raw)
            if answer is None:
                status, said = process.end()
                if status == 0 and kept is not None:
                    continue  # it had been idle, and ended just then
                if status == -signal.SIGKILL and not was_killed:
                    was_killed = True  # perhaps for want of memory, which others may have taken
                    continue
                return f"program {name!r} cannot be used: {self._obituary(status)}{_quoted(said)}"
            self._process = process
            if not answer:
                return None
            missing = _MISSING_OPERATOR.search(process.said())
            if missing is None:
                return answer + _quoted(process.said())
            return (
                f"program {name!r} cannot be used: ExecuTorch {runtime_version()} has no operator {missing[1]}; "
                "install the version that the bundle was exported with, or export it with this one"
            )

    def _obituary(self, status: int) -> str:
        if status == -signal.SIGALRM:
            return f"it did not end within {self._limit_s:g} s"
        if status == -signal.SIGKILL:
            return "the process in which it was tried was killed, twice; out of memory?"
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return f"the process in which it was tried ended with {how}; the file is damaged or hostile"

    def close(self) -> None:
        """End the process; the next trial starts a new one."""
        with self._turn:
            if self._process is not None:
                self._process.end()
                self._process = None


class _TrialProcess:
    """One process; it ends itself when nobody has asked for a while, or this process is gone."""

    def __init__(self, idle_s: float, limit_s: float) -> None:
        self._limit_s = limit_s
        ours, theirs = socket.socketpair()
        self._said: IO[bytes] = tempfile.TemporaryFile()
        self._asked_at = 0
        with theirs:
            # Where this process began without standard streams, the socket can have got the number of one of them.
            passed = fcntl(theirs, F_DUPFD_CLOEXEC, 3)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", trial_process.__name__, str(passed), str(idle_s), str(limit_s)],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=self._said,
                pass_fds=[passed],
                # Ctrl-C goes to all of a terminal's group, and would look as if the program had ended the process.
                process_group=0,
            )
        finally:
            os.close(passed)
        self._connection = Connection(ours.detach())

    @classmethod
    def start(cls, name: str, idle_s: float, limit_s: float) -> Self:
        """A process that is ready to try program `name`.

        Raises:
            BundleUnusable: There is none.
        """
        process = cls(idle_s, limit_s)
        if process._answer(START_TIMEOUT_S) is None:
            status, said = process.end()
            raise BundleUnusable(
                f"program {name!r} cannot be tried: the process for that ended with status {status} before it was "
                f"ready{_quoted(said)}"
            )
        return process

    def ask(self, described: bytes, raw: bytes) -> str | None:
        """Why the program cannot be used, empty: it can; None: the process has ended."""
        self._asked_at = self._length()
        try:
            self._connection.send_bytes(described)
            self._connection.send_bytes(raw)
        except OSError:
            return None
        return self._answer(self._limit_s + GRACE_S)

    def _answer(self, timeout_s: float) -> str | None:
        try:
            if not self._connection.poll(timeout_s):
                return None
            return self._connection.recv_bytes(MAX_ANSWER_BYTES).decode(errors="replace")
        except (EOFError, OSError):
            return None

    def said(self) -> str:
        """The last thing that the runtime wrote since it was last asked."""
        self._said.seek(self._asked_at)
        text = self._said.read(MAX_ANSWER_BYTES).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return (_first(_MISSING_OPERATOR, lines) or "; ".join(lines[-2:]))[:MAX_SAID]

    def _length(self) -> int:
        return self._said.seek(0, os.SEEK_END)

    def end(self) -> tuple[int, str]:
        """Have it end; how it did, as an exit status or the negative number of a signal, and what it said last."""
        self._connection.close()
        try:
            status = self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            status = -signal.SIGALRM  # what its own alarm should have done
        with self._said:
            return status, self.said()


def _first(pattern: re.Pattern[str], lines: list[str]) -> str:
    return next((line for line in lines if pattern.search(line)), "")


def _quoted(said: str) -> str:
    return f" (ExecuTorch: {said})" if said else ""


_TRIALS = Trials()
atexit.register(_TRIALS.close)
