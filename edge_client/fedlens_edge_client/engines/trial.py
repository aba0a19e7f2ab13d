"""Trials of `.pte` programs in a child: ExecuTorch's runtime is not hardened against hostile files.

A damaged file can make the runtime access invalid memory and crash; a program can also run forever or use all memory.
Where programs run in this process, a trial confines this to the child and turns it into an error here. One child
serves many trials; after a crash a new one is started.
"""

import atexit
import signal
import threading
from collections import deque
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import torch

from fedlens_edge_client.engines import BundleUnusable, ProgramCrashed
from fedlens_edge_client.engines.child.child import LIMIT_S, Child
from fedlens_edge_client.engines.child.engine import ChildProgram
from fedlens_edge_client.engines.installed import runtime_version
from fedlens_edge_client.engines.loaded import DTYPES
from fedlens_proto.v1 import manifest_pb2 as pb

IDLE_S = 20.0


class Trials:
    """Trials made by this process, their results, and the child that runs them."""

    def __init__(self, idle_s: float = IDLE_S, limit_s: float = LIMIT_S) -> None:
        """The child ends after `idle_s` without work; it is ended after `limit_s` in one run."""
        self._idle_s = idle_s
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._failures: dict[bytes, str | None] = {}
        self._child: Child | None = None

    def try_program(self, message: pb.Program, raw: bytes, tried: Path | None = None) -> None:
        """Load and run a program in the child, unless these bytes have been tried before.

        Args:
            message: The manifest's description of the program.
            raw: Its `.pte`.
            tried: Folder that records, for later processes, which programs have passed.

        Raises:
            BundleUnusable: The program cannot be loaded or run; the text names it and gives the reason.
            RuntimeMissing: ExecuTorch is not installed, or this machine cannot confine a process.
        """
        described = message.SerializeToString(deterministic=True)
        version = runtime_version()
        key = sha256(b"".join([sha256(described).digest(), sha256(raw).digest(), version.encode()])).digest()
        note = None if tried is None else tried / key.hex()
        with self._turn:
            if key not in self._failures:
                noted = note is not None and note.exists()
                self._failures[key] = None if noted else self._failure(message, raw)
            failure = self._failures[key]
        if failure is not None:
            raise BundleUnusable(failure)
        if note is not None:
            # Without the record, the next process only repeats the trial.
            with suppress(OSError):
                note.parent.mkdir(parents=True, exist_ok=True)
                note.touch()

    def _failure(self, message: pb.Program, raw: bytes) -> str | None:
        """The reason that a program cannot be used; None if it can."""
        was_ended = False
        while True:
            kept, self._child = self._child, None
            child = kept or Child(pb.PROGRAM_FORMAT_PTE, idle_s=self._idle_s, limit_s=self._limit_s)
            try:
                child.wait_until_ready()
                _run(ChildProgram(child, message, raw, pb.PROGRAM_FORMAT_PTE))
            except ProgramCrashed as error:
                if child.status == 0 and kept is not None:
                    continue  # it ended just now, after idling
                if child.status in (0, -signal.SIGKILL) and not was_ended:
                    # Perhaps this process stood still for longer than a child idles, or others held the memory.
                    was_ended = True
                    continue
                return f"program {message.name!r} cannot be used: {error}"
            except BundleUnusable as error:
                self._child = child
                return str(error)
            self._child = child
            return None

    def close(self) -> None:
        """End the process; another trial would start a new one."""
        with self._turn:
            if self._child is not None:
                self._child.end()
                self._child = None


def _run(program: ChildProgram) -> None:
    """Run a program on zeros and on ones."""
    for value in (0, 1):
        arguments = [torch.full(tuple(slot.shape), value, dtype=DTYPES[slot.dtype]) for slot in program.inputs]
        deque(program.runs(arguments, [None]), maxlen=0)


_TRIALS = Trials()
atexit.register(_TRIALS.close)
try_program = _TRIALS.try_program
