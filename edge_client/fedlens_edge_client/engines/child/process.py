"""The process that loads and runs the programs of bundles; see `child`.

    python -m fedlens_edge_client.engines.child.process FD FORMAT PARENT IDLE_S

The process imports what it needs, runs a known program of FORMAT, confines itself, and sends a reply over the socket
FD: from then on it answers requests. It ends when the other side is gone, or after IDLE_S seconds without a request.
"""

import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlens_edge_client.engines import EngineError
from fedlens_edge_client.engines.child import known
from fedlens_edge_client.engines.child.confinement import confine, die_with
from fedlens_edge_client.engines.child.link import MAX_TEXT_BYTES, REPLY, REQUEST, Kind
from fedlens_edge_client.engines.child.shared import SharedTensors, mapped, shared_bytes
from fedlens_edge_client.engines.loaded import OwnProgram
from fedlens_edge_client.engines.memory import keep_freed_memory
from fedlens_proto.errors import ProgramRefused
from fedlens_proto.v1 import manifest_pb2 as pb

Loader = Callable[[pb.Program, bytes], OwnProgram]


def _pt2(message: pb.Program, raw: bytes) -> OwnProgram:
    from fedlens_edge_client.engines.program import Program

    return Program(message, raw)


def _pte(message: pb.Program, raw: bytes) -> OwnProgram:
    from fedlens_edge_client.engines.pte import PteProgram
    from fedlens_proto.programs import pte_rules

    try:
        pte_rules.check(raw)
    except ProgramRefused as error:
        raise EngineError(f"program {message.name!r} cannot be used: {error}") from error
    return PteProgram(message, raw)


LOADERS: Mapping[int, Loader] = {pb.PROGRAM_FORMAT_PT2: _pt2, pb.PROGRAM_FORMAT_PTE: _pte}


@dataclass
class _Served:
    """A program and its memory."""

    program: OwnProgram
    tensors: SharedTensors
    arguments: list[Tensor] = field(default_factory=list[Tensor])
    prepared: tuple[Tensor, ...] = ()

    def start(self) -> None:
        """Take the arguments; programs replace them by other tensors, or write over them in place."""
        first = self.tensors.steady | self.tensors.lanes[0].inputs
        self.arguments = [first[i] for i in range(len(self.program.inputs))]
        self.prepared = self.program.prepare(self.arguments)

    def run(self, lane: int) -> None:
        """Run on the batch in a lane."""
        for i, tensor in self.tensors.lanes[lane].inputs.items():
            self.arguments[i] = tensor
        results = self.program.run(self.arguments, self.prepared)
        for i, tensor in self.tensors.lanes[lane].outputs.items():
            tensor.copy_(results[i])
        for source, target in self.program.carried:
            self.arguments[target] = results[source]

    def fetch(self) -> None:
        """Write the arguments that have been replaced."""
        targets = [target for _, target in self.program.carried]
        values = [self.arguments[i].clone() for i in targets]  # they may share memory with one another
        for i, value in zip(targets, values, strict=True):
            self.tensors.steady[i].copy_(value)


def main(arguments: list[str], loaders: Mapping[int, Loader] = LOADERS) -> None:
    """Get ready, confine the process, and answer requests until the other side is gone or stays idle."""
    descriptor, program_format, parent = (int(argument) for argument in arguments[:3])
    die_with(parent)
    with socket.socket(fileno=descriptor) as link:
        link.settimeout(float(arguments[3]) or None)
        torch.set_num_threads(1)
        keep_freed_memory()
        load = loaders[program_format]
        try:
            with torch.inference_mode():
                _warm_up(program_format)
                # What is there stays: Python need not look for cycles in it again and again while programs load.
                gc.collect()
                gc.freeze()
                confine()
        except EngineError as error:
            _reply(link, str(error))
            return
        # What is written reaches the server's operator, and paths have the name of the client's owner in them.
        sys.tracebacklimit = 0
        _reply(link, "")
        # The other side may be gone in the middle of a reply.
        with torch.inference_mode(), suppress(OSError):
            _serve(link, load)


def _warm_up(program_format: int) -> None:
    known.use_operators()
    with torch.inference_mode(False):
        message, raw = known.program(program_format)
    program = LOADERS[program_format](message, raw)
    for value, expected in known.EXPECTED.items():
        inputs = [torch.full(tuple(slot.shape), float(value)) for slot in program.inputs]
        (found,) = program.run(inputs, program.prepare(inputs))
        if not bool((found == expected).all()):
            raise EngineError(f"a known program gives {found.tolist()} where {expected} is right")
    with suppress(Exception):
        LOADERS[program_format](message, raw[: len(raw) // 2])


def _serve(link: socket.socket, load: Loader) -> None:
    programs: dict[int, _Served] = {}
    for kind, number, first, second, descriptors in _requests(link):
        text = ""
        try:
            match kind:
                case Kind.LOAD:
                    programs[number] = _loaded(load, first, second, descriptors)
                case Kind.START:
                    programs[number].start()
                case Kind.RUN:
                    programs[number].run(first)
                case _:
                    programs[number].fetch()
        except EngineError as error:
            text = str(error)
        except MemoryError:
            text = "a program takes more memory than it may"
        except Exception as error:  # whatever a runtime raises for a file that contradicts itself
            text = f"a program cannot be used: {type(error).__name__}: {error}"
        _reply(link, text)


def _loaded(load: Loader, described: int, size: int, descriptors: list[int]) -> _Served:
    file, tensors = descriptors
    with mapped(file, described + size) as whole:
        message, raw = pb.Program.FromString(whole[:described]), whole[described:]
    try:
        program = load(message, raw)
    except BaseException:
        os.close(tensors)
        raise
    return _Served(program, SharedTensors(program, mapped(tensors, shared_bytes(program))))


def _requests(link: socket.socket) -> Iterator[tuple[int, int, int, int, list[int]]]:
    while True:
        found, descriptors = b"", list[int]()
        while len(found) < REQUEST.size:
            more, fresh, _, _ = socket.recv_fds(link, REQUEST.size - len(found), 2)
            if not more:
                return
            found, descriptors = found + more, descriptors + list(fresh)
        yield *REQUEST.unpack(found), descriptors


def _reply(link: socket.socket, text: str) -> None:
    raw = text.encode(errors="replace")[:MAX_TEXT_BYTES]
    link.sendall(REPLY.pack(not raw, len(raw)) + raw)


if __name__ == "__main__":
    main(sys.argv[1:])
