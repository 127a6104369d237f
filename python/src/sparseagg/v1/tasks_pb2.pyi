from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
TASK_STATE_CANCELLED: TaskState
TASK_STATE_COMPLETED: TaskState
TASK_STATE_FAILED: TaskState
TASK_STATE_LEASED: TaskState
TASK_STATE_OPEN: TaskState
TASK_STATE_UNSPECIFIED: TaskState

class CancelTasksRequest(_message.Message):
    __slots__ = ["names", "reason", "round"]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    round: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., round: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelTasksResponse(_message.Message):
    __slots__ = ["num_cancelled"]
    NUM_CANCELLED_FIELD_NUMBER: _ClassVar[int]
    num_cancelled: int
    def __init__(self, num_cancelled: _Optional[int] = ...) -> None: ...

class CompleteTaskRequest(_message.Message):
    __slots__ = ["client_id", "lease_id", "name", "result", "submission_id"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    lease_id: str
    name: str
    result: bytes
    submission_id: str
    def __init__(self, name: _Optional[str] = ..., client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., result: _Optional[bytes] = ...) -> None: ...

class CreateTasksRequest(_message.Message):
    __slots__ = ["owner", "tasks"]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    owner: str
    tasks: _containers.RepeatedCompositeFieldContainer[NewTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[NewTask, _Mapping]]] = ..., owner: _Optional[str] = ...) -> None: ...

class CreateTasksResponse(_message.Message):
    __slots__ = ["names"]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class ExtendLeaseRequest(_message.Message):
    __slots__ = ["client_id", "lease_duration", "lease_id", "name"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    lease_duration: _duration_pb2.Duration
    lease_id: str
    name: str
    def __init__(self, name: _Optional[str] = ..., client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., lease_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class FailTaskRequest(_message.Message):
    __slots__ = ["client_id", "lease_id", "name", "reason", "retry"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    lease_id: str
    name: str
    reason: str
    retry: bool
    def __init__(self, name: _Optional[str] = ..., client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., reason: _Optional[str] = ..., retry: bool = ...) -> None: ...

class GetTaskRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ["client_id", "expire_time", "lease_id", "remaining"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    expire_time: _timestamp_pb2.Timestamp
    lease_id: str
    remaining: _duration_pb2.Duration
    def __init__(self, client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LeaseTaskRequest(_message.Message):
    __slots__ = ["client_id", "labels", "lease_duration", "lease_id", "timeout"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LEASE_DURATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    lease_duration: _duration_pb2.Duration
    lease_id: str
    timeout: _duration_pb2.Duration
    def __init__(self, client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., lease_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LeaseTaskResponse(_message.Message):
    __slots__ = ["task"]
    TASK_FIELD_NUMBER: _ClassVar[int]
    task: Task
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "round", "state"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    round: str
    state: TaskState
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., round: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    __slots__ = ["next_page_token", "tasks"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class NewTask(_message.Message):
    __slots__ = ["spec", "task_id"]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    spec: TaskSpec
    task_id: str
    def __init__(self, task_id: _Optional[str] = ..., spec: _Optional[_Union[TaskSpec, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ["attempts", "base_version", "create_time", "end_time", "expire_time", "lease", "name", "owner", "result", "spec", "state", "state_reason", "submission_id"]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    base_version: int
    create_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    expire_time: _timestamp_pb2.Timestamp
    lease: Lease
    name: str
    owner: str
    result: bytes
    spec: TaskSpec
    state: TaskState
    state_reason: str
    submission_id: str
    def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[TaskSpec, _Mapping]] = ..., owner: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., state_reason: _Optional[str] = ..., attempts: _Optional[int] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., submission_id: _Optional[str] = ..., result: _Optional[bytes] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., base_version: _Optional[int] = ...) -> None: ...

class TaskSpec(_message.Message):
    __slots__ = ["deadline", "labels", "max_attempts", "payload", "priority", "round", "ttl"]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    deadline: _duration_pb2.Duration
    labels: _containers.RepeatedScalarFieldContainer[str]
    max_attempts: int
    payload: bytes
    priority: int
    round: str
    ttl: _duration_pb2.Duration
    def __init__(self, payload: _Optional[bytes] = ..., labels: _Optional[_Iterable[str]] = ..., priority: _Optional[int] = ..., deadline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_attempts: _Optional[int] = ..., round: _Optional[str] = ..., ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class TaskState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
