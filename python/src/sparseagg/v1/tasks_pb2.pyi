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
    names: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    round: str
    def __init__(self, names: _Optional[_Iterable[str]] = ..., round: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelTasksResponse(_message.Message):
    num_cancelled: int
    def __init__(self, num_cancelled: _Optional[int] = ...) -> None: ...

class CompleteTaskRequest(_message.Message):
    client_id: str
    lease_id: str
    name: str
    result: bytes
    submission_id: str
    def __init__(self, name: _Optional[str] = ..., client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., result: _Optional[bytes] = ...) -> None: ...

class CreateTasksRequest(_message.Message):
    owner: str
    tasks: _containers.RepeatedCompositeFieldContainer[NewTask]
    def __init__(self, tasks: _Optional[_Iterable[_Union[NewTask, _Mapping]]] = ..., owner: _Optional[str] = ...) -> None: ...

class CreateTasksResponse(_message.Message):
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class ExtendLeaseRequest(_message.Message):
    client_id: str
    lease_duration: _duration_pb2.Duration
    lease_id: str
    name: str
    def __init__(self, name: _Optional[str] = ..., client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., lease_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class FailTaskRequest(_message.Message):
    client_id: str
    lease_id: str
    name: str
    reason: str
    retry: bool
    def __init__(self, name: _Optional[str] = ..., client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., reason: _Optional[str] = ..., retry: bool = ...) -> None: ...

class GetTaskRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    client_id: str
    expire_time: _timestamp_pb2.Timestamp
    lease_id: str
    remaining: _duration_pb2.Duration
    def __init__(self, client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., remaining: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LeaseTaskRequest(_message.Message):
    client_id: str
    labels: _containers.RepeatedScalarFieldContainer[str]
    lease_duration: _duration_pb2.Duration
    lease_id: str
    timeout: _duration_pb2.Duration
    def __init__(self, client_id: _Optional[str] = ..., lease_id: _Optional[str] = ..., labels: _Optional[_Iterable[str]] = ..., lease_duration: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LeaseTaskResponse(_message.Message):
    task: Task
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ...) -> None: ...

class ListTasksRequest(_message.Message):
    page_size: int
    page_token: str
    round: str
    state: TaskState
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., state: _Optional[_Union[TaskState, str]] = ..., round: _Optional[str] = ...) -> None: ...

class ListTasksResponse(_message.Message):
    next_page_token: str
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class NewTask(_message.Message):
    spec: TaskSpec
    task_id: str
    def __init__(self, task_id: _Optional[str] = ..., spec: _Optional[_Union[TaskSpec, _Mapping]] = ...) -> None: ...

class Task(_message.Message):
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
