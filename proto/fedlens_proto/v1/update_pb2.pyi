from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvaluationMoment(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVALUATION_MOMENT_UNSPECIFIED: _ClassVar[EvaluationMoment]
    EVALUATION_MOMENT_START: _ClassVar[EvaluationMoment]
    EVALUATION_MOMENT_END: _ClassVar[EvaluationMoment]
    EVALUATION_MOMENT_FINE_TUNED: _ClassVar[EvaluationMoment]

class FailureReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_REASON_UNSPECIFIED: _ClassVar[FailureReason]
    FAILURE_REASON_NO_PHOTOS: _ClassVar[FailureReason]
    FAILURE_REASON_BUNDLE: _ClassVar[FailureReason]
    FAILURE_REASON_UNSUPPORTED: _ClassVar[FailureReason]
    FAILURE_REASON_POLICY: _ClassVar[FailureReason]
    FAILURE_REASON_NON_FINITE: _ClassVar[FailureReason]
    FAILURE_REASON_INTERNAL: _ClassVar[FailureReason]
EVALUATION_MOMENT_UNSPECIFIED: EvaluationMoment
EVALUATION_MOMENT_START: EvaluationMoment
EVALUATION_MOMENT_END: EvaluationMoment
EVALUATION_MOMENT_FINE_TUNED: EvaluationMoment
FAILURE_REASON_UNSPECIFIED: FailureReason
FAILURE_REASON_NO_PHOTOS: FailureReason
FAILURE_REASON_BUNDLE: FailureReason
FAILURE_REASON_UNSUPPORTED: FailureReason
FAILURE_REASON_POLICY: FailureReason
FAILURE_REASON_NON_FINITE: FailureReason
FAILURE_REASON_INTERNAL: FailureReason

class EvaluationSums(_message.Message):
    __slots__ = ("moment", "count", "correct", "loss", "confusion")
    MOMENT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    CONFUSION_FIELD_NUMBER: _ClassVar[int]
    moment: EvaluationMoment
    count: int
    correct: int
    loss: float
    confusion: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, moment: _Optional[_Union[EvaluationMoment, str]] = ..., count: _Optional[int] = ..., correct: _Optional[int] = ..., loss: _Optional[float] = ..., confusion: _Optional[_Iterable[int]] = ...) -> None: ...

class UpdateHeader(_message.Message):
    __slots__ = ("protocol", "phase", "bundle", "num_examples", "class_counts", "evaluations", "blob_sha256", "blob_size", "label_distribution")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    BLOB_SHA256_FIELD_NUMBER: _ClassVar[int]
    BLOB_SIZE_FIELD_NUMBER: _ClassVar[int]
    LABEL_DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    phase: int
    bundle: bytes
    num_examples: int
    class_counts: _containers.RepeatedScalarFieldContainer[int]
    evaluations: _containers.RepeatedCompositeFieldContainer[EvaluationSums]
    blob_sha256: bytes
    blob_size: int
    label_distribution: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, protocol: _Optional[int] = ..., phase: _Optional[int] = ..., bundle: _Optional[bytes] = ..., num_examples: _Optional[int] = ..., class_counts: _Optional[_Iterable[int]] = ..., evaluations: _Optional[_Iterable[_Union[EvaluationSums, _Mapping]]] = ..., blob_sha256: _Optional[bytes] = ..., blob_size: _Optional[int] = ..., label_distribution: _Optional[_Iterable[float]] = ...) -> None: ...

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
