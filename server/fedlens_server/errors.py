"""Everything a request can fail with, and how each becomes an answer: the one table of codes.

ServerError
├── Malformed          400  the request cannot be read
├── Unauthorised       401  no credential, or one that nobody enrolled with
├── Forbidden          403  not a member, wrong role, revoked
├── Unknown            404  no such thing, or nothing this client may know of
├── RoundClosed        409  an update after the round
├── UpdateDiffers      409  a second update with other bytes
├── AlreadyFailed      409  an update after the client's failure report
├── TaskDiffers        409  a task of that name with other content
├── TooLarge           413  more bytes than the endpoint takes
├── WrongMediaType     415  another Content-Type, or a Content-Encoding
├── WrongRange         416  a range outside of the blob
├── UpdateInvalid      422  a blob that is not what was asked for
├── SlowDown           429  too many requests at once
├── StorageFull        507  no room to store it
├── Unavailable        503  starting or stopping
└── StoreUnusable      500  the state folder cannot be opened; the server does not start
"""

from http import HTTPStatus

from fedlens_proto.v1 import error_pb2


class ServerError(Exception):
    """A request that is not carried out; the class says what the client must do."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal"
    retry = error_pb2.RETRY_LATER

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        """`message` names what was wrong, what was found and what to do."""
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Malformed(ServerError):
    """The request cannot be read; sending it again will not help."""

    status = HTTPStatus.BAD_REQUEST
    code = "malformed"
    retry = error_pb2.RETRY_NEVER


class Unauthorised(ServerError):
    """No credential or an unknown one; the client must enrol."""

    status = HTTPStatus.UNAUTHORIZED
    code = "unauthorised"
    retry = error_pb2.RETRY_NEVER


class Forbidden(ServerError):
    """A known client that may not do this; it must give up the assignment."""

    status = HTTPStatus.FORBIDDEN
    code = "forbidden"
    retry = error_pb2.RETRY_NEVER


class Unknown(ServerError):
    """There is no such thing, or none that this client may know of."""

    status = HTTPStatus.NOT_FOUND
    code = "unknown"
    retry = error_pb2.RETRY_NEVER


class RoundClosed(ServerError):
    """An update came after its round; the client must drop it."""

    status = HTTPStatus.CONFLICT
    code = "round-closed"
    retry = error_pb2.RETRY_NEVER


class UpdateDiffers(ServerError):
    """A second update for the same round with other bytes; the first one counts."""

    status = HTTPStatus.CONFLICT
    code = "update-differs"
    retry = error_pb2.RETRY_NEVER


class AlreadyFailed(ServerError):
    """An update after the client reported a failure, which is final for the round."""

    status = HTTPStatus.CONFLICT
    code = "already-failed"
    retry = error_pb2.RETRY_NEVER


class TaskDiffers(ServerError):
    """There is a task of that name with other content; the operator must choose another name."""

    status = HTTPStatus.CONFLICT
    code = "task-differs"
    retry = error_pb2.RETRY_NEVER


class TooLarge(ServerError):
    """More bytes than the endpoint takes."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "too-large"
    retry = error_pb2.RETRY_NEVER


class WrongMediaType(ServerError):
    """Another Content-Type than the protocol's, or a Content-Encoding."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code = "wrong-media-type"
    retry = error_pb2.RETRY_NEVER


class WrongRange(ServerError):
    """A range that cannot be read or lies outside of the blob; fetch the whole."""

    status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    code = "wrong-range"
    retry = error_pb2.RETRY_NEVER


class UpdateInvalid(ServerError):
    """A blob that is not what was asked for; the client is left out of this round."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code = "update-invalid"
    retry = error_pb2.RETRY_NEVER


class SlowDown(ServerError):
    """Too many requests at once; the same one succeeds later."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "slow-down"
    retry = error_pb2.RETRY_LATER


class StorageFull(ServerError):
    """The server has no room; nothing was stored, the same request succeeds when there is."""

    status = HTTPStatus.INSUFFICIENT_STORAGE
    code = "storage-full"
    retry = error_pb2.RETRY_LATER


class Unavailable(ServerError):
    """The server is starting or stopping; the same request succeeds later."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "unavailable"
    retry = error_pb2.RETRY_LATER


class StoreUnusable(ServerError):
    """The state folder cannot be opened, or written any more; the server ends, so no client ever sees this."""

    code = "store-unusable"
