from fedlens_proto.v1 import update_pb2 as _update_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATE_UNSPECIFIED: _ClassVar[TaskState]
    TASK_STATE_WAITING: _ClassVar[TaskState]
    TASK_STATE_RUNNING: _ClassVar[TaskState]
    TASK_STATE_FINISHED: _ClassVar[TaskState]
    TASK_STATE_STOPPED: _ClassVar[TaskState]
    TASK_STATE_FAILED: _ClassVar[TaskState]
    TASK_STATE_PAUSED: _ClassVar[TaskState]
    TASK_STATE_SUSPENDED: _ClassVar[TaskState]

class RoundState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUND_STATE_UNSPECIFIED: _ClassVar[RoundState]
    ROUND_STATE_OPEN: _ClassVar[RoundState]
    ROUND_STATE_CLOSING: _ClassVar[RoundState]
    ROUND_STATE_COMMITTED: _ClassVar[RoundState]
    ROUND_STATE_ABANDONED: _ClassVar[RoundState]
    ROUND_STATE_UNDONE: _ClassVar[RoundState]

class MemberState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMBER_STATE_UNSPECIFIED: _ClassVar[MemberState]
    MEMBER_STATE_PENDING: _ClassVar[MemberState]
    MEMBER_STATE_REPORTED: _ClassVar[MemberState]
    MEMBER_STATE_FAILED: _ClassVar[MemberState]
    MEMBER_STATE_QUARANTINED: _ClassVar[MemberState]
    MEMBER_STATE_LEFT: _ClassVar[MemberState]
    MEMBER_STATE_MISSED: _ClassVar[MemberState]
    MEMBER_STATE_LATE: _ClassVar[MemberState]
    MEMBER_STATE_EXCLUDED: _ClassVar[MemberState]
TASK_STATE_UNSPECIFIED: TaskState
TASK_STATE_WAITING: TaskState
TASK_STATE_RUNNING: TaskState
TASK_STATE_FINISHED: TaskState
TASK_STATE_STOPPED: TaskState
TASK_STATE_FAILED: TaskState
TASK_STATE_PAUSED: TaskState
TASK_STATE_SUSPENDED: TaskState
ROUND_STATE_UNSPECIFIED: RoundState
ROUND_STATE_OPEN: RoundState
ROUND_STATE_CLOSING: RoundState
ROUND_STATE_COMMITTED: RoundState
ROUND_STATE_ABANDONED: RoundState
ROUND_STATE_UNDONE: RoundState
MEMBER_STATE_UNSPECIFIED: MemberState
MEMBER_STATE_PENDING: MemberState
MEMBER_STATE_REPORTED: MemberState
MEMBER_STATE_FAILED: MemberState
MEMBER_STATE_QUARANTINED: MemberState
MEMBER_STATE_LEFT: MemberState
MEMBER_STATE_MISSED: MemberState
MEMBER_STATE_LATE: MemberState
MEMBER_STATE_EXCLUDED: MemberState

class CreateTaskRequest(_message.Message):
    __slots__ = ("protocol", "name", "manifests", "settings_json", "statements")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    name: str
    manifests: _containers.RepeatedScalarFieldContainer[bytes]
    settings_json: str
    statements: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, protocol: _Optional[int] = ..., name: _Optional[str] = ..., manifests: _Optional[_Iterable[bytes]] = ..., settings_json: _Optional[str] = ..., statements: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RenewTaskRequest(_message.Message):
    __slots__ = ("protocol", "statements")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    statements: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, protocol: _Optional[int] = ..., statements: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MemberResult(_message.Message):
    __slots__ = ("client_id", "state", "reason", "num_examples", "bytes_received", "evaluations")
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    client_id: bytes
    state: MemberState
    reason: str
    num_examples: int
    bytes_received: int
    evaluations: _containers.RepeatedCompositeFieldContainer[_update_pb2.EvaluationSums]
    def __init__(self, client_id: _Optional[bytes] = ..., state: _Optional[_Union[MemberState, str]] = ..., reason: _Optional[str] = ..., num_examples: _Optional[int] = ..., bytes_received: _Optional[int] = ..., evaluations: _Optional[_Iterable[_Union[_update_pb2.EvaluationSums, _Mapping]]] = ...) -> None: ...

class UnlistedMembers(_message.Message):
    __slots__ = ("state", "members", "bytes_received")
    STATE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    state: MemberState
    members: int
    bytes_received: int
    def __init__(self, state: _Optional[_Union[MemberState, str]] = ..., members: _Optional[int] = ..., bytes_received: _Optional[int] = ...) -> None: ...

class RoundResult(_message.Message):
    __slots__ = ("round", "phase", "state", "reason", "members", "bytes_sent", "opened_at", "ended_at", "personal", "unlisted", "overdue")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    OPENED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    PERSONAL_FIELD_NUMBER: _ClassVar[int]
    UNLISTED_FIELD_NUMBER: _ClassVar[int]
    OVERDUE_FIELD_NUMBER: _ClassVar[int]
    round: int
    phase: int
    state: RoundState
    reason: str
    members: _containers.RepeatedCompositeFieldContainer[MemberResult]
    bytes_sent: int
    opened_at: float
    ended_at: float
    personal: _containers.RepeatedCompositeFieldContainer[_update_pb2.EvaluationSums]
    unlisted: _containers.RepeatedCompositeFieldContainer[UnlistedMembers]
    overdue: bool
    def __init__(self, round: _Optional[int] = ..., phase: _Optional[int] = ..., state: _Optional[_Union[RoundState, str]] = ..., reason: _Optional[str] = ..., members: _Optional[_Iterable[_Union[MemberResult, _Mapping]]] = ..., bytes_sent: _Optional[int] = ..., opened_at: _Optional[float] = ..., ended_at: _Optional[float] = ..., personal: _Optional[_Iterable[_Union[_update_pb2.EvaluationSums, _Mapping]]] = ..., unlisted: _Optional[_Iterable[_Union[UnlistedMembers, _Mapping]]] = ..., overdue: _Optional[bool] = ..., **kwargs) -> None: ...

