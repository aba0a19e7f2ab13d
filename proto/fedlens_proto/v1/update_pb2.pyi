from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_REASON_UNSPECIFIED: _ClassVar[FailureReason]
    FAILURE_REASON_NO_PHOTOS: _ClassVar[FailureReason]
    FAILURE_REASON_BUNDLE: _ClassVar[FailureReason]
    FAILURE_REASON_UNSUPPORTED: _ClassVar[FailureReason]
    FAILURE_REASON_POLICY: _ClassVar[FailureReason]
    FAILURE_REASON_NON_FINITE: _ClassVar[FailureReason]
    FAILURE_REASON_INTERNAL: _ClassVar[FailureReason]
FAILURE_REASON_UNSPECIFIED: FailureReason
FAILURE_REASON_NO_PHOTOS: FailureReason
FAILURE_REASON_BUNDLE: FailureReason
FAILURE_REASON_UNSUPPORTED: FailureReason
FAILURE_REASON_POLICY: FailureReason
FAILURE_REASON_NON_FINITE: FailureReason
FAILURE_REASON_INTERNAL: FailureReason

class EvaluationSums(_message.Message):
    __slots__ = ("label", "count", "correct", "loss", "confusion")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    CONFUSION_FIELD_NUMBER: _ClassVar[int]
    label: str
    count: int
    correct: int
    loss: float
    confusion: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, label: _Optional[str] = ..., count: _Optional[int] = ..., correct: _Optional[int] = ..., loss: _Optional[float] = ..., confusion: _Optional[_Iterable[int]] = ...) -> None: ...

class UploadedBlob(_message.Message):
    __slots__ = ("name", "sha256", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: bytes
    size: int
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("protocol", "phase", "bundle", "num_examples", "class_counts", "evaluations", "uploads", "label_distribution")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    LABEL_DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    phase: int
    bundle: bytes
    num_examples: int
    class_counts: _containers.RepeatedScalarFieldContainer[int]
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationSums]
    uploads: _containers.RepeatedCompositeFieldContainer[UploadedBlob]
    label_distribution: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, protocol: _Optional[int] = ..., phase: _Optional[int] = ..., bundle: _Optional[bytes] = ..., num_examples: _Optional[int] = ..., class_counts: _Optional[_Iterable[int]] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationSums, _Mapping]]] = ..., uploads: _Optional[_Iterable[_Union[UploadedBlob, _Mapping]]] = ..., label_distribution: _Optional[_Iterable[float]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("body_sha256",)
    BODY_SHA256_FIELD_NUMBER: _ClassVar[int]
    body_sha256: bytes
    def __init__(self, body_sha256: _Optional[bytes] = ...) -> None: ...

class FailureRequest(_message.Message):
    __slots__ = ("protocol", "reason", "detail")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    reason: FailureReason
    detail: str
    def __init__(self, protocol: _Optional[int] = ..., reason: _Optional[_Union[FailureReason, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class FailureResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
