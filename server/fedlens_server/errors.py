"""The errors of the server, each with its HTTP status and code.

ServerError
├── Malformed          400  the request cannot be read, or asks for what is not allowed
├── Unauthorised       401  no credential, or an unknown one
├── Forbidden          403  not a member, wrong role, banned
├── Unknown            404  no such thing, or none that this client may see
├── RoundClosed        409  an update after the round
├── UpdateDiffers      409  a second update with other bytes
├── AlreadyFailed      409  an update after the client's failure report
├── TaskDiffers        409  a task with the same name and other content
├── TokenExists        409  a token with the same name
├── TooLarge           413  more bytes than the endpoint accepts
├── WrongMediaType     415  another Content-Type, or a Content-Encoding
├── WrongRange         416  a range outside the blob
├── UpdateInvalid      422  a blob that does not match the local plan
├── SlowDown           429  too many requests at once
├── StorageFull        507  the disk is full
├── Unavailable        503  starting or stopping, or a suspended task
└── StoreUnusable      500  the state folder cannot be opened; the server does not start
"""

from http import HTTPStatus

from fedlens_proto.v1.error_pb2 import RETRY_LATER, RETRY_NEVER, Retry


class ServerError(Exception):
    """A request that fails; the class says what the client must do."""

    status = HTTPStatus.INTERNAL_SERVER_ERROR
    code = "internal"
    retry = RETRY_LATER

    def __init_subclass__(
        cls, status: HTTPStatus = HTTPStatus.INTERNAL_SERVER_ERROR, code: str = "", retry: Retry = RETRY_LATER
    ) -> None:
        """A class without a code of its own is answered as its parent."""
        if code:
            cls.status, cls.code, cls.retry = status, code, retry

    def __init__(self, message: str, retry_after_ms: int = 0) -> None:
        """`message` names what was wrong, what was found and what to do."""
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Malformed(ServerError, status=HTTPStatus.BAD_REQUEST, code="malformed", retry=RETRY_NEVER):
    """The request cannot be read, or a value in it is not allowed; sending it again will not help."""


class Unauthorised(ServerError, status=HTTPStatus.UNAUTHORIZED, code="unauthorised", retry=RETRY_NEVER):
    """No credential or an unknown one; the client must enrol."""


class Forbidden(ServerError, status=HTTPStatus.FORBIDDEN, code="forbidden", retry=RETRY_NEVER):
    """A known client that may not do this; it must give up the assignment."""


class Unknown(ServerError, status=HTTPStatus.NOT_FOUND, code="unknown", retry=RETRY_NEVER):
    """There is no such thing, or none that this client may see."""


class RoundClosed(ServerError, status=HTTPStatus.CONFLICT, code="round-closed", retry=RETRY_NEVER):
    """An update came after its round; the client must drop it."""


class UpdateDiffers(ServerError, status=HTTPStatus.CONFLICT, code="update-differs", retry=RETRY_NEVER):
    """A second update for the same round with other bytes; the first one counts."""


class AlreadyFailed(ServerError, status=HTTPStatus.CONFLICT, code="already-failed", retry=RETRY_NEVER):
    """An update after the client reported a failure, which is final for the round."""


class TaskDiffers(ServerError, status=HTTPStatus.CONFLICT, code="task-differs", retry=RETRY_NEVER):
    """A task with the same name has other content; the operator must choose another name."""


class TokenExists(ServerError, status=HTTPStatus.CONFLICT, code="token-exists", retry=RETRY_NEVER):
    """There is or was a token with the same name; the operator must choose another name."""


class TooLarge(ServerError, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, code="too-large", retry=RETRY_NEVER):
    """More bytes than the endpoint accepts."""


class WrongMediaType(ServerError, status=HTTPStatus.UNSUPPORTED_MEDIA_TYPE, code="wrong-media-type", retry=RETRY_NEVER):
    """A Content-Type that is not the protocol's, or a Content-Encoding."""


class WrongRange(ServerError, status=HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, code="wrong-range", retry=RETRY_NEVER):
    """A range that cannot be read or lies outside the blob; the client must fetch the whole blob."""


class UpdateInvalid(ServerError, status=HTTPStatus.UNPROCESSABLE_ENTITY, code="update-invalid", retry=RETRY_NEVER):
    """A blob that does not match the local plan; the client is excluded from this round."""


class SlowDown(ServerError, status=HTTPStatus.TOO_MANY_REQUESTS, code="slow-down", retry=RETRY_LATER):
    """Too many requests at once; the same one succeeds later."""


class StorageFull(ServerError, status=HTTPStatus.INSUFFICIENT_STORAGE, code="storage-full", retry=RETRY_LATER):
    """The disk is full and nothing was stored; the same request succeeds when there is room."""


class Unavailable(ServerError, status=HTTPStatus.SERVICE_UNAVAILABLE, code="unavailable", retry=RETRY_LATER):
    """The server is starting or stopping, or a task is suspended or busy; the same request succeeds later."""


class StoreUnusable(ServerError, code="store-unusable"):
    """The state folder cannot be opened or written; the server ends, so clients never see this error."""
