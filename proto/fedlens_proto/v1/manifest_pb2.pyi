from fedlens_proto.v1 import blob_pb2 as _blob_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BundleClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BUNDLE_CLASS_UNSPECIFIED: _ClassVar[BundleClass]
    BUNDLE_CLASS_FROZEN_BACKBONE: _ClassVar[BundleClass]
    BUNDLE_CLASS_WHOLE_MODEL: _ClassVar[BundleClass]

class TensorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_KIND_UNSPECIFIED: _ClassVar[TensorKind]
    TENSOR_KIND_CONV: _ClassVar[TensorKind]
    TENSOR_KIND_LINEAR: _ClassVar[TensorKind]
    TENSOR_KIND_NORM: _ClassVar[TensorKind]
    TENSOR_KIND_BUFFER: _ClassVar[TensorKind]

class TensorRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_ROLE_UNSPECIFIED: _ClassVar[TensorRole]
    TENSOR_ROLE_EXTRACTOR: _ClassVar[TensorRole]
    TENSOR_ROLE_CLASSIFIER: _ClassVar[TensorRole]

class LastBatch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LAST_BATCH_UNSPECIFIED: _ClassVar[LastBatch]
    LAST_BATCH_MASKED: _ClassVar[LastBatch]
    LAST_BATCH_FILLED: _ClassVar[LastBatch]

class ProgramFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROGRAM_FORMAT_UNSPECIFIED: _ClassVar[ProgramFormat]
    PROGRAM_FORMAT_PT2: _ClassVar[ProgramFormat]
    PROGRAM_FORMAT_PTE: _ClassVar[ProgramFormat]
    PROGRAM_FORMAT_ONNX: _ClassVar[ProgramFormat]

class SlotKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLOT_KIND_UNSPECIFIED: _ClassVar[SlotKind]
    SLOT_KIND_WEIGHT: _ClassVar[SlotKind]
    SLOT_KIND_FROZEN: _ClassVar[SlotKind]
    SLOT_KIND_OPTIMISER: _ClassVar[SlotKind]
    SLOT_KIND_REFERENCE: _ClassVar[SlotKind]
    SLOT_KIND_INPUT: _ClassVar[SlotKind]
    SLOT_KIND_LABEL: _ClassVar[SlotKind]
    SLOT_KIND_MASK: _ClassVar[SlotKind]
    SLOT_KIND_HYPER: _ClassVar[SlotKind]
    SLOT_KIND_LOSS: _ClassVar[SlotKind]
    SLOT_KIND_LOGITS: _ClassVar[SlotKind]
    SLOT_KIND_COUNTER: _ClassVar[SlotKind]
    SLOT_KIND_FEATURES: _ClassVar[SlotKind]
    SLOT_KIND_UNIFORM: _ClassVar[SlotKind]
    SLOT_KIND_EXTRACTOR: _ClassVar[SlotKind]
    SLOT_KIND_PHOTO: _ClassVar[SlotKind]
    SLOT_KIND_PRESENT: _ClassVar[SlotKind]
    SLOT_KIND_TARGET: _ClassVar[SlotKind]
    SLOT_KIND_ACCUMULATOR: _ClassVar[SlotKind]
    SLOT_KIND_RESULT: _ClassVar[SlotKind]
BUNDLE_CLASS_UNSPECIFIED: BundleClass
BUNDLE_CLASS_FROZEN_BACKBONE: BundleClass
BUNDLE_CLASS_WHOLE_MODEL: BundleClass
TENSOR_KIND_UNSPECIFIED: TensorKind
TENSOR_KIND_CONV: TensorKind
TENSOR_KIND_LINEAR: TensorKind
TENSOR_KIND_NORM: TensorKind
TENSOR_KIND_BUFFER: TensorKind
TENSOR_ROLE_UNSPECIFIED: TensorRole
TENSOR_ROLE_EXTRACTOR: TensorRole
TENSOR_ROLE_CLASSIFIER: TensorRole
LAST_BATCH_UNSPECIFIED: LastBatch
LAST_BATCH_MASKED: LastBatch
LAST_BATCH_FILLED: LastBatch
PROGRAM_FORMAT_UNSPECIFIED: ProgramFormat
PROGRAM_FORMAT_PT2: ProgramFormat
PROGRAM_FORMAT_PTE: ProgramFormat
PROGRAM_FORMAT_ONNX: ProgramFormat
SLOT_KIND_UNSPECIFIED: SlotKind
SLOT_KIND_WEIGHT: SlotKind
SLOT_KIND_FROZEN: SlotKind
SLOT_KIND_OPTIMISER: SlotKind
SLOT_KIND_REFERENCE: SlotKind
SLOT_KIND_INPUT: SlotKind
SLOT_KIND_LABEL: SlotKind
SLOT_KIND_MASK: SlotKind
SLOT_KIND_HYPER: SlotKind
SLOT_KIND_LOSS: SlotKind
SLOT_KIND_LOGITS: SlotKind
SLOT_KIND_COUNTER: SlotKind
SLOT_KIND_FEATURES: SlotKind
SLOT_KIND_UNIFORM: SlotKind
SLOT_KIND_EXTRACTOR: SlotKind
SLOT_KIND_PHOTO: SlotKind
SLOT_KIND_PRESENT: SlotKind
SLOT_KIND_TARGET: SlotKind
SLOT_KIND_ACCUMULATOR: SlotKind
SLOT_KIND_RESULT: SlotKind

