"""Responses to requests: messages and errors, in the API all of them protobuf, errors in one place."""

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from google.protobuf.message import Message

from fedlens_proto.errors import WireError
from fedlens_proto.v1 import error_pb2
from fedlens_proto.wire import MEDIA_TYPE
from fedlens_server.errors import Malformed, ServerError, TooLarge, Unknown
from fedlens_server.http.service import SIDE
from fedlens_server.telemetry import events
from fedlens_server.telemetry.events import Event

INTERNAL_RETRY_MS = 5_000
API = "/v1/"
"""The start of the paths whose answers programs read."""
_log = logging.getLogger(__name__)


def message(body: Message) -> web.Response:
    """The response to a request that succeeded."""
    return web.Response(body=body.SerializeToString(), content_type=MEDIA_TYPE)


def error(fault: ServerError, path: str = API) -> web.Response:
    """The response that tells the client what was wrong and whether to come back; outside of the API people read it."""
    if not path.startswith(API):
        return web.Response(status=fault.status, text=f"{fault}\n")
    body = error_pb2.Error(
        code=fault.code, message=str(fault), retry=fault.retry, retry_after_ms=fault.retry_after_ms
    ).SerializeToString()
    return web.Response(status=fault.status, body=body, content_type=MEDIA_TYPE)


@web.middleware
async def errors_as_messages(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn all that a handler raises into an `Error` message, or a text outside of the API."""
    try:
        return await handler(request)
    except ServerError as fault:
        return refusal(request, fault)
    except web.HTTPException as fault:
        return refusal(request, of_framework(request, fault), fault.reason)  # its text quotes the path that was sent
    except (ConnectionError, web.RequestPayloadError) as fault:
        if isinstance(fault, ConnectionError) or request.transport is None or request.transport.is_closing():
            # The client is gone or given up. Over TLS, to close its connection would wait until it says goodbye.
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError from fault
        return refusal(request, Malformed(f"the body cannot be read: {fault}"), type(fault).__name__)
    except WireError as fault:
        return refusal(request, Malformed(str(fault)))
    except Exception as fault:
        _log.error("a request failed", exc_info=fault)
        _count(failed := _failed())
        return error(failed, request.path)


def _count(fault: ServerError) -> None:
    if (seen := events.REQUEST.get()) is not None:
        seen.code = fault.code


def note_refusal(fault: ServerError, reason: str = "") -> None:
    """Tell log and metrics what the present request gets; `reason` stands in the log for the error's own text."""
    events.note(Event.REFUSED, code=fault.code, reason=reason or str(fault))
    _count(fault)


def refusal(request: web.Request, fault: ServerError, reason: str = "") -> web.Response:
    """As `error`, told by `note_refusal`."""
    note_refusal(fault, reason)
    return error(fault, request.path)


def of_framework(request: web.Request, fault: web.HTTPException) -> ServerError:
    """The error of this server for one of aiohttp's."""
    if fault.status in (404, 405):
        is_elsewhere = request.path.startswith(f"{API}admin/") and request.app.get(SIDE) == "clients"
        where = "; this address is for clients, operators have another" if is_elsewhere else ""
        return Unknown(f"there is no {request.method} {request.path} here{where}")
    if fault.status == 413:
        return TooLarge(f"more bytes than {request.method} {request.path} takes")
    return Malformed(f"the request cannot be served: {fault.reason}")


def _failed() -> ServerError:
    return ServerError("the server failed; its log says why", INTERNAL_RETRY_MS)


class Connection(RequestHandler):
    """A connection that answers also malformed HTTP with an `Error` message, and never logs its bytes."""

    __slots__ = ("awaits_stranger",)

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take what aiohttp gives its own."""
        super().__init__(*args, **options)
        self.awaits_stranger = False
        """True while a request is read whose body alone says who sends it."""

    @property
    def is_idle(self) -> bool:
        """True if no request has begun whose answer is not sent, or only one of nobody knows whom."""
        return self.awaits_stranger or (self._current_request is None and not self._messages)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """As in aiohttp, for requests that reach no handler; parser errors quote headers, so they are not repeated."""
        if isinstance(exc, ConnectionError):
            raise exc
        if request.writer.output_size > 0:
            raise ConnectionResetError("the response has begun")
        if isinstance(exc, UnicodeEncodeError):  # aiohttp quotes an Expect header that it does not know, also no text
            status = HTTPStatus.BAD_REQUEST
        if status >= 500:
            _log.error("a request failed outside its handler", exc_info=exc)
            response = error(_failed())
        else:
            events.note(Event.NOT_HTTP, error=type(exc).__name__, address=request.remote or "")
            response = error(Malformed(f"this is no HTTP request that can be read ({type(exc).__name__})"))
        response.force_close()
        return response

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  (aiohttp's signature)
        """Close the connection; a request that is still being answered after `timeout` seconds is cut off.

        aiohttp waits twice for so long, and without end for 0 seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await super().shutdown(None)
        except TimeoutError:
            if self._task_handler is not None:
                self._task_handler.cancel()
            self.force_close()
