"""The client that an app embeds: everything from a check-in to a receipt."""

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Self

from fedlens_edge_client.album import Album
from fedlens_edge_client.engines import Engine
from fedlens_edge_client.events import Event, RoundFailed, RoundRefused, RoundReported, TasksFinished
from fedlens_edge_client.policy import Policy
from fedlens_edge_client.transport import Transport
from fedlens_proto.manifest import Bundle

DEFAULT_CACHE_BYTES = 2 << 30
DEFAULT_HOLD_MS = 25_000

Outcome = RoundReported | RoundFailed | RoundRefused | TasksFinished


class EdgeClient:
    """One member of a federation."""

    def __init__(
        self,
        server: str,
        state: Path,
        album: Album,
        *,
        enrolment_token: str | None = None,
        ca: Path | None = None,
        task: int | None = None,
        policy: Policy | None = None,
        on_event: Callable[[Event], None] | None = None,
        secret: bytes | None = None,
        transport: Transport | None = None,
        engine_factory: Callable[[Bundle], Engine] | None = None,
        cache: Path | None = None,
        max_cache_bytes: int = DEFAULT_CACHE_BYTES,
        executor: Executor | None = None,
        hold_ms: int = DEFAULT_HOLD_MS,
    ) -> None:
        """Nothing is opened before `async with`.

        Args:
            server: Such as `https://fl.example.org:8443`.
            state: Folder for what must outlive the process; bound to this server, used by one process at a time.
            album: Where the photos come from.
            enrolment_token: Needed until the server knows this client.
            ca: Certificates (PEM) to trust instead of the system's.
            task: Take work of this task alone.
            policy: What the server may learn.
            on_event: Called with everything that happens.
            secret: 32 bytes that make this client's identity, instead of those in the state folder.
            transport: Instead of HTTP to `server`; it must use the same `secret`. Closed with the client.
            engine_factory: Makes the engine for a bundle; the default runs its programs with torch.
            cache: Folder for what can be fetched or computed again, which several clients may share.
            max_cache_bytes: Beyond this the least recently used files of `cache` are deleted.
            executor: Where photos are read and models trained; the default is one thread of its own.
            hold_ms: How long the server may keep a check-in waiting for work.
        """

    async def __aenter__(self) -> Self:
        """Open the state folder."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close everything."""

    async def run(self) -> None:
        """Take part in round after round until every task has ended."""

    async def run_once(self) -> Outcome:
        """Take part in one round, waiting for it if need be."""
        raise NotImplementedError

    async def forget(self) -> bool:
        """Have the server delete everything about this client; it cannot enrol with this identity again."""
        raise NotImplementedError