class Slot(_message.Message):
    __slots__ = ("kind", "name", "dtype", "shape")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    kind: SlotKind
    name: str
    dtype: _blob_pb2.Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[_Union[SlotKind, str]] = ..., name: _Optional[str] = ..., dtype: _Optional[_Union[_blob_pb2.Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class ProgramFile(_message.Message):
    __slots__ = ("format", "sha256")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    format: ProgramFormat
    sha256: bytes
    def __init__(self, format: _Optional[_Union[ProgramFormat, str]] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ("name", "inputs", "outputs", "files", "makes", "optional", "objective", "optimiser")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    MAKES_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    OPTIMISER_FIELD_NUMBER: _ClassVar[int]
    name: str
    inputs: _containers.RepeatedCompositeFieldContainer[Slot]
    outputs: _containers.RepeatedCompositeFieldContainer[Slot]
    files: _containers.RepeatedCompositeFieldContainer[ProgramFile]
    makes: str
    optional: _containers.RepeatedScalarFieldContainer[str]
    objective: str
    optimiser: str
    def __init__(self, name: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Slot, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[ProgramFile, _Mapping]]] = ..., makes: _Optional[str] = ..., optional: _Optional[_Iterable[str]] = ..., objective: _Optional[str] = ..., optimiser: _Optional[str] = ...) -> None: ...

class ExchangeableTensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "kind", "role")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: _blob_pb2.Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    kind: TensorKind
    role: TensorRole
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[_blob_pb2.Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., kind: _Optional[_Union[TensorKind, str]] = ..., role: _Optional[_Union[TensorRole, str]] = ...) -> None: ...

class HyperParameter(_message.Message):
    __slots__ = ("name", "default_value", "minimum", "maximum")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    MINIMUM_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    name: str
    default_value: float
    minimum: float
    maximum: float
    def __init__(self, name: _Optional[str] = ..., default_value: _Optional[float] = ..., minimum: _Optional[float] = ..., maximum: _Optional[float] = ...) -> None: ...

class PublicRows(_message.Message):
    __slots__ = ("sha256", "rows")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    rows: int
    def __init__(self, sha256: _Optional[bytes] = ..., rows: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("sha256", "size")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size: int
    def __init__(self, sha256: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class Preprocessing(_message.Message):
    __slots__ = ("version", "height", "width")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    version: int
    height: int
    width: int
    def __init__(self, version: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class ToolVersion(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class DisplayNames(_message.Message):
    __slots__ = ("language", "names")
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    language: str
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, language: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("format", "bundle_class", "model", "preprocessing", "class_names", "batch", "tensors", "hyper_parameters", "last_batch", "programs", "initial", "frozen", "parts", "tools", "views", "stored_views", "concatenated", "public", "display_names")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_CLASS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PREPROCESSING_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    HYPER_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    VIEWS_FIELD_NUMBER: _ClassVar[int]
    STORED_VIEWS_FIELD_NUMBER: _ClassVar[int]
    CONCATENATED_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAMES_FIELD_NUMBER: _ClassVar[int]
    format: int
    bundle_class: BundleClass
    model: str
    preprocessing: Preprocessing
    class_names: _containers.RepeatedScalarFieldContainer[str]
    batch: int
    tensors: _containers.RepeatedCompositeFieldContainer[ExchangeableTensor]
    hyper_parameters: _containers.RepeatedCompositeFieldContainer[HyperParameter]
    last_batch: LastBatch
    programs: _containers.RepeatedCompositeFieldContainer[Program]
    initial: bytes
    frozen: bytes
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    tools: _containers.RepeatedCompositeFieldContainer[ToolVersion]
    views: int
    stored_views: int
    concatenated: int
    public: PublicRows
    display_names: _containers.RepeatedCompositeFieldContainer[DisplayNames]
    def __init__(self, format: _Optional[int] = ..., bundle_class: _Optional[_Union[BundleClass, str]] = ..., model: _Optional[str] = ..., preprocessing: _Optional[_Union[Preprocessing, _Mapping]] = ..., class_names: _Optional[_Iterable[str]] = ..., batch: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[ExchangeableTensor, _Mapping]]] = ..., hyper_parameters: _Optional[_Iterable[_Union[HyperParameter, _Mapping]]] = ..., last_batch: _Optional[_Union[LastBatch, str]] = ..., programs: _Optional[_Iterable[_Union[Program, _Mapping]]] = ..., initial: _Optional[bytes] = ..., frozen: _Optional[bytes] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[ToolVersion, _Mapping]]] = ..., views: _Optional[int] = ..., stored_views: _Optional[int] = ..., concatenated: _Optional[int] = ..., public: _Optional[_Union[PublicRows, _Mapping]] = ..., display_names: _Optional[_Iterable[_Union[DisplayNames, _Mapping]]] = ...) -> None: ...
