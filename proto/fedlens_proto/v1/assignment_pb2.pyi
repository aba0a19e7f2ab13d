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

class Rows(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROWS_UNSPECIFIED: _ClassVar[Rows]
    ROWS_TRAIN: _ClassVar[Rows]
    ROWS_VALIDATION: _ClassVar[Rows]
    ROWS_PUBLIC: _ClassVar[Rows]
CODEC_UNSPECIFIED: Codec
CODEC_FLOAT32: Codec
CODEC_FLOAT16: Codec
CODEC_INT8: Codec
ANSWER_UNSPECIFIED: Answer
ANSWER_UPDATE: Answer
ANSWER_EVALUATION: Answer
ROWS_UNSPECIFIED: Rows
ROWS_TRAIN: Rows
ROWS_VALIDATION: Rows
ROWS_PUBLIC: Rows

class TensorSelector(_message.Message):
    __slots__ = ("names", "kinds", "roles")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    kinds: _containers.RepeatedScalarFieldContainer[_manifest_pb2.TensorKind]
    roles: _containers.RepeatedScalarFieldContainer[_manifest_pb2.TensorRole]
    def __init__(self, names: _Optional[_Iterable[str]] = ..., kinds: _Optional[_Iterable[_Union[_manifest_pb2.TensorKind, str]]] = ..., roles: _Optional[_Iterable[_Union[_manifest_pb2.TensorRole, str]]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("state", "value", "download", "label_counts")
    STATE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DOWNLOAD_FIELD_NUMBER: _ClassVar[int]
    LABEL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    state: str
    value: str
    download: str
    label_counts: bool
    def __init__(self, state: _Optional[str] = ..., value: _Optional[str] = ..., download: _Optional[str] = ..., label_counts: _Optional[bool] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("tensors", "source")
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    tensors: TensorSelector
    source: Source
    def __init__(self, tensors: _Optional[_Union[TensorSelector, _Mapping]] = ..., source: _Optional[_Union[Source, _Mapping]] = ...) -> None: ...

class Binding(_message.Message):
    __slots__ = ("reference", "source")
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    reference: str
    source: Source
    def __init__(self, reference: _Optional[str] = ..., source: _Optional[_Union[Source, _Mapping]] = ...) -> None: ...

class HyperValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Assemble(_message.Message):
    __slots__ = ("rules",)
    RULES_FIELD_NUMBER: _ClassVar[int]
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    def __init__(self, rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ...) -> None: ...

class Train(_message.Message):
    __slots__ = ("program", "start", "epochs", "steps", "hyper_values", "bindings", "rows")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    HYPER_VALUES_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    program: str
    start: str
    epochs: int
    steps: int
    hyper_values: _containers.RepeatedCompositeFieldContainer[HyperValue]
    bindings: _containers.RepeatedCompositeFieldContainer[Binding]
    rows: Rows
    def __init__(self, program: _Optional[str] = ..., start: _Optional[str] = ..., epochs: _Optional[int] = ..., steps: _Optional[int] = ..., hyper_values: _Optional[_Iterable[_Union[HyperValue, _Mapping]]] = ..., bindings: _Optional[_Iterable[_Union[Binding, _Mapping]]] = ..., rows: _Optional[_Union[Rows, str]] = ...) -> None: ...

class Derive(_message.Message):
    __slots__ = ("program", "hyper_values", "bindings", "rows")
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    HYPER_VALUES_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    program: str
    hyper_values: _containers.RepeatedCompositeFieldContainer[HyperValue]
    bindings: _containers.RepeatedCompositeFieldContainer[Binding]
    rows: Rows
    def __init__(self, program: _Optional[str] = ..., hyper_values: _Optional[_Iterable[_Union[HyperValue, _Mapping]]] = ..., bindings: _Optional[_Iterable[_Union[Binding, _Mapping]]] = ..., rows: _Optional[_Union[Rows, str]] = ...) -> None: ...

class Instruction(_message.Message):
    __slots__ = ("value", "assemble", "train", "derive")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ASSEMBLE_FIELD_NUMBER: _ClassVar[int]
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    DERIVE_FIELD_NUMBER: _ClassVar[int]
    value: str
    assemble: Assemble
    train: Train
    derive: Derive
    def __init__(self, value: _Optional[str] = ..., assemble: _Optional[_Union[Assemble, _Mapping]] = ..., train: _Optional[_Union[Train, _Mapping]] = ..., derive: _Optional[_Union[Derive, _Mapping]] = ...) -> None: ...

class Keep(_message.Message):
    __slots__ = ("state", "value", "tensors")
    STATE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    state: str
    value: str
    tensors: TensorSelector
    def __init__(self, state: _Optional[str] = ..., value: _Optional[str] = ..., tensors: _Optional[_Union[TensorSelector, _Mapping]] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("name", "value", "tensors", "codec", "base")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    tensors: TensorSelector
    codec: Codec
    base: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., tensors: _Optional[_Union[TensorSelector, _Mapping]] = ..., codec: _Optional[_Union[Codec, str]] = ..., base: _Optional[str] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("label", "value", "program", "bindings")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    BINDINGS_FIELD_NUMBER: _ClassVar[int]
    label: str
    value: str
    program: str
    bindings: _containers.RepeatedCompositeFieldContainer[Binding]
    def __init__(self, label: _Optional[str] = ..., value: _Optional[str] = ..., program: _Optional[str] = ..., bindings: _Optional[_Iterable[_Union[Binding, _Mapping]]] = ...) -> None: ...

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

class Statistic(_message.Message):
    __slots__ = ("class_counts", "label_distribution", "confusion")
    CLASS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LABEL_DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    CONFUSION_FIELD_NUMBER: _ClassVar[int]
    class_counts: ClassCounts
    label_distribution: LabelDistribution
    confusion: Confusion
    def __init__(self, class_counts: _Optional[_Union[ClassCounts, _Mapping]] = ..., label_distribution: _Optional[_Union[LabelDistribution, _Mapping]] = ..., confusion: _Optional[_Union[Confusion, _Mapping]] = ...) -> None: ...

class LocalPlan(_message.Message):
    __slots__ = ("format", "instructions", "validation_percent", "extractors", "keeps", "uploads", "evaluations", "statistics")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    EXTRACTORS_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    format: int
    instructions: _containers.RepeatedCompositeFieldContainer[Instruction]
    validation_percent: int
    extractors: _containers.RepeatedScalarFieldContainer[str]
    keeps: _containers.RepeatedCompositeFieldContainer[Keep]
    uploads: _containers.RepeatedCompositeFieldContainer[Upload]
    evaluations: _containers.RepeatedCompositeFieldContainer[Evaluation]
    statistics: _containers.RepeatedCompositeFieldContainer[Statistic]
    def __init__(self, format: _Optional[int] = ..., instructions: _Optional[_Iterable[_Union[Instruction, _Mapping]]] = ..., validation_percent: _Optional[int] = ..., extractors: _Optional[_Iterable[str]] = ..., keeps: _Optional[_Iterable[_Union[Keep, _Mapping]]] = ..., uploads: _Optional[_Iterable[_Union[Upload, _Mapping]]] = ..., evaluations: _Optional[_Iterable[_Union[Evaluation, _Mapping]]] = ..., statistics: _Optional[_Iterable[_Union[Statistic, _Mapping]]] = ...) -> None: ...

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
    __slots__ = ("task", "round", "phase", "bundle", "seed", "time_left_ms", "sets", "local_plan", "answer", "statement")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    SETS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_PLAN_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    task: int
    round: int
    phase: int
    bundle: bytes
    seed: bytes
    time_left_ms: int
    sets: _containers.RepeatedCompositeFieldContainer[BlobSet]
    local_plan: LocalPlan
    answer: Answer
    statement: bytes
    def __init__(self, task: _Optional[int] = ..., round: _Optional[int] = ..., phase: _Optional[int] = ..., bundle: _Optional[bytes] = ..., seed: _Optional[bytes] = ..., time_left_ms: _Optional[int] = ..., sets: _Optional[_Iterable[_Union[BlobSet, _Mapping]]] = ..., local_plan: _Optional[_Union[LocalPlan, _Mapping]] = ..., answer: _Optional[_Union[Answer, str]] = ..., statement: _Optional[bytes] = ...) -> None: ...
