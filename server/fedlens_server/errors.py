"""The errors of the server, each with its HTTP status and code.

ServerError
├── Malformed          400  the request cannot be read
├── Unauthorised       401  no credential, or an unknown one
├── Forbidden          403  not a member, wrong role, revoked
├── Unknown            404  no such thing, or none that this client may see
├── RoundClosed        409  an update after the round
├── UpdateDiffers      409  a second update with other bytes
├── AlreadyFailed      409  an update after the client's failure report
├── TaskDiffers        409  a task with the same name and other content
├── TooLarge           413  more bytes than the endpoint accepts
├── WrongMediaType     415  another Content-Type, or a Content-Encoding
├── WrongRange         416  a range outside the blob
├── UpdateInvalid      422  a blob that does not match the local plan
├── SlowDown           429  too many requests at once
├── StorageFull        507  the disk is full
├── Unavailable        503  starting or stopping
└── StoreUnusable      500  the state folder cannot be opened; the server does not start
"""

from http import HTTPStatus

from fedlens_proto.v1 import error_pb2


class ServerError(Exception):
    """A request that fails; the class says what the client must do."""

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
    """There is no such thing, or none that this client may see."""

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
    """A task with the same name has other content; the operator must choose another name."""

    status = HTTPStatus.CONFLICT
    code = "task-differs"
    retry = error_pb2.RETRY_NEVER


class TooLarge(ServerError):
    """More bytes than the endpoint accepts."""

    status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    code = "too-large"
    retry = error_pb2.RETRY_NEVER


class WrongMediaType(ServerError):
    """A Content-Type that is not the protocol's, or a Content-Encoding."""

    status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    code = "wrong-media-type"
    retry = error_pb2.RETRY_NEVER


class WrongRange(ServerError):
    """A range that cannot be read or lies outside the blob; the client must fetch the whole blob."""

    status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
    code = "wrong-range"
    retry = error_pb2.RETRY_NEVER


class UpdateInvalid(ServerError):
    """A blob that does not match the local plan; the client is excluded from this round."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code = "update-invalid"
    retry = error_pb2.RETRY_NEVER


class SlowDown(ServerError):
    """Too many requests at once; the same one succeeds later."""

    status = HTTPStatus.TOO_MANY_REQUESTS
    code = "slow-down"
    retry = error_pb2.RETRY_LATER


class StorageFull(ServerError):
    """The disk is full and nothing was stored; the same request succeeds when there is room."""

    status = HTTPStatus.INSUFFICIENT_STORAGE
    code = "storage-full"
    retry = error_pb2.RETRY_LATER


class Unavailable(ServerError):
    """The server is starting or stopping; the same request succeeds later."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "unavailable"
    retry = error_pb2.RETRY_LATER


class StoreUnusable(ServerError):
    """The state folder cannot be opened or written; the server ends, so clients never see this error."""

    code = "store-unusable"
