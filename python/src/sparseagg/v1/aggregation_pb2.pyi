from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

ABSENT_POLICY_SKIP: AbsentPolicy
ABSENT_POLICY_UNSPECIFIED: AbsentPolicy
ABSENT_POLICY_ZERO: AbsentPolicy
BOUND_POLICY_CLIP: BoundPolicy
BOUND_POLICY_REJECT: BoundPolicy
BOUND_POLICY_UNSPECIFIED: BoundPolicy
CLIP_POLICY_CLIP: ClipPolicy
CLIP_POLICY_REJECT: ClipPolicy
CLIP_POLICY_UNSPECIFIED: ClipPolicy
CUT_CAUSE_CALL: CutCause
CUT_CAUSE_FULL: CutCause
CUT_CAUSE_TIMER: CutCause
CUT_CAUSE_UNSPECIFIED: CutCause
DESCRIPTOR: _descriptor.FileDescriptor
DTYPE_BFLOAT16: DType
DTYPE_FLOAT16: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT64: DType
DTYPE_INT32: DType
DTYPE_INT64: DType
DTYPE_UINT32: DType
DTYPE_UINT64: DType
DTYPE_UNSPECIFIED: DType
EMPTY_POLICY_FAIL: EmptyPolicy
EMPTY_POLICY_KEEP: EmptyPolicy
EMPTY_POLICY_UNSPECIFIED: EmptyPolicy
KEY_ENCODING_DELTA_BITPACKED: KeyEncoding
KEY_ENCODING_IMPLICIT: KeyEncoding
KEY_ENCODING_U32: KeyEncoding
KEY_ENCODING_U64: KeyEncoding
KEY_ENCODING_UNSPECIFIED: KeyEncoding
KEY_SELECTION_COUNT_GAUSSIAN: KeySelection
KEY_SELECTION_PUBLIC: KeySelection
KEY_SELECTION_UNSPECIFIED: KeySelection
KEY_SELECTION_WEIGHTED_GAUSSIAN: KeySelection
MEAN_DIVISOR_FIXED: MeanDivisor
MEAN_DIVISOR_SUBMISSIONS: MeanDivisor
MEAN_DIVISOR_UNSPECIFIED: MeanDivisor
MEAN_DIVISOR_WEIGHTS: MeanDivisor
NONFINITE_POLICY_PROPAGATE: NonfinitePolicy
NONFINITE_POLICY_REJECT: NonfinitePolicy
NONFINITE_POLICY_UNSPECIFIED: NonfinitePolicy
NUMERICS_BINNED: Numerics
NUMERICS_CANONICAL: Numerics
NUMERICS_FIXED_POINT: Numerics
NUMERICS_UNSPECIFIED: Numerics
OP_COORDINATE_MEAN: Op
OP_MAX: Op
OP_MEAN: Op
OP_MEDIAN: Op
OP_MIN: Op
OP_QUANTILE: Op
OP_SUM: Op
OP_TRIMMED_MEAN: Op
OP_UNION: Op
OP_UNSPECIFIED: Op
RESULT_LAYOUT_AUTO: ResultLayout
RESULT_LAYOUT_DENSE: ResultLayout
RESULT_LAYOUT_SPARSE: ResultLayout
RESULT_LAYOUT_UNSPECIFIED: ResultLayout
ROUND_STATE_CANCELLED: RoundState
ROUND_STATE_DONE: RoundState
ROUND_STATE_FAILED: RoundState
ROUND_STATE_FINALIZING: RoundState
ROUND_STATE_OPEN: RoundState
ROUND_STATE_SEALED: RoundState
ROUND_STATE_UNSPECIFIED: RoundState
TENSOR_LAYOUT_DENSE: TensorLayout
TENSOR_LAYOUT_SPARSE: TensorLayout
TENSOR_LAYOUT_UNSPECIFIED: TensorLayout
VALUE_ENCODING_BFLOAT16: ValueEncoding
VALUE_ENCODING_FLOAT16: ValueEncoding
VALUE_ENCODING_FLOAT32: ValueEncoding
VALUE_ENCODING_FLOAT64: ValueEncoding
VALUE_ENCODING_INT32: ValueEncoding
VALUE_ENCODING_INT64: ValueEncoding
VALUE_ENCODING_INT8_SCALED: ValueEncoding
VALUE_ENCODING_NONE: ValueEncoding
VALUE_ENCODING_PARTIAL: ValueEncoding
VALUE_ENCODING_UINT32: ValueEncoding
VALUE_ENCODING_UINT64: ValueEncoding
VALUE_ENCODING_UNSPECIFIED: ValueEncoding
WEIGHTING_BY_WEIGHT: Weighting
WEIGHTING_UNIFORM: Weighting
WEIGHTING_UNSPECIFIED: Weighting

