"""The process that loads and runs foreign `.pte` programs for the first time; see `trial`.

    python -m fedlens_edge_client.engines.trial_process FD IDLE_S LIMIT_S

The process sends one message over the socket FD when it is ready. It then receives pairs of messages, a manifest's
program and its `.pte`, and sends one message for each pair: empty if the program ran, otherwise the reason. It ends
after IDLE_S seconds without a message, and kills itself with SIGALRM after LIMIT_S seconds in one program.
"""

import resource
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fedlens_edge_client.engines import EngineError
from fedlens_edge_client.engines.loaded import DTYPES
from fedlens_edge_client.engines.pte import PteProgram, runtime
from fedlens_proto.v1 import manifest_pb2 as pb

MAX_MEMORY = 4 << 30
"""Bytes that a program may use in addition to the runtime's own."""


def main(socket: int, idle_s: float, limit_s: float) -> None:
    """Try programs until the other side closes the socket or stays idle."""
    torch.set_num_threads(1)
    runtime()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if (used := _address_space()) is not None:
        resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MEMORY, used + MAX_MEMORY))
    with Connection(socket) as connection:
        connection.send_bytes(b"")
        while connection.poll(idle_s):
            try:
                message, raw = pb.Program.FromString(connection.recv_bytes()), connection.recv_bytes()
            except EOFError:
                return
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            reason = _try(message, raw)
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(reason.encode())


def _try(message: pb.Program, raw: bytes) -> str:
    try:
        program = PteProgram(message, raw)
        for value in (0, 1):
            arguments = [torch.full(tuple(slot.shape), value, dtype=DTYPES[slot.dtype]) for slot in program.inputs]
            program.run(arguments, program.prepare(arguments))
    except EngineError as error:
        return str(error)
    except MemoryError:
        return f"program {message.name!r} cannot be used: it takes more than {MAX_MEMORY >> 30} GiB of memory"
    except Exception as error:  # whatever the runtime raises for a file that contradicts itself
        return f"program {message.name!r} cannot be used: {type(error).__name__}: {error}"
    return ""


def _address_space() -> int | None:
    """Bytes of address space in use; None if the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        return None


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
