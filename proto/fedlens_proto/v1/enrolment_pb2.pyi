from fedlens_proto.v1 import manifest_pb2 as _manifest_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLIENT_ROLE_UNSPECIFIED: _ClassVar[ClientRole]
    CLIENT_ROLE_TRAINER: _ClassVar[ClientRole]
    CLIENT_ROLE_EVALUATOR: _ClassVar[ClientRole]
CLIENT_ROLE_UNSPECIFIED: ClientRole
CLIENT_ROLE_TRAINER: ClientRole
CLIENT_ROLE_EVALUATOR: ClientRole

class Capabilities(_message.Message):
    __slots__ = ("formats", "bundle_classes", "models", "plan_format", "tables")
    FORMATS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_CLASSES_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FORMAT_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    formats: _containers.RepeatedScalarFieldContainer[_manifest_pb2.ProgramFormat]
    bundle_classes: _containers.RepeatedScalarFieldContainer[_manifest_pb2.BundleClass]
    models: _containers.RepeatedScalarFieldContainer[str]
    plan_format: int
    tables: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, formats: _Optional[_Iterable[_Union[_manifest_pb2.ProgramFormat, str]]] = ..., bundle_classes: _Optional[_Iterable[_Union[_manifest_pb2.BundleClass, str]]] = ..., models: _Optional[_Iterable[str]] = ..., plan_format: _Optional[int] = ..., tables: _Optional[_Iterable[str]] = ...) -> None: ...

class EnrolRequest(_message.Message):
    __slots__ = ("protocol", "enrolment_token", "client_id", "capabilities")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ENROLMENT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    enrolment_token: str
    client_id: bytes
    capabilities: Capabilities
    def __init__(self, protocol: _Optional[int] = ..., enrolment_token: _Optional[str] = ..., client_id: _Optional[bytes] = ..., capabilities: _Optional[_Union[Capabilities, _Mapping]] = ...) -> None: ...

class EnrolResponse(_message.Message):
    __slots__ = ("role",)
    ROLE_FIELD_NUMBER: _ClassVar[int]
    role: ClientRole
    def __init__(self, role: _Optional[_Union[ClientRole, str]] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("protocol",)
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    def __init__(self, protocol: _Optional[int] = ...) -> None: ...

class ForgetResponse(_message.Message):
    __slots__ = ("aggregating",)
    AGGREGATING_FIELD_NUMBER: _ClassVar[int]
    aggregating: bool
    def __init__(self, aggregating: _Optional[bool] = ...) -> None: ...