class AggregateRequest(_message.Message):
    chunk: UpdateChunk
    format: ResultFormat
    spec: RoundSpec
    def __init__(self, spec: _Optional[_Union[RoundSpec, _Mapping]] = ..., chunk: _Optional[_Union[UpdateChunk, _Mapping]] = ..., format: _Optional[_Union[ResultFormat, _Mapping]] = ...) -> None: ...

class AggregationSpec(_message.Message):
    absent: AbsentPolicy
    dense_threshold: float
    fill: float
    fixed_divisor: float
    mean_divisor: MeanDivisor
    min_contributors: int
    numerics: Numerics
    on_bound: BoundPolicy
    on_empty: EmptyPolicy
    on_nonfinite: NonfinitePolicy
    op: Op
    prune_zeros: bool
    quantile: float
    result_dtype: DType
    result_layout: ResultLayout
    result_min_norm: float
    result_top_k: int
    return_counts: bool
    return_moments: bool
    return_weights: bool
    trim_fraction: float
    value_bound: float
    weight_bound: float
    weighting: Weighting
    def __init__(self, op: _Optional[_Union[Op, str]] = ..., weighting: _Optional[_Union[Weighting, str]] = ..., result_layout: _Optional[_Union[ResultLayout, str]] = ..., numerics: _Optional[_Union[Numerics, str]] = ..., return_counts: bool = ..., return_weights: bool = ..., min_contributors: _Optional[int] = ..., prune_zeros: bool = ..., fill: _Optional[float] = ..., dense_threshold: _Optional[float] = ..., result_dtype: _Optional[_Union[DType, str]] = ..., on_nonfinite: _Optional[_Union[NonfinitePolicy, str]] = ..., on_bound: _Optional[_Union[BoundPolicy, str]] = ..., value_bound: _Optional[float] = ..., weight_bound: _Optional[float] = ..., on_empty: _Optional[_Union[EmptyPolicy, str]] = ..., mean_divisor: _Optional[_Union[MeanDivisor, str]] = ..., fixed_divisor: _Optional[float] = ..., trim_fraction: _Optional[float] = ..., quantile: _Optional[float] = ..., absent: _Optional[_Union[AbsentPolicy, str]] = ..., result_top_k: _Optional[int] = ..., result_min_norm: _Optional[float] = ..., return_moments: bool = ...) -> None: ...

class Backup(_message.Message):
    name: str
    num_bytes: int
    def __init__(self, name: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class BatchRefusal(_message.Message):
    client_id: str
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., client_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelRoundRequest(_message.Message):
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Certificate(_message.Message):
    envelope: bytes
    def __init__(self, envelope: _Optional[bytes] = ...) -> None: ...

class CertificateSpec(_message.Message):
    allow_export: bool
    def __init__(self, allow_export: bool = ...) -> None: ...

class ClientWeight(_message.Message):
    client_id: str
    weight: float
    def __init__(self, client_id: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class ClipSpec(_message.Message):
    l2: float
    linf: float
    max_keys: int
    on_clip: ClipPolicy
    def __init__(self, l2: _Optional[float] = ..., linf: _Optional[float] = ..., max_keys: _Optional[int] = ..., on_clip: _Optional[_Union[ClipPolicy, str]] = ...) -> None: ...

class ClipSummary(_message.Message):
    factors: _containers.RepeatedScalarFieldContainer[int]
    num_clipped: int
    num_l2: int
    num_linf: int
    num_max_keys: int
    def __init__(self, num_clipped: _Optional[int] = ..., num_l2: _Optional[int] = ..., num_linf: _Optional[int] = ..., num_max_keys: _Optional[int] = ..., factors: _Optional[_Iterable[int]] = ...) -> None: ...

class CloseRoundRequest(_message.Message):
    client_weights: _containers.RepeatedCompositeFieldContainer[ClientWeight]
    name: str
    only_client_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., only_client_ids: _Optional[_Iterable[str]] = ..., client_weights: _Optional[_Iterable[_Union[ClientWeight, _Mapping]]] = ...) -> None: ...

class ClusterSpec(_message.Message):
    index: int
    servers: _containers.RepeatedCompositeFieldContainer[HomeServer]
    def __init__(self, servers: _Optional[_Iterable[_Union[HomeServer, _Mapping]]] = ..., index: _Optional[int] = ...) -> None: ...

class CommitSubmissionRequest(_message.Message):
    client_id: str
    round: str
    submission_id: str
    upload_tag: bytes
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., upload_tag: _Optional[bytes] = ...) -> None: ...

