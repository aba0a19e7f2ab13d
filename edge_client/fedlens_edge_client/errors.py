"""Errors of this package; the class says what the one who runs the client must do.

EdgeClientError
├── StateError          the state folder cannot be used: another server's, newer, damaged, in use
├── AlbumError          the photo folder cannot be used
├── ModelError          a file is no model, or one of another bundle
├── TransportError
│   ├── Refused         the server said no for good; `code` says why
│   ├── Unreachable     no answer within the time that the caller was ready to wait
│   ├── Untrusted       the server's certificate, or plain HTTP to another machine, is not trusted
│   └── BadAnswer       an answer that is not the protocol: malformed, too long, another digest
├── PassFailed          the assignment is given up; the server is told `reason`
│   └── NoKnownClass    no photo is of a class of the bundle
├── EngineError         in `engines/`
├── PoolUnusable        in `partitions/`: the photos of a study cannot be used
├── Unservable          in `partitions/`: too few photos, or none of the tries gave every client enough
└── BadPartition           in `partitions/`: a setting is wrong
"""

from collections.abc import Iterable

from fedlens_proto.v1 import update_pb2

NAMED = 10


class EdgeClientError(Exception):
    """Something that keeps the client from its work; the message says what, what was found and what to do."""


class StateError(EdgeClientError):
    """The state folder cannot be used; nothing in it was changed."""


class AlbumError(EdgeClientError):
    """The photo folder cannot be used."""


class ModelError(EdgeClientError):
    """A file does not hold weights of the bundle at hand."""


class TransportError(EdgeClientError):
    """A call to the server did not give what it should."""


class Refused(TransportError):
    """The server carries this request out neither now nor later."""

    def __init__(self, code: str, message: str) -> None:
        """`code` and `message` as in the server's answer."""
        super().__init__(f"the server refuses ({code}): {message}")
        self.code = code
        self.reason = message


class Unreachable(TransportError):
    """The server gave no usable answer for as long as the caller was ready to wait."""


class Untrusted(TransportError):
    """The secret would go to someone who has not shown to be the server."""


class BadAnswer(TransportError):
    """Something answered that does not speak the protocol, or not what was asked for came back."""


class PassFailed(EdgeClientError):
    """An assignment cannot be carried out; the round goes on without this client."""

    def __init__(self, reason: update_pb2.FailureReason, detail: str) -> None:
        """`detail` is read by the operator and holds no file name."""
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class NoKnownClass(PassFailed):
    """The album has photos, and none of a class of the bundle.

    Attributes:
        advice: For whoever runs the client; names the album's classes, which the server does not learn.
    """

    def __init__(self, found: Iterable[str], known: Iterable[str]) -> None:
        """`found` are the classes of the album, `known` those of the bundle."""
        super().__init__(update_pb2.FAILURE_REASON_NO_PHOTOS, "no photo is of a class of the bundle")
        self.advice = (
            f"no photo is of a class that the model knows ({_some(known)}); the photos are of {_some(found)}: give "
            "class folders the model's names, or take part in another task"
        )


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:NAMED]) + (f" and {len(listed) - NAMED} more" if len(listed) > NAMED else "")
