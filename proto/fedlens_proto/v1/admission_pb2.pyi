from fedlens_proto.v1 import enrolment_pb2 as _enrolment_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenRole(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_ROLE_UNSPECIFIED: _ClassVar[TokenRole]
    TOKEN_ROLE_TRAINER: _ClassVar[TokenRole]
    TOKEN_ROLE_EVALUATOR: _ClassVar[TokenRole]
    TOKEN_ROLE_READ: _ClassVar[TokenRole]
    TOKEN_ROLE_OPERATE: _ClassVar[TokenRole]

class ClientState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CLIENT_STATE_UNSPECIFIED: _ClassVar[ClientState]
    CLIENT_STATE_ACTIVE: _ClassVar[ClientState]
    CLIENT_STATE_BANNED: _ClassVar[ClientState]
    CLIENT_STATE_SITS_OUT: _ClassVar[ClientState]
TOKEN_ROLE_UNSPECIFIED: TokenRole
TOKEN_ROLE_TRAINER: TokenRole
TOKEN_ROLE_EVALUATOR: TokenRole
TOKEN_ROLE_READ: TokenRole
TOKEN_ROLE_OPERATE: TokenRole
CLIENT_STATE_UNSPECIFIED: ClientState
CLIENT_STATE_ACTIVE: ClientState
CLIENT_STATE_BANNED: ClientState
CLIENT_STATE_SITS_OUT: ClientState

class CreateTokenRequest(_message.Message):
    __slots__ = ("protocol", "name", "role", "max_uses", "per_minute", "expires_in_s")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MAX_USES_FIELD_NUMBER: _ClassVar[int]
    PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    name: str
    role: TokenRole
    max_uses: int
    per_minute: int
    expires_in_s: float
    def __init__(self, protocol: _Optional[int] = ..., name: _Optional[str] = ..., role: _Optional[_Union[TokenRole, str]] = ..., max_uses: _Optional[int] = ..., per_minute: _Optional[int] = ..., expires_in_s: _Optional[float] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("name", "role", "max_uses", "uses", "per_minute", "created_at", "expires_at", "revoked_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MAX_USES_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    PER_MINUTE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    role: TokenRole
    max_uses: int
    uses: int
    per_minute: int
    created_at: float
    expires_at: float
    revoked_at: float
    def __init__(self, name: _Optional[str] = ..., role: _Optional[_Union[TokenRole, str]] = ..., max_uses: _Optional[int] = ..., uses: _Optional[int] = ..., per_minute: _Optional[int] = ..., created_at: _Optional[float] = ..., expires_at: _Optional[float] = ..., revoked_at: _Optional[float] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("token", "secret")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    token: Token
    secret: str
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ..., secret: _Optional[str] = ...) -> None: ...

class ListTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class AuditEntry(_message.Message):
    __slots__ = ("id", "at", "operator", "action", "subject", "detail")
    ID_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    id: int
    at: float
    operator: str
    action: str
    subject: str
    detail: str
    def __init__(self, id: _Optional[int] = ..., at: _Optional[float] = ..., operator: _Optional[str] = ..., action: _Optional[str] = ..., subject: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class ListAuditResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[AuditEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[AuditEntry, _Mapping]]] = ...) -> None: ...

class EnrolledClient(_message.Message):
    __slots__ = ("id", "role", "token", "enrolled_at", "last_seen", "state", "sits_out_until", "banned_at", "ban_reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ENROLLED_AT_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SITS_OUT_UNTIL_FIELD_NUMBER: _ClassVar[int]
    BANNED_AT_FIELD_NUMBER: _ClassVar[int]
    BAN_REASON_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    role: _enrolment_pb2.ClientRole
    token: str
    enrolled_at: float
    last_seen: float
    state: ClientState
    sits_out_until: float
    banned_at: float
    ban_reason: str
    def __init__(self, id: _Optional[bytes] = ..., role: _Optional[_Union[_enrolment_pb2.ClientRole, str]] = ..., token: _Optional[str] = ..., enrolled_at: _Optional[float] = ..., last_seen: _Optional[float] = ..., state: _Optional[_Union[ClientState, str]] = ..., sits_out_until: _Optional[float] = ..., banned_at: _Optional[float] = ..., ban_reason: _Optional[str] = ...) -> None: ...

class ListClientsResponse(_message.Message):
    __slots__ = ("clients", "has_more")
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    clients: _containers.RepeatedCompositeFieldContainer[EnrolledClient]
    has_more: bool
    def __init__(self, clients: _Optional[_Iterable[_Union[EnrolledClient, _Mapping]]] = ..., has_more: _Optional[bool] = ...) -> None: ...

class ClientInTask(_message.Message):
    __slots__ = ("task", "name", "suits", "last_round", "times", "misses", "quarantines", "sits_out_until")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUITS_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINES_FIELD_NUMBER: _ClassVar[int]
    SITS_OUT_UNTIL_FIELD_NUMBER: _ClassVar[int]
    task: int
    name: str
    suits: bool
    last_round: int
    times: int
    misses: int
    quarantines: int
    sits_out_until: float
    def __init__(self, task: _Optional[int] = ..., name: _Optional[str] = ..., suits: _Optional[bool] = ..., last_round: _Optional[int] = ..., times: _Optional[int] = ..., misses: _Optional[int] = ..., quarantines: _Optional[int] = ..., sits_out_until: _Optional[float] = ...) -> None: ...

class ShowClientResponse(_message.Message):
    __slots__ = ("client", "capabilities", "tasks", "answer", "answer_task", "answer_detail", "answered_at")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TASK_FIELD_NUMBER: _ClassVar[int]
    ANSWER_DETAIL_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_AT_FIELD_NUMBER: _ClassVar[int]
    client: EnrolledClient
    capabilities: _enrolment_pb2.Capabilities
    tasks: _containers.RepeatedCompositeFieldContainer[ClientInTask]
    answer: str
    answer_task: int
    answer_detail: str
    answered_at: float
    def __init__(self, client: _Optional[_Union[EnrolledClient, _Mapping]] = ..., capabilities: _Optional[_Union[_enrolment_pb2.Capabilities, _Mapping]] = ..., tasks: _Optional[_Iterable[_Union[ClientInTask, _Mapping]]] = ..., answer: _Optional[str] = ..., answer_task: _Optional[int] = ..., answer_detail: _Optional[str] = ..., answered_at: _Optional[float] = ...) -> None: ...

class BanRequest(_message.Message):
    __slots__ = ("protocol", "reason")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    reason: str
    def __init__(self, protocol: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class BanResponse(_message.Message):
    __slots__ = ("clients",)
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    clients: int
    def __init__(self, clients: _Optional[int] = ...) -> None: ...