class CommitSubmissionResponse(_message.Message):
    client_id: str
    duplicate: bool
    num_bytes: int
    num_tuples: int
    round: str
    stream_commit: StreamCommit
    submission_id: str
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., duplicate: bool = ..., num_tuples: _Optional[int] = ..., num_bytes: _Optional[int] = ..., stream_commit: _Optional[_Union[StreamCommit, _Mapping]] = ...) -> None: ...

class CreateBackupRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateRoundRequest(_message.Message):
    round_id: str
    spec: RoundSpec
    def __init__(self, round_id: _Optional[str] = ..., spec: _Optional[_Union[RoundSpec, _Mapping]] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    spec: StreamSpec
    stream_id: str
    def __init__(self, stream_id: _Optional[str] = ..., spec: _Optional[_Union[StreamSpec, _Mapping]] = ...) -> None: ...

class CutStreamRequest(_message.Message):
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class DeleteRoundRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteStreamRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ExportPartialRequest(_message.Message):
    max_page_bytes: int
    max_pages: int
    name: str
    page_token: str
    range: KeyRange
    tensor: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ..., max_pages: _Optional[int] = ...) -> None: ...

class ExportRoundRequest(_message.Message):
    max_page_bytes: int
    name: str
    page_token: str
    def __init__(self, name: _Optional[str] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ExportRoundResponse(_message.Message):
    chunks: _containers.RepeatedCompositeFieldContainer[ExportedChunk]
    next_page_token: str
    def __init__(self, chunks: _Optional[_Iterable[_Union[ExportedChunk, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExportSubmissionsRequest(_message.Message):
    any_order: bool
    buckets: KeyBuckets
    by_place: bool
    key_encodings: _containers.RepeatedScalarFieldContainer[KeyEncoding]
    max_page_bytes: int
    max_pages: int
    name: str
    page_token: str
    range: KeyRange
    tensor: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ..., buckets: _Optional[_Union[KeyBuckets, _Mapping]] = ..., max_pages: _Optional[int] = ..., key_encodings: _Optional[_Iterable[_Union[KeyEncoding, str]]] = ..., any_order: bool = ..., by_place: bool = ...) -> None: ...

class ExportedChunk(_message.Message):
    chunk: bytes
    client_id: str
    client_weight: float
    last: bool
    leaf: bytes
    submission_id: str
    def __init__(self, client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., chunk: _Optional[bytes] = ..., last: bool = ..., client_weight: _Optional[float] = ..., leaf: _Optional[bytes] = ...) -> None: ...

class ExportedPartial(_message.Message):
    blocks: bytes
    next_page_token: str
    def __init__(self, blocks: _Optional[bytes] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExportedSubmissions(_message.Message):
    client_ids: str
    end_place: int
    first_place: int
    has_rows: bytes
    is_continued: bool
    next_page_token: str
    num_keys: bytes
    num_submissions: int
    slice: TensorSlice
    weights: bytes
    def __init__(self, client_ids: _Optional[str] = ..., weights: _Optional[bytes] = ..., num_keys: _Optional[bytes] = ..., slice: _Optional[_Union[TensorSlice, _Mapping]] = ..., next_page_token: _Optional[str] = ..., first_place: _Optional[int] = ..., end_place: _Optional[int] = ..., has_rows: _Optional[bytes] = ..., is_continued: bool = ..., num_submissions: _Optional[int] = ...) -> None: ...

class GetCertificateRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetReceiptRequest(_message.Message):
    client_id: str
    round: str
    submission_id: str
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ...) -> None: ...

class GetResultRangeRequest(_message.Message):
    begin: int
    name: str
    tensor: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., begin: _Optional[int] = ...) -> None: ...

class GetResultRequest(_message.Message):
    format: ResultFormat
    max_page_bytes: int
    name: str
    page_token: str
    range: KeyRange
    tensor: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ..., format: _Optional[_Union[ResultFormat, _Mapping]] = ...) -> None: ...

class GetRoundRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    with_activity: bool
    def __init__(self, with_activity: bool = ...) -> None: ...

class GetStreamRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetUploadStatusRequest(_message.Message):
    client_id: str
    round: str
    submission_id: str
    upload_tag: bytes
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., upload_tag: _Optional[bytes] = ...) -> None: ...

class HomeServer(_message.Message):
    address: str
    http_url: str
    instance: str
    def __init__(self, address: _Optional[str] = ..., http_url: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class InspectRoundRequest(_message.Message):
    max_page_bytes: int
    name: str
    page_token: str
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tensors: _Optional[_Iterable[str]] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class InspectRoundResponse(_message.Message):
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    first_row: int
    gram: bytes
    next_page_token: str
    num_clients: int
    overlap: bytes
    squared_distances: bytes
    def __init__(self, num_clients: _Optional[int] = ..., first_row: _Optional[int] = ..., client_ids: _Optional[_Iterable[str]] = ..., gram: _Optional[bytes] = ..., overlap: _Optional[bytes] = ..., next_page_token: _Optional[str] = ..., squared_distances: _Optional[bytes] = ...) -> None: ...

class KeyBuckets(_message.Message):
    bits: int
    within: _containers.RepeatedScalarFieldContainer[int]
    within_bits: int
    def __init__(self, bits: _Optional[int] = ..., within_bits: _Optional[int] = ..., within: _Optional[_Iterable[int]] = ...) -> None: ...

class KeyRange(_message.Message):
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ListRoundsRequest(_message.Message):
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRoundsResponse(_message.Message):
    next_page_token: str
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    def __init__(self, rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    next_page_token: str
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    def __init__(self, streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListSubmissionsRequest(_message.Message):
    page_size: int
    page_token: str
    parent: str
    with_leaves: bool
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., with_leaves: bool = ...) -> None: ...

class ListSubmissionsResponse(_message.Message):
    next_page_token: str
    submissions: _containers.RepeatedCompositeFieldContainer[Submission]
    withdrawn_leaves: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, submissions: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., withdrawn_leaves: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PrivacySpec(_message.Message):
    delta: float
    key_noise_multiplier: float
    keys: KeySelection
    noise_multiplier: float
    public_keys: _containers.RepeatedCompositeFieldContainer[PublicKeys]
    def __init__(self, noise_multiplier: _Optional[float] = ..., keys: _Optional[_Union[KeySelection, str]] = ..., key_noise_multiplier: _Optional[float] = ..., delta: _Optional[float] = ..., public_keys: _Optional[_Iterable[_Union[PublicKeys, _Mapping]]] = ...) -> None: ...

class PublicKeys(_message.Message):
    keys: _containers.RepeatedScalarFieldContainer[int]
    tensor: str
    def __init__(self, tensor: _Optional[str] = ..., keys: _Optional[_Iterable[int]] = ...) -> None: ...

class PutResultRangeRequest(_message.Message):
    create_time: _timestamp_pb2.Timestamp
    name: str
    only: str
    page: ResultPage
    plan: str
    range: KeyRange
    def __init__(self, name: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., only: _Optional[str] = ..., plan: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., page: _Optional[_Union[ResultPage, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    client_id: str
    code: str
    reason: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, client_id: _Optional[str] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ResultFormat(_message.Message):
    key_encodings: _containers.RepeatedScalarFieldContainer[KeyEncoding]
    value_encoding: ValueEncoding
    def __init__(self, key_encodings: _Optional[_Iterable[_Union[KeyEncoding, str]]] = ..., value_encoding: _Optional[_Union[ValueEncoding, str]] = ...) -> None: ...

class ResultPage(_message.Message):
    counts: bytes
    moments: bytes
    next_page_token: str
    ranges: str
    round: Round
    slice: TensorSlice
    summary: TensorSummary
    weights: bytes
    def __init__(self, slice: _Optional[_Union[TensorSlice, _Mapping]] = ..., counts: _Optional[bytes] = ..., weights: _Optional[bytes] = ..., summary: _Optional[_Union[TensorSummary, _Mapping]] = ..., next_page_token: _Optional[str] = ..., round: _Optional[_Union[Round, _Mapping]] = ..., moments: _Optional[bytes] = ..., ranges: _Optional[str] = ...) -> None: ...

class Round(_message.Message):
    clip: ClipSummary
    close_time: _timestamp_pb2.Timestamp
    create_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    engine: str
    expire_time: _timestamp_pb2.Timestamp
    name: str
    num_bytes: int
    num_refused: int
    num_submissions: int
    num_tuples: int
    num_uploads: int
    recent_refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    release_id: bytes
    results: _containers.RepeatedCompositeFieldContainer[TensorSummary]
    spec: RoundSpec
    state: RoundState
    state_reason: str
    timeline: RoundTimeline
    def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[RoundSpec, _Mapping]] = ..., state: _Optional[_Union[RoundState, str]] = ..., state_reason: _Optional[str] = ..., num_submissions: _Optional[int] = ..., num_tuples: _Optional[int] = ..., num_bytes: _Optional[int] = ..., num_refused: _Optional[int] = ..., recent_refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., num_uploads: _Optional[int] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., close_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., expire_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., timeline: _Optional[_Union[RoundTimeline, _Mapping]] = ..., engine: _Optional[str] = ..., results: _Optional[_Iterable[_Union[TensorSummary, _Mapping]]] = ..., clip: _Optional[_Union[ClipSummary, _Mapping]] = ..., release_id: _Optional[bytes] = ...) -> None: ...

class RoundSpec(_message.Message):
    accept_partials: bool
    aggregation: AggregationSpec
    certificate: CertificateSpec
    clip: ClipSpec
    cluster: ClusterSpec
    deadline: _duration_pb2.Duration
    keep_submissions: bool
    max_bytes_per_submission: int
    max_submissions: int
    max_tuples_per_submission: int
    min_submissions: int
    privacy: PrivacySpec
    result_ttl: _duration_pb2.Duration
    stay_open: bool
    tensors: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    def __init__(self, tensors: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., aggregation: _Optional[_Union[AggregationSpec, _Mapping]] = ..., min_submissions: _Optional[int] = ..., max_submissions: _Optional[int] = ..., deadline: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., result_ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_tuples_per_submission: _Optional[int] = ..., max_bytes_per_submission: _Optional[int] = ..., clip: _Optional[_Union[ClipSpec, _Mapping]] = ..., privacy: _Optional[_Union[PrivacySpec, _Mapping]] = ..., certificate: _Optional[_Union[CertificateSpec, _Mapping]] = ..., keep_submissions: bool = ..., cluster: _Optional[_Union[ClusterSpec, _Mapping]] = ..., accept_partials: bool = ..., stay_open: bool = ...) -> None: ...

class RoundTimeline(_message.Message):
    finish: _duration_pb2.Duration
    longest: str
    open: _duration_pb2.Duration
    stages: _containers.RepeatedCompositeFieldContainer[StageTime]
    def __init__(self, finish: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., open: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., stages: _Optional[_Iterable[_Union[StageTime, _Mapping]]] = ..., longest: _Optional[str] = ...) -> None: ...

class SealRoundRequest(_message.Message):
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ServerActivity(_message.Message):
    history_interval: _duration_pb2.Duration
    num_ended_rounds: int
    num_refused: int
    num_rounds: int
    num_submissions: int
    num_submissions_history: _containers.RepeatedScalarFieldContainer[int]
    received_bytes: int
    received_bytes_history: _containers.RepeatedScalarFieldContainer[int]
    resident_bytes: int
    resident_bytes_history: _containers.RepeatedScalarFieldContainer[int]
    start_time: _timestamp_pb2.Timestamp
    def __init__(self, start_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., num_rounds: _Optional[int] = ..., num_ended_rounds: _Optional[int] = ..., num_submissions: _Optional[int] = ..., num_refused: _Optional[int] = ..., received_bytes: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., history_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., num_submissions_history: _Optional[_Iterable[int]] = ..., received_bytes_history: _Optional[_Iterable[int]] = ..., resident_bytes_history: _Optional[_Iterable[int]] = ...) -> None: ...

class ServerInfo(_message.Message):
    activity: ServerActivity
    api_versions: _containers.RepeatedScalarFieldContainer[str]
    engine: str
    engine_description: str
    features: _containers.RepeatedScalarFieldContainer[str]
    instance: str
    key_encodings: _containers.RepeatedScalarFieldContainer[KeyEncoding]
    limits: ServerLimits
    value_encodings: _containers.RepeatedScalarFieldContainer[ValueEncoding]
    version: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[str] = ..., api_versions: _Optional[_Iterable[str]] = ..., engine: _Optional[str] = ..., engine_description: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[ServerLimits, _Mapping]] = ..., key_encodings: _Optional[_Iterable[_Union[KeyEncoding, str]]] = ..., value_encodings: _Optional[_Iterable[_Union[ValueEncoding, str]]] = ..., warnings: _Optional[_Iterable[str]] = ..., activity: _Optional[_Union[ServerActivity, _Mapping]] = ..., instance: _Optional[str] = ...) -> None: ...

class ServerLimits(_message.Message):
    max_bytes_per_submission: int
    max_connections: int
    max_lease: _duration_pb2.Duration
    max_memory_per_tenant: int
    max_message_bytes: int
    max_open_rounds: int
    max_open_rounds_per_tenant: int
    max_open_tasks: int
    max_page_bytes: int
    max_result_ttl: _duration_pb2.Duration
    max_row_width: int
    max_submissions: int
    max_submissions_per_second_per_tenant: int
    max_task_bytes: int
    max_tensors: int
    max_transfers_per_tenant: int
    max_tuples_per_submission: int
    max_uploads: int
    max_uploads_per_tenant: int
    max_wait: _duration_pb2.Duration
    max_waiting_leases: int
    memory_limit_bytes: int
    upload_timeout: _duration_pb2.Duration
    def __init__(self, memory_limit_bytes: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_page_bytes: _Optional[int] = ..., max_open_rounds: _Optional[int] = ..., max_tensors: _Optional[int] = ..., max_row_width: _Optional[int] = ..., max_submissions: _Optional[int] = ..., max_tuples_per_submission: _Optional[int] = ..., max_bytes_per_submission: _Optional[int] = ..., max_result_ttl: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., upload_timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_uploads: _Optional[int] = ..., max_connections: _Optional[int] = ..., max_open_tasks: _Optional[int] = ..., max_task_bytes: _Optional[int] = ..., max_waiting_leases: _Optional[int] = ..., max_lease: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., max_open_rounds_per_tenant: _Optional[int] = ..., max_memory_per_tenant: _Optional[int] = ..., max_uploads_per_tenant: _Optional[int] = ..., max_transfers_per_tenant: _Optional[int] = ..., max_submissions_per_second_per_tenant: _Optional[int] = ...) -> None: ...

class Shape(_message.Message):
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class StageTime(_message.Message):
    busy: _duration_pb2.Duration
    bytes: int
    stage: str
    wait: _duration_pb2.Duration
    def __init__(self, stage: _Optional[str] = ..., busy: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., bytes: _Optional[int] = ...) -> None: ...

class Stream(_message.Message):
    create_time: _timestamp_pb2.Timestamp
    last_cut_cause: CutCause
    last_cut_time: _timestamp_pb2.Timestamp
    name: str
    num_buffered: int
    num_commits: int
    num_refused: int
    num_uploads: int
    oldest_version: int
    recent_refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    spec: StreamSpec
    staleness_counts: _containers.RepeatedScalarFieldContainer[int]
    version: int
    def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[StreamSpec, _Mapping]] = ..., version: _Optional[int] = ..., num_buffered: _Optional[int] = ..., num_commits: _Optional[int] = ..., num_refused: _Optional[int] = ..., num_uploads: _Optional[int] = ..., oldest_version: _Optional[int] = ..., staleness_counts: _Optional[_Iterable[int]] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., recent_refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., last_cut_cause: _Optional[_Union[CutCause, str]] = ..., last_cut_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class StreamCommit(_message.Message):
    base_version: int
    position: int
    staleness: int
    staleness_weight: float
    version: int
    def __init__(self, version: _Optional[int] = ..., position: _Optional[int] = ..., base_version: _Optional[int] = ..., staleness: _Optional[int] = ..., staleness_weight: _Optional[float] = ...) -> None: ...

class StreamResultRequest(_message.Message):
    format: ResultFormat
    max_page_bytes: int
    name: str
    range: KeyRange
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tensors: _Optional[_Iterable[str]] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., max_page_bytes: _Optional[int] = ..., format: _Optional[_Union[ResultFormat, _Mapping]] = ...) -> None: ...

