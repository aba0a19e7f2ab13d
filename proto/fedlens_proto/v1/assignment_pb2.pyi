from fedlens_proto.v1 import manifest_pb2 as _manifest_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CODEC_UNSPECIFIED: _ClassVar[Codec]
    CODEC_FLOAT32: _ClassVar[Codec]
    CODEC_FLOAT16: _ClassVar[Codec]
    CODEC_INT8: _ClassVar[Codec]

class Answer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ANSWER_UNSPECIFIED: _ClassVar[Answer]
    ANSWER_UPDATE: _ClassVar[Answer]
    ANSWER_EVALUATION: _ClassVar[Answer]
CODEC_UNSPECIFIED: Codec
CODEC_FLOAT32: Codec
CODEC_FLOAT16: Codec
CODEC_INT8: Codec
ANSWER_UNSPECIFIED: Answer
ANSWER_UPDATE: Answer
ANSWER_EVALUATION: Answer

class TensorSelector(_message.Message):
    __slots__ = ("names", "kinds", "roles")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[_manifest_pb2.TensorKind]
    roles: _containers.RepeatedScalarFieldContainer[_manifest_pb2.TensorRole]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[_Union[_manifest_pb2.TensorKind, str]]] = ..., roles: _Optional[_Iterable[_Union[_manifest_pb2.TensorRole, str]]] = ...) -> None: ...

class SetSource(_message.Message):
    __slots__ = ("kept", "download")
    KEPT_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    kept: str
    download: str
    def __init__(self, kept: _Optional[str] = ..., download: _Optional[str] = ...) -> None: ...

class StartRule(_message.Message):
    __slots__ = ("tensors", "source")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    tensors: TensorSelector
    source: SetSource
    def __init__(self, tensors: _Optional[_Union[TensorSelector, _Mapping]] = ..., source: _Optional[_Union[SetSource, _Mapping]] = ...) -> None: ...

class ReferenceBinding(_message.Message):
    __slots__ = ("name", "start", "set", "label_counts")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    LABEL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    start: bool
    set: SetSource
    label_counts: bool
    def __init__(self, name: _Optional[str] = ..., start: _Optional[bool] = ..., set: _Optional[_Union[SetSource, _Mapping]] = ..., label_counts: _Optional[bool] = ...) -> None: ...

class HyperValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("program", "epochs", "steps", "hyper_values")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    HYPER_VALUES_FIELD_NUMBER: _ClassVar[int]
    program: str
    epochs: int
    steps: int
    hyper_values: _containers.RepeatedCompositeFieldContainer[HyperValue]
    def __init__(self, program: _Optional[str] = ..., epochs: _Optional[int] = ..., steps: _Optional[int] = ..., hyper_values: _Optional[_Iterable[_Union[HyperValue, _Mapping]]] = ...) -> None: ...

class Keep(_message.Message):
    __slots__ = ("set", "tensors")
    SET_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    set: str
    tensors: TensorSelector
    def __init__(self, set: _Optional[str] = ..., tensors: _Optional[_Union[TensorSelector, _Mapping]] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("tensors", "codec", "base_set")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    BASE_SET_FIELD_NUMBER: _ClassVar[int]
    tensors: TensorSelector
    codec: Codec
    base_set: str
    def __init__(self, tensors: _Optional[_Union[TensorSelector, _Mapping]] = ..., codec: _Optional[_Union[Codec, str]] = ..., base_set: _Optional[str] = ...) -> None: ...

class ClassCounts(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LabelDistribution(_message.Message):
    __slots__ = ("epsilon",)
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    def __init__(self, epsilon: _Optional[float] = ...) -> None: ...

class Confusion(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClientStatistic(_message.Message):
    __slots__ = ("class_counts", "label_distribution", "confusion")
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LABEL_DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    CONFUSION_FIELD_NUMBER: _ClassVar[int]
    class_counts: ClassCounts
    label_distribution: LabelDistribution
    confusion: Confusion
    def __init__(self, class_counts: _Optional[_Union[ClassCounts, _Mapping]] = ..., label_distribution: _Optional[_Union[LabelDistribution, _Mapping]] = ..., confusion: _Optional[_Union[Confusion, _Mapping]] = ...) -> None: ...

class EvaluationPlan(_message.Message):
    __slots__ = ("at_start", "at_end", "fine_tuning")
    AT_START_FIELD_NUMBER: _ClassVar[int]
    AT_END_FIELD_NUMBER: _ClassVar[int]
    FINE_TUNING_FIELD_NUMBER: _ClassVar[int]
    at_start: bool
    at_end: bool
    fine_tuning: _containers.RepeatedCompositeFieldContainer[Stage]
    def __init__(self, at_start: _Optional[bool] = ..., at_end: _Optional[bool] = ..., fine_tuning: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ...) -> None: ...

class LocalPlan(_message.Message):
    __slots__ = ("start", "references", "stages", "keep", "upload", "statistics", "evaluation", "extractors")
    START_FIELD_NUMBER: _ClassVar[int]
    REFERENCES_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    EXTRACTORS_FIELD_NUMBER: _ClassVar[int]
    start: _containers.RepeatedCompositeFieldContainer[StartRule]
    references: _containers.RepeatedCompositeFieldContainer[ReferenceBinding]
    stages: _containers.RepeatedCompositeFieldContainer[Stage]
    keep: _containers.RepeatedCompositeFieldContainer[Keep]
    upload: Upload
    statistics: _containers.RepeatedCompositeFieldContainer[ClientStatistic]
    evaluation: EvaluationPlan
    extractors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, start: _Optional[_Iterable[_Union[StartRule, _Mapping]]] = ..., references: _Optional[_Iterable[_Union[ReferenceBinding, _Mapping]]] = ..., stages: _Optional[_Iterable[_Union[Stage, _Mapping]]] = ..., keep: _Optional[_Iterable[_Union[Keep, _Mapping]]] = ..., upload: _Optional[_Union[Upload, _Mapping]] = ..., statistics: _Optional[_Iterable[_Union[ClientStatistic, _Mapping]]] = ..., evaluation: _Optional[_Union[EvaluationPlan, _Mapping]] = ..., extractors: _Optional[_Iterable[str]] = ...) -> None: ...

class Difference(_message.Message):
    __slots__ = ("sha256", "size", "base")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size: int
    base: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., base: _Optional[bytes] = ...) -> None: ...

class BlobSet(_message.Message):
    __slots__ = ("name", "sha256", "size", "difference")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: bytes
    size: int
    difference: Difference
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size: _Optional[int] = ..., difference: _Optional[_Union[Difference, _Mapping]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("task", "round", "phase", "bundle", "seed", "time_left_ms", "sets", "local_plan", "answer")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PLAN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    task: int
    round: int
    phase: int
    bundle: bytes
    seed: bytes
    time_left_ms: int
    sets: _containers.RepeatedCompositeFieldContainer[BlobSet]
    local_plan: LocalPlan
    answer: Answer
    def __init__(self, task: _Optional[int] = ..., round: _Optional[int] = ..., phase: _Optional[int] = ..., bundle: _Optional[bytes] = ..., seed: _Optional[bytes] = ..., time_left_ms: _Optional[int] = ..., sets: _Optional[_Iterable[_Union[BlobSet, _Mapping]]] = ..., local_plan: _Optional[_Union[LocalPlan, _Mapping]] = ..., answer: _Optional[_Union[Answer, str]] = ...) -> None: ...
