from fedlens_proto.v1 import assignment_pb2 as _assignment_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WaitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_REASON_UNSPECIFIED: _ClassVar[WaitReason]
    WAIT_REASON_POPULATION: _ClassVar[WaitReason]
    WAIT_REASON_NEXT_ROUND: _ClassVar[WaitReason]
    WAIT_REASON_PHASE: _ClassVar[WaitReason]
    WAIT_REASON_NO_TASK: _ClassVar[WaitReason]
    WAIT_REASON_SUPERSEDED: _ClassVar[WaitReason]
    WAIT_REASON_BUSY: _ClassVar[WaitReason]
    WAIT_REASON_STOPPING: _ClassVar[WaitReason]
    WAIT_REASON_REST: _ClassVar[WaitReason]
    WAIT_REASON_NOT_ELIGIBLE: _ClassVar[WaitReason]
    WAIT_REASON_SITS_OUT: _ClassVar[WaitReason]
    WAIT_REASON_PAUSED: _ClassVar[WaitReason]
WAIT_REASON_UNSPECIFIED: WaitReason
WAIT_REASON_POPULATION: WaitReason
WAIT_REASON_NEXT_ROUND: WaitReason
WAIT_REASON_PHASE: WaitReason
WAIT_REASON_NO_TASK: WaitReason
WAIT_REASON_SUPERSEDED: WaitReason
WAIT_REASON_BUSY: WaitReason
WAIT_REASON_STOPPING: WaitReason
WAIT_REASON_REST: WaitReason
WAIT_REASON_NOT_ELIGIBLE: WaitReason
WAIT_REASON_SITS_OUT: WaitReason
WAIT_REASON_PAUSED: WaitReason

class CheckInRequest(_message.Message):
    __slots__ = ("protocol", "task", "num_examples", "hold_ms", "client_version")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    task: int
    num_examples: int
    hold_ms: int
    client_version: int
    def __init__(self, protocol: _Optional[int] = ..., task: _Optional[int] = ..., num_examples: _Optional[int] = ..., hold_ms: _Optional[int] = ..., client_version: _Optional[int] = ...) -> None: ...

class CurrentModel(_message.Message):
    __slots__ = ("task", "bundle", "sets", "rules", "extractors", "statement")
    TASK_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    EXTRACTORS_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    task: int
    bundle: bytes
    sets: _containers.RepeatedCompositeFieldContainer[_assignment_pb2.BlobSet]
    rules: _containers.RepeatedCompositeFieldContainer[_assignment_pb2.Rule]
    extractors: _containers.RepeatedScalarFieldContainer[str]
    statement: bytes
    def __init__(self, task: _Optional[int] = ..., bundle: _Optional[bytes] = ..., sets: _Optional[_Iterable[_Union[_assignment_pb2.BlobSet, _Mapping]]] = ..., rules: _Optional[_Iterable[_Union[_assignment_pb2.Rule, _Mapping]]] = ..., extractors: _Optional[_Iterable[str]] = ..., statement: _Optional[bytes] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("retry_after_ms", "reason", "models", "detail")
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    retry_after_ms: int
    reason: WaitReason
    models: _containers.RepeatedCompositeFieldContainer[CurrentModel]
    detail: str
    def __init__(self, retry_after_ms: _Optional[int] = ..., reason: _Optional[_Union[WaitReason, str]] = ..., models: _Optional[_Iterable[_Union[CurrentModel, _Mapping]]] = ..., detail: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[CurrentModel]
    def __init__(self, models: _Optional[_Iterable[_Union[CurrentModel, _Mapping]]] = ...) -> None: ...

class CheckInResponse(_message.Message):
    __slots__ = ("assignment", "wait", "finished")
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    assignment: _assignment_pb2.Assignment
    wait: Wait
    finished: Finished
    def __init__(self, assignment: _Optional[_Union[_assignment_pb2.Assignment, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...