class StreamSpec(_message.Message):
    buffer: int
    max_interval: _duration_pb2.Duration
    one_per_client: bool
    round: RoundSpec
    staleness_weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, round: _Optional[_Union[RoundSpec, _Mapping]] = ..., buffer: _Optional[int] = ..., staleness_weights: _Optional[_Iterable[float]] = ..., max_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., one_per_client: bool = ...) -> None: ...

class StreamVersion(_message.Message):
    cause: CutCause
    cut_time: _timestamp_pb2.Timestamp
    num_submissions: int
    round: str
    state: RoundState
    state_reason: str
    version: int
    def __init__(self, version: _Optional[int] = ..., round: _Optional[str] = ..., state: _Optional[_Union[RoundState, str]] = ..., state_reason: _Optional[str] = ..., num_submissions: _Optional[int] = ..., cause: _Optional[_Union[CutCause, str]] = ..., cut_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Submission(_message.Message):
    client_id: str
    client_weight: float
    content_hash: bytes
    leaf: bytes
    num_bytes: int
    num_tuples: int
    stream_commit: StreamCommit
    submission_id: str
    weight: float
    def __init__(self, client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., num_tuples: _Optional[int] = ..., num_bytes: _Optional[int] = ..., content_hash: _Optional[bytes] = ..., weight: _Optional[float] = ..., client_weight: _Optional[float] = ..., stream_commit: _Optional[_Union[StreamCommit, _Mapping]] = ..., leaf: _Optional[bytes] = ...) -> None: ...

class SubmissionReceipt(_message.Message):
    client_id: str
    leaf: bytes
    leaf_index: int
    path: _containers.RepeatedScalarFieldContainer[bytes]
    promise: bytes
    round: str
    tree_size: int
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., leaf: _Optional[bytes] = ..., promise: _Optional[bytes] = ..., leaf_index: _Optional[int] = ..., tree_size: _Optional[int] = ..., path: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SubmitBatchRequest(_message.Message):
    base_version: int
    client_ids: str
    num_keys: bytes
    round: str
    slices: _containers.RepeatedCompositeFieldContainer[TensorSlice]
    submission_id: str
    weights: bytes
    def __init__(self, round: _Optional[str] = ..., client_ids: _Optional[str] = ..., submission_id: _Optional[str] = ..., weights: _Optional[bytes] = ..., num_keys: _Optional[bytes] = ..., slices: _Optional[_Iterable[_Union[TensorSlice, _Mapping]]] = ..., base_version: _Optional[int] = ...) -> None: ...

class SubmitBatchResponse(_message.Message):
    codes: bytes
    num_bytes: int
    num_duplicates: int
    num_tuples: int
    refusals: _containers.RepeatedCompositeFieldContainer[BatchRefusal]
    def __init__(self, codes: _Optional[bytes] = ..., num_duplicates: _Optional[int] = ..., num_tuples: _Optional[int] = ..., num_bytes: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[BatchRefusal, _Mapping]]] = ...) -> None: ...

