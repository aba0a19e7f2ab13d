"""Errors of this package; the class tells the operator of the client what to do.

EdgeClientError
├── StateError          the state folder cannot be used: another server's, newer, damaged, in use
├── AlbumError          the photo folder cannot be used
├── ModelError          a file holds no model, or a model of another bundle
├── TransportError
│   ├── Refused         the server rejects the request for good; `code` tells the reason
│   ├── Unreachable     no usable response within the time that the caller allowed
│   ├── Untrusted       the server's certificate, or plain HTTP to another machine, is not trusted
│   └── BadResponse     a response violates the protocol: malformed, too long, wrong digest
├── AssignmentFailed    the client gives the assignment up and tells the server `reason`
│   └── NoKnownClass    no photo is of a class of the bundle
├── EngineError         in `engines/`
├── PoolUnusable        in `emulation/partitions/`: the photos of a study cannot be used
├── Unservable          in `emulation/partitions/`: too few photos, or no draw gave every client enough
└── BadPartition        in `emulation/partitions/`: a setting is wrong
"""

from collections.abc import Iterable, Sequence
from typing import Self

from fedlens_proto.v1 import update_pb2


def abbreviated(names: Sequence[str], most: int) -> str:
    """The first names of a list, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class EdgeClientError(Exception):
    """An error that keeps the client from its work; the text says what is wrong, what was found and what to do."""


class StateError(EdgeClientError):
    """The state folder cannot be used; nothing in it was changed."""


class AlbumError(EdgeClientError):
    """The photo folder cannot be used."""


class ModelError(EdgeClientError):
    """A file does not hold weights of the given bundle."""


class TransportError(EdgeClientError):
    """A call to the server failed."""


class Refused(TransportError):
    """The server rejects this request now and later."""

    def __init__(self, code: str, message: str) -> None:
        """`code` and `message` as in the server's response."""
        super().__init__(f"the server refuses ({code}): {message}")
        self.code = code
        self.reason = message


class Unreachable(TransportError):
    """The server gave no usable response within the time that the caller allowed."""


class Untrusted(TransportError):
    """The secret would go to a machine that has not proved to be the server."""


class BadResponse(TransportError):
    """A response violates the protocol, or does not fit the request."""


class AssignmentFailed(EdgeClientError):
    """An assignment cannot be carried out; the round continues without this client."""

    def __init__(self, reason: update_pb2.FailureReason, detail: str) -> None:
        """The operator of the server reads `detail`; it must contain no file name."""
        super().__init__(detail)
        self.reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[update_pb2.FailureReason, str]]:
        """For another process."""
        return type(self), (self.reason, str(self))


class NoKnownClass(AssignmentFailed):
    """The album has photos, but none of a class of the bundle.

    Attributes:
        advice: For the operator of the client; names the album's classes, which the server does not learn.
    """

    def __init__(self, found: Iterable[str], known: Iterable[str]) -> None:
        """`found` are the classes of the album, `known` those of the bundle."""
        super().__init__(update_pb2.FAILURE_REASON_NO_PHOTOS, "no photo is of a class of the bundle")
        classes, labels = (abbreviated(sorted(names), 10) for names in (known, found))
        self.advice = (
            f"no photo is of a class that the model knows ({classes}); the photos are of {labels}: give class folders "
            "the model's names, or take part in another task"
        )
