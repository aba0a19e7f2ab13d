"""The children of one client: one that works for the present bundle, and one that waits."""

from collections.abc import Callable
from functools import partial
from typing import Protocol

from fedlens_edge_client.engines import BundleUnusable, Engine
from fedlens_edge_client.engines.child.child import PROCESS, Child
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb


class CrashLog(Protocol):
    """How often each bundle has ended a child."""

    def refusal(self, bundle: bytes) -> str:
        """The reason not to run the bundle with this digest now; empty: it may run."""
        ...

    def note(self, bundle: bytes) -> str:
        """Count one more end of a child; a text that says what follows from it."""
        ...


class Children:
    """Gives each bundle a child that has run nothing before: a hostile program may own what it has run in."""

    def __init__(
        self,
        program_format: pb.ProgramFormat,
        crashes: CrashLog,
        check: Callable[[], None],
        process: str = PROCESS,
    ) -> None:
        """Start the first child, which waits for a bundle.

        Args:
            program_format: Of the programs to run.
            crashes: Counts children that bundles have ended.
            check: Called while a child works; what it raises ends the child and reaches the caller.
            process: As in `Child`.
        """
        self._format, self._crashes = program_format, crashes
        self._start = partial(Child, program_format, process=process, check=check)
        self._waiting: Child | None = self._start()
        self._working: Child | None = None
        self._bundle = b""

    def engine(self, bundle: Bundle) -> Engine:
        """The engine of a bundle; it replaces the one before.

        Raises:
            BundleUnusable: The bundle has ended children, and must wait or never run again.
        """
        # This imports torch, while the child does the same.
        from fedlens_edge_client.engines.child.engine import ChildEngine

        self._check(bundle)
        return ChildEngine(bundle, self._format, partial(self._take, bundle))

    def close(self) -> None:
        """End all children."""
        for child in (self._working, self._waiting):
            if child is not None:
                child.end()
        self._working = self._waiting = None

    def _check(self, bundle: Bundle) -> None:
        if refusal := self._crashes.refusal(bundle.id):
            raise BundleUnusable(refusal)

    def _take(self, bundle: Bundle) -> Child:
        self._check(bundle)
        if self._working is not None:
            self._working.end()
        child = self._working = self._waiting or self._start()
        # A waiting child takes hundreds of megabytes: most clients have one bundle for long, and need no other child.
        changes = self._bundle not in (b"", bundle.id)
        self._bundle, self._waiting = bundle.id, self._start() if changes else None
        child.on_lost = partial(self._lost, bundle.id)
        return child

    def _lost(self, bundle: bytes) -> str:
        self._waiting = self._waiting or self._start()
        return self._crashes.note(bundle)