class TensorSlice(_message.Message):
    first_key: int
    key_encoding: KeyEncoding
    keys: bytes
    keys_sorted: bool
    keys_unique: bool
    num_keys: int
    tensor: str
    value_encoding: ValueEncoding
    values: bytes
    def __init__(self, tensor: _Optional[str] = ..., key_encoding: _Optional[_Union[KeyEncoding, str]] = ..., value_encoding: _Optional[_Union[ValueEncoding, str]] = ..., first_key: _Optional[int] = ..., num_keys: _Optional[int] = ..., keys: _Optional[bytes] = ..., values: _Optional[bytes] = ..., keys_sorted: bool = ..., keys_unique: bool = ...) -> None: ...

class TensorSpec(_message.Message):
    aggregation: AggregationSpec
    clip: ClipSpec
    dtype: DType
    layout: TensorLayout
    modular: bool
    name: str
    num_rows: int
    row_width: int
    shape: Shape
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., num_rows: _Optional[int] = ..., row_width: _Optional[int] = ..., layout: _Optional[_Union[TensorLayout, str]] = ..., modular: bool = ..., aggregation: _Optional[_Union[AggregationSpec, _Mapping]] = ..., shape: _Optional[_Union[Shape, _Mapping]] = ..., clip: _Optional[_Union[ClipSpec, _Mapping]] = ...) -> None: ...

