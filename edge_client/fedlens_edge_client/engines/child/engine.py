"""The engine whose programs run in a child: this process keeps rows, batches, and the checks of what comes back."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

import torch
from torch import Tensor

from fedlens_edge_client.engines import BundleUnusable, ProgramCrashed
from fedlens_edge_client.engines.child.child import Child
from fedlens_edge_client.engines.child.link import Kind
from fedlens_edge_client.engines.child.shared import Lane, SharedTensors, mapped, shared_bytes, shared_file
from fedlens_edge_client.engines.installed import runtime_version
from fedlens_edge_client.engines.loaded import LoadedProgram, read_intact
from fedlens_edge_client.engines.pte import check_for_phones
from fedlens_edge_client.engines.running import ProgramEngine
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb

_NUMBERS = count()
_MISSING_OPERATOR = re.compile(r"Missing operator: \[\d+\] (\S+)")
_IN_THE_CHILD = torch.empty(0)


class ChildEngine(ProgramEngine):
    """An engine for one thread at a time; if its child ends, the next call takes another one."""

    def __init__(self, bundle: Bundle, program_format: pb.ProgramFormat, take: Callable[[], Child]) -> None:
        """Take a child on first use.

        Args:
            bundle: Whose programs run.
            program_format: Which of them.
            take: Gives a child that has run nothing yet; it may raise an `EngineError`.

        Raises:
            BundleUnusable: The bundle has no programs of that format.
        """
        if program_format == pb.PROGRAM_FORMAT_PTE:
            check_for_phones(bundle.manifest)
        super().__init__(bundle)
        self._format, self._take = program_format, take
        self._child: Child | None = None

    @property
    def program_format(self) -> pb.ProgramFormat:
        """As `Engine.program_format`."""
        return self._format

    def _program(self, name: str) -> LoadedProgram:
        if self._child is None or self._child.has_ended:
            self._programs.clear()
            self._child = self._take()
        return super()._program(name)

    def _load(self, name: str) -> LoadedProgram:
        assert self._child is not None, "`_program` has taken one"
        return ChildProgram(self._child, *read_intact(self._bundle, name, self._format), self._format)


class ChildProgram(LoadedProgram):
    """A program in a child."""

    def __init__(self, child: Child, message: pb.Program, raw: bytes, program_format: pb.ProgramFormat) -> None:
        """Have the child vet and load the file of the program that `message` describes.

        Raises:
            BundleUnusable: The file is refused, contradicts the manifest, or has ended the child.
            RuntimeMissing: The child cannot be started or confined here.
        """
        super().__init__(message, contains_frozen=program_format == pb.PROGRAM_FORMAT_PTE)
        self._child, self._number = child, next(_NUMBERS)
        described = message.SerializeToString(deterministic=True)
        whole, size = described + raw, shared_bytes(self)
        # The child opens nothing: it gets the file's bytes, and memory for the tensors.
        files = [shared_file(len(whole)), shared_file(size)]
        try:
            with mapped(os.dup(files[0]), len(whole)) as memory:
                memory[:] = whole
            self._shared = SharedTensors(self, mapped(os.dup(files[1]), size))
            loading = child.submit(Kind.LOAD, self._number, len(described), len(raw), files)
        finally:
            for descriptor in files:
                os.close(descriptor)
        try:
            child.settle(loading)
        except ProgramCrashed:
            raise
        except BundleUnusable as error:
            raise BundleUnusable(self._explained(str(error), child.said())) from error
        self._frozen: dict[int, Tensor] = {}  # what the child has already

    def runs(self, arguments: list[Tensor], refills: Iterable[object]) -> Iterator[Sequence[Tensor]]:
        """As `LoadedProgram.runs`: the next batch is on its way while the child works on one."""
        # A training that was cancelled may have left a run behind, which would write over what comes now.
        self._child.settle_all()
        for i, tensor in self._shared.steady.items():
            if arguments[i] is not self._frozen.get(i):
                tensor.copy_(arguments[i])
            if self.inputs[i].kind == pb.SLOT_KIND_FROZEN:
                self._frozen[i] = arguments[i]
        started = self._child.submit(Kind.START, self._number)
        under_way: deque[tuple[int, Lane]] = deque()
        lanes = self._shared.lanes
        for number, _ in enumerate(refills):
            place = number % len(lanes)
            lane = lanes[place]
            for i, tensor in lane.inputs.items():
                tensor.copy_(arguments[i])
            under_way.append((self._child.submit(Kind.RUN, self._number, place), lane))
            if len(under_way) == len(lanes):
                yield self._outputs(*under_way.popleft())
        for run, lane in under_way:
            yield self._outputs(run, lane)
        self._child.settle(started)
        if self.carried:
            self._child.settle(self._child.submit(Kind.FETCH, self._number))
            for _, target in self.carried:
                arguments[target] = self._shared.steady[target].clone()

    def _explained(self, failure: str, said: str) -> str:
        """A failure to load, with what the runtime has said beside it."""
        if missing := _MISSING_OPERATOR.search(said):
            return (
                f"program {self.name!r} cannot be used: ExecuTorch {runtime_version()} has no operator {missing[1]}; "
                "install the version that the bundle was exported with, or export it with this one"
            )
        last = "; ".join(said.splitlines()[-2:])
        return f"{failure} ({last})" if last else failure

    def _outputs(self, run: int, lane: Lane) -> Sequence[Tensor]:
        """Copies of what a run gave: the child can still write to the memory."""
        self._child.settle(run)
        given = lane.outputs
        return [given[i].clone() if i in given else _IN_THE_CHILD for i in range(len(self.outputs))]
