"""The protocol over HTTP."""

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How a request is tried again: waits grow exponentially, with full jitter.

    Attributes:
        first_s: Upper bound of the first wait.
        most_s: Upper bound of every wait.
        give_up_after_s: Then `Unreachable` is raised; None never gives up.
    """

    first_s: float = 0.5
    most_s: float = 30.0
    give_up_after_s: float | None = None


class HttpTransport:
    """A `Transport` to a server's address."""

    def __init__(
        self,
        server: str,
        secret: bytes,
        *,
        ca: Path | None = None,
        ssl_context: ssl.SSLContext | None = None,
        backoff: Backoff | None = None,
        on_retry: Callable[[str, float, int], None] | None = None,
    ) -> None:
        """Nothing is opened before the first call.

        Args:
            server: Such as `https://fl.example.org:8443`; plain HTTP is for this machine only.
            secret: 32 bytes, from which the client's id follows.
            ca: Certificates (PEM) to trust instead of the system's.
            ssl_context: Instead of one made from `ca`, so that many transports can share it.
            backoff: How failed requests are repeated.
            on_retry: Called with the reason, the wait in seconds and the number of the attempt that failed.
        """