class TensorSummary(_message.Message):
    dtype: DType
    fixed_point_shift: int
    has_counts: bool
    has_moments: bool
    has_values: bool
    has_weights: bool
    layout: TensorLayout
    name: str
    num_cut_keys: int
    num_keys: int
    num_rows: int
    plan: str
    row_width: int
    def __init__(self, name: _Optional[str] = ..., num_keys: _Optional[int] = ..., layout: _Optional[_Union[TensorLayout, str]] = ..., dtype: _Optional[_Union[DType, str]] = ..., row_width: _Optional[int] = ..., num_rows: _Optional[int] = ..., has_values: bool = ..., has_counts: bool = ..., has_weights: bool = ..., fixed_point_shift: _Optional[int] = ..., plan: _Optional[str] = ..., num_cut_keys: _Optional[int] = ..., has_moments: bool = ...) -> None: ...

class UpdateChunk(_message.Message):
    base_version: int
    client_id: str
    last: bool
    round: str
    sequence: int
    slices: _containers.RepeatedCompositeFieldContainer[TensorSlice]
    submission_id: str
    upload_tag: bytes
    weight: float
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., sequence: _Optional[int] = ..., last: bool = ..., weight: _Optional[float] = ..., slices: _Optional[_Iterable[_Union[TensorSlice, _Mapping]]] = ..., upload_tag: _Optional[bytes] = ..., base_version: _Optional[int] = ...) -> None: ...

