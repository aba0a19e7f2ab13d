from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Retry(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETRY_UNSPECIFIED: _ClassVar[Retry]
    RETRY_NEVER: _ClassVar[Retry]
    RETRY_NOW: _ClassVar[Retry]
    RETRY_LATER: _ClassVar[Retry]
RETRY_UNSPECIFIED: Retry
RETRY_NEVER: Retry
RETRY_NOW: Retry
RETRY_LATER: Retry

class Error(_message.Message):
    __slots__ = ("code", "message", "retry", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retry: Retry
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retry: _Optional[_Union[Retry, str]] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...