class Privacy(_message.Message):
    __slots__ = ("delta", "epsilon", "spent", "participations")
    DELTA_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    SPENT_FIELD_NUMBER: _ClassVar[int]
    PARTICIPATIONS_FIELD_NUMBER: _ClassVar[int]
    delta: float
    epsilon: float
    spent: float
    participations: int
    def __init__(self, delta: _Optional[float] = ..., epsilon: _Optional[float] = ..., spent: _Optional[float] = ..., participations: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "name", "state", "reason", "settings_json", "bundles", "rounds_committed", "rounds_total", "enrolled", "population", "privacy", "kept_rounds", "released_round", "awaited_canaries", "statements", "notices")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    BUNDLES_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ENROLLED_FIELD_NUMBER: _ClassVar[int]
    POPULATION_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    KEPT_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    RELEASED_ROUND_FIELD_NUMBER: _ClassVar[int]
    AWAITED_CANARIES_FIELD_NUMBER: _ClassVar[int]
    STATEMENTS_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    state: TaskState
    reason: str
    settings_json: str
    bundles: _containers.RepeatedScalarFieldContainer[bytes]
    rounds_committed: int
    rounds_total: int
    enrolled: int
    population: int
    privacy: Privacy
    kept_rounds: _containers.RepeatedScalarFieldContainer[int]
    released_round: int
    awaited_canaries: _containers.RepeatedScalarFieldContainer[int]
    statements: _containers.RepeatedScalarFieldContainer[bytes]
    notices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., reason: _Optional[str] = ..., settings_json: _Optional[str] = ..., bundles: _Optional[_Iterable[bytes]] = ..., rounds_committed: _Optional[int] = ..., rounds_total: _Optional[int] = ..., enrolled: _Optional[int] = ..., population: _Optional[int] = ..., privacy: _Optional[_Union[Privacy, _Mapping]] = ..., kept_rounds: _Optional[_Iterable[int]] = ..., released_round: _Optional[int] = ..., awaited_canaries: _Optional[_Iterable[int]] = ..., statements: _Optional[_Iterable[bytes]] = ..., notices: _Optional[_Iterable[str]] = ...) -> None: ...

class ChangeTaskRequest(_message.Message):
    __slots__ = ("protocol", "settings_json")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    settings_json: str
    def __init__(self, protocol: _Optional[int] = ..., settings_json: _Optional[str] = ...) -> None: ...

class RoundRequest(_message.Message):
    __slots__ = ("protocol", "round")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    round: int
    def __init__(self, protocol: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class AnswerCount(_message.Message):
    __slots__ = ("answer", "clients")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    answer: str
    clients: int
    def __init__(self, answer: _Optional[str] = ..., clients: _Optional[int] = ...) -> None: ...

class ShowTaskResponse(_message.Message):
    __slots__ = ("task", "rounds", "answers")
    TASK_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    task: Task
    rounds: _containers.RepeatedCompositeFieldContainer[RoundResult]
    answers: _containers.RepeatedCompositeFieldContainer[AnswerCount]
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., rounds: _Optional[_Iterable[_Union[RoundResult, _Mapping]]] = ..., answers: _Optional[_Iterable[_Union[AnswerCount, _Mapping]]] = ...) -> None: ...

class ModelExtractor(_message.Message):
    __slots__ = ("name", "blob_sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    BLOB_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    blob_sha256: bytes
    def __init__(self, name: _Optional[str] = ..., blob_sha256: _Optional[bytes] = ...) -> None: ...

class TaskModelResponse(_message.Message):
    __slots__ = ("blob_sha256", "bundle", "class_names", "round", "extractors")
    BLOB_SHA256_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    CLASS_NAMES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    EXTRACTORS_FIELD_NUMBER: _ClassVar[int]
    blob_sha256: bytes
    bundle: bytes
    class_names: _containers.RepeatedScalarFieldContainer[str]
    round: int
    extractors: _containers.RepeatedCompositeFieldContainer[ModelExtractor]
    def __init__(self, blob_sha256: _Optional[bytes] = ..., bundle: _Optional[bytes] = ..., class_names: _Optional[_Iterable[str]] = ..., round: _Optional[int] = ..., extractors: _Optional[_Iterable[_Union[ModelExtractor, _Mapping]]] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ("protocol", "keep")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    keep: int
    def __init__(self, protocol: _Optional[int] = ..., keep: _Optional[int] = ...) -> None: ...

class BackupResponse(_message.Message):
    __slots__ = ("name", "taken_at", "blobs", "copied", "copied_bytes", "removed", "place")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    taken_at: float
    blobs: int
    copied: int
    copied_bytes: int
    removed: int
    place: str
    def __init__(self, name: _Optional[str] = ..., taken_at: _Optional[float] = ..., blobs: _Optional[int] = ..., copied: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., removed: _Optional[int] = ..., place: _Optional[str] = ...) -> None: ...