class UploadStatus(_message.Message):
    client_id: str
    committed: bool
    complete: bool
    next_sequence: int
    received_tuples: int
    round: str
    submission_id: str
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., next_sequence: _Optional[int] = ..., received_tuples: _Optional[int] = ..., complete: bool = ..., committed: bool = ...) -> None: ...

class WaitRoundRequest(_message.Message):
    name: str
    timeout: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchVersionsRequest(_message.Message):
    after_version: int
    name: str
    timeout: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., after_version: _Optional[int] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchVersionsResponse(_message.Message):
    versions: _containers.RepeatedCompositeFieldContainer[StreamVersion]
    def __init__(self, versions: _Optional[_Iterable[_Union[StreamVersion, _Mapping]]] = ...) -> None: ...

class WithdrawSubmissionRequest(_message.Message):
    client_id: str
    round: str
    submission_id: str
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ...) -> None: ...

class WithdrawSubmissionResponse(_message.Message):
    withdrawn: bool
    def __init__(self, withdrawn: bool = ...) -> None: ...

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class TensorLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Op(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class AbsentPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Weighting(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ResultLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Numerics(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class NonfinitePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class BoundPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class EmptyPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class MeanDivisor(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ClipPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class KeySelection(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class KeyEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ValueEncoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class RoundState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class CutCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
