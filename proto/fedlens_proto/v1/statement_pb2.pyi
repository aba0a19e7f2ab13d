from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Statement(_message.Message):
    __slots__ = ("manifest", "publisher", "name", "serial", "floor", "audience", "any_app", "not_after")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    AUDIENCE_FIELD_NUMBER: _ClassVar[int]
    ANY_APP_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    publisher: bytes
    name: str
    serial: int
    floor: int
    audience: _containers.RepeatedScalarFieldContainer[str]
    any_app: bool
    not_after: int
    def __init__(self, manifest: _Optional[bytes] = ..., publisher: _Optional[bytes] = ..., name: _Optional[str] = ..., serial: _Optional[int] = ..., floor: _Optional[int] = ..., audience: _Optional[_Iterable[str]] = ..., any_app: _Optional[bool] = ..., not_after: _Optional[int] = ...) -> None: ...

class SignedStatement(_message.Message):
    __slots__ = ("statement", "signature")
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    statement: bytes
    signature: bytes
    def __init__(self, statement: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
