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
KEY_ENCODING_BITMAP: KeyEncoding
KEY_ENCODING_DELTA_BITPACKED: KeyEncoding
KEY_ENCODING_IMPLICIT: KeyEncoding
KEY_ENCODING_U32: KeyEncoding
KEY_ENCODING_U64: KeyEncoding
KEY_ENCODING_UNSPECIFIED: KeyEncoding
KEY_SELECTION_COUNT_GAUSSIAN: KeySelection
KEY_SELECTION_PUBLIC: KeySelection
KEY_SELECTION_TRUNCATED_GEOMETRIC: KeySelection
KEY_SELECTION_UNSPECIFIED: KeySelection
KEY_SELECTION_WEIGHTED_GAUSSIAN: KeySelection
MEAN_DIVISOR_FIXED: MeanDivisor
MEAN_DIVISOR_SUBMISSIONS: MeanDivisor
MEAN_DIVISOR_UNSPECIFIED: MeanDivisor
MEAN_DIVISOR_WEIGHTS: MeanDivisor
NONFINITE_POLICY_PROPAGATE: NonfinitePolicy
NONFINITE_POLICY_REJECT: NonfinitePolicy
NONFINITE_POLICY_UNSPECIFIED: NonfinitePolicy
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
    __slots__ = ["chunk", "format", "spec"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    chunk: UpdateChunk
    format: ResultFormat
    spec: RoundSpec
    def __init__(self, spec: _Optional[_Union[RoundSpec, _Mapping]] = ..., chunk: _Optional[_Union[UpdateChunk, _Mapping]] = ..., format: _Optional[_Union[ResultFormat, _Mapping]] = ...) -> None: ...

class AggregationSpec(_message.Message):
    __slots__ = ["absent", "dense_threshold", "fill", "fixed_divisor", "mean_divisor", "min_contributors", "numerics", "on_bound", "on_empty", "on_nonfinite", "op", "prune_zeros", "quantile", "result_dtype", "result_layout", "result_min_norm", "result_top_k", "return_counts", "return_moments", "return_weights", "trim_fraction", "value_bound", "weight_bound", "weighting"]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    DENSE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    FIXED_DIVISOR_FIELD_NUMBER: _ClassVar[int]
    MEAN_DIVISOR_FIELD_NUMBER: _ClassVar[int]
    MIN_CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_FIELD_NUMBER: _ClassVar[int]
    ON_BOUND_FIELD_NUMBER: _ClassVar[int]
    ON_EMPTY_FIELD_NUMBER: _ClassVar[int]
    ON_NONFINITE_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    PRUNE_ZEROS_FIELD_NUMBER: _ClassVar[int]
    QUANTILE_FIELD_NUMBER: _ClassVar[int]
    RESULT_DTYPE_FIELD_NUMBER: _ClassVar[int]
    RESULT_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    RESULT_MIN_NORM_FIELD_NUMBER: _ClassVar[int]
    RESULT_TOP_K_FIELD_NUMBER: _ClassVar[int]
    RETURN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    RETURN_MOMENTS_FIELD_NUMBER: _ClassVar[int]
    RETURN_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TRIM_FRACTION_FIELD_NUMBER: _ClassVar[int]
    VALUE_BOUND_FIELD_NUMBER: _ClassVar[int]
    WEIGHTING_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_BOUND_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["name", "num_bytes"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    num_bytes: int
    def __init__(self, name: _Optional[str] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class BatchRefusal(_message.Message):
    __slots__ = ["client_id", "index", "reason"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    index: int
    reason: str
    def __init__(self, index: _Optional[int] = ..., client_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelRoundRequest(_message.Message):
    __slots__ = ["name", "reason"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    def __init__(self, name: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ["envelope"]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    envelope: bytes
    def __init__(self, envelope: _Optional[bytes] = ...) -> None: ...

class CertificateSpec(_message.Message):
    __slots__ = ["allow_export"]
    ALLOW_EXPORT_FIELD_NUMBER: _ClassVar[int]
    allow_export: bool
    def __init__(self, allow_export: bool = ...) -> None: ...

class ClientWeight(_message.Message):
    __slots__ = ["client_id", "weight"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    weight: float
    def __init__(self, client_id: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class ClipSpec(_message.Message):
    __slots__ = ["l2", "linf", "max_keys", "on_clip"]
    L2_FIELD_NUMBER: _ClassVar[int]
    LINF_FIELD_NUMBER: _ClassVar[int]
    MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    ON_CLIP_FIELD_NUMBER: _ClassVar[int]
    l2: float
    linf: float
    max_keys: int
    on_clip: ClipPolicy
    def __init__(self, l2: _Optional[float] = ..., linf: _Optional[float] = ..., max_keys: _Optional[int] = ..., on_clip: _Optional[_Union[ClipPolicy, str]] = ...) -> None: ...

class ClipSummary(_message.Message):
    __slots__ = ["factors", "num_clipped", "num_l2", "num_linf", "num_max_keys"]
    FACTORS_FIELD_NUMBER: _ClassVar[int]
    NUM_CLIPPED_FIELD_NUMBER: _ClassVar[int]
    NUM_L2_FIELD_NUMBER: _ClassVar[int]
    NUM_LINF_FIELD_NUMBER: _ClassVar[int]
    NUM_MAX_KEYS_FIELD_NUMBER: _ClassVar[int]
    factors: _containers.RepeatedScalarFieldContainer[int]
    num_clipped: int
    num_l2: int
    num_linf: int
    num_max_keys: int
    def __init__(self, num_clipped: _Optional[int] = ..., num_l2: _Optional[int] = ..., num_linf: _Optional[int] = ..., num_max_keys: _Optional[int] = ..., factors: _Optional[_Iterable[int]] = ...) -> None: ...

class CloseRoundRequest(_message.Message):
    __slots__ = ["client_weights", "name", "only_client_ids"]
    CLIENT_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONLY_CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    client_weights: _containers.RepeatedCompositeFieldContainer[ClientWeight]
    name: str
    only_client_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., only_client_ids: _Optional[_Iterable[str]] = ..., client_weights: _Optional[_Iterable[_Union[ClientWeight, _Mapping]]] = ...) -> None: ...

class ClusterSpec(_message.Message):
    __slots__ = ["index", "servers"]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SERVERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    servers: _containers.RepeatedCompositeFieldContainer[HomeServer]
    def __init__(self, servers: _Optional[_Iterable[_Union[HomeServer, _Mapping]]] = ..., index: _Optional[int] = ...) -> None: ...

class CommitSubmissionRequest(_message.Message):
    __slots__ = ["client_id", "round", "submission_id", "upload_tag"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_TAG_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    round: str
    submission_id: str
    upload_tag: bytes
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., upload_tag: _Optional[bytes] = ...) -> None: ...

class CommitSubmissionResponse(_message.Message):
    __slots__ = ["client_id", "duplicate", "num_bytes", "num_tuples", "round", "stream_commit", "submission_id"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_TUPLES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STREAM_COMMIT_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    duplicate: bool
    num_bytes: int
    num_tuples: int
    round: str
    stream_commit: StreamCommit
    submission_id: str
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., duplicate: bool = ..., num_tuples: _Optional[int] = ..., num_bytes: _Optional[int] = ..., stream_commit: _Optional[_Union[StreamCommit, _Mapping]] = ...) -> None: ...

class CreateBackupRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CreateRoundRequest(_message.Message):
    __slots__ = ["round_id", "spec"]
    ROUND_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    round_id: str
    spec: RoundSpec
    def __init__(self, round_id: _Optional[str] = ..., spec: _Optional[_Union[RoundSpec, _Mapping]] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    __slots__ = ["spec", "stream_id"]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    spec: StreamSpec
    stream_id: str
    def __init__(self, stream_id: _Optional[str] = ..., spec: _Optional[_Union[StreamSpec, _Mapping]] = ...) -> None: ...

class CutStreamRequest(_message.Message):
    __slots__ = ["name", "version"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class DeleteRoundRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DeleteStreamRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ExportPartialRequest(_message.Message):
    __slots__ = ["max_page_bytes", "max_pages", "name", "page_token", "range", "tensor"]
    MAX_PAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    max_page_bytes: int
    max_pages: int
    name: str
    page_token: str
    range: KeyRange
    tensor: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ..., max_pages: _Optional[int] = ...) -> None: ...

class ExportRoundRequest(_message.Message):
    __slots__ = ["max_page_bytes", "name", "page_token"]
    MAX_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    max_page_bytes: int
    name: str
    page_token: str
    def __init__(self, name: _Optional[str] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ExportRoundResponse(_message.Message):
    __slots__ = ["chunks", "next_page_token"]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[ExportedChunk]
    next_page_token: str
    def __init__(self, chunks: _Optional[_Iterable[_Union[ExportedChunk, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExportSubmissionsRequest(_message.Message):
    __slots__ = ["key_encodings", "max_page_bytes", "max_pages", "name", "page_token", "range", "sample_every", "tensor"]
    KEY_ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_EVERY_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    key_encodings: _containers.RepeatedScalarFieldContainer[KeyEncoding]
    max_page_bytes: int
    max_pages: int
    name: str
    page_token: str
    range: KeyRange
    sample_every: int
    tensor: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ..., sample_every: _Optional[int] = ..., max_pages: _Optional[int] = ..., key_encodings: _Optional[_Iterable[_Union[KeyEncoding, str]]] = ...) -> None: ...

class ExportedChunk(_message.Message):
    __slots__ = ["chunk", "client_id", "client_weight", "last", "leaf", "submission_id"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    client_id: str
    client_weight: float
    last: bool
    leaf: bytes
    submission_id: str
    def __init__(self, client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., chunk: _Optional[bytes] = ..., last: bool = ..., client_weight: _Optional[float] = ..., leaf: _Optional[bytes] = ...) -> None: ...

class ExportedPartial(_message.Message):
    __slots__ = ["blocks", "next_page_token"]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    blocks: bytes
    next_page_token: str
    def __init__(self, blocks: _Optional[bytes] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ExportedSubmissions(_message.Message):
    __slots__ = ["client_ids", "next_page_token", "num_keys", "slice", "weights"]
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_KEYS_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    client_ids: str
    next_page_token: str
    num_keys: bytes
    slice: TensorSlice
    weights: bytes
    def __init__(self, client_ids: _Optional[str] = ..., weights: _Optional[bytes] = ..., num_keys: _Optional[bytes] = ..., slice: _Optional[_Union[TensorSlice, _Mapping]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class GetCertificateRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetReceiptRequest(_message.Message):
    __slots__ = ["client_id", "round", "submission_id"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    round: str
    submission_id: str
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ...) -> None: ...

class GetResultRangeRequest(_message.Message):
    __slots__ = ["begin", "name", "tensor"]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    begin: int
    name: str
    tensor: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., begin: _Optional[int] = ...) -> None: ...

class GetResultRequest(_message.Message):
    __slots__ = ["format", "max_page_bytes", "name", "page_token", "range", "tensor"]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    format: ResultFormat
    max_page_bytes: int
    name: str
    page_token: str
    range: KeyRange
    tensor: str
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ..., format: _Optional[_Union[ResultFormat, _Mapping]] = ...) -> None: ...

class GetRoundRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ["with_activity"]
    WITH_ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    with_activity: bool
    def __init__(self, with_activity: bool = ...) -> None: ...

class GetStreamRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetUploadStatusRequest(_message.Message):
    __slots__ = ["client_id", "round", "submission_id", "upload_tag"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_TAG_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    round: str
    submission_id: str
    upload_tag: bytes
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., upload_tag: _Optional[bytes] = ...) -> None: ...

class HomeServer(_message.Message):
    __slots__ = ["address", "http_url", "instance"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_URL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    address: str
    http_url: str
    instance: str
    def __init__(self, address: _Optional[str] = ..., http_url: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class InspectRoundRequest(_message.Message):
    __slots__ = ["max_page_bytes", "name", "page_token", "tensors"]
    MAX_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    max_page_bytes: int
    name: str
    page_token: str
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tensors: _Optional[_Iterable[str]] = ..., max_page_bytes: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class InspectRoundResponse(_message.Message):
    __slots__ = ["client_ids", "first_row", "gram", "next_page_token", "num_clients", "overlap", "squared_distances"]
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_FIELD_NUMBER: _ClassVar[int]
    GRAM_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    SQUARED_DISTANCES_FIELD_NUMBER: _ClassVar[int]
    client_ids: _containers.RepeatedScalarFieldContainer[str]
    first_row: int
    gram: bytes
    next_page_token: str
    num_clients: int
    overlap: bytes
    squared_distances: bytes
    def __init__(self, num_clients: _Optional[int] = ..., first_row: _Optional[int] = ..., client_ids: _Optional[_Iterable[str]] = ..., gram: _Optional[bytes] = ..., overlap: _Optional[bytes] = ..., next_page_token: _Optional[str] = ..., squared_distances: _Optional[bytes] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ["begin", "end"]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: int
    end: int
    def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class ListRoundsRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListRoundsResponse(_message.Message):
    __slots__ = ["next_page_token", "rounds"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    def __init__(self, rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ["page_size", "page_token"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ["next_page_token", "streams"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    def __init__(self, streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListSubmissionsRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "parent", "with_leaves"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    WITH_LEAVES_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    parent: str
    with_leaves: bool
    def __init__(self, parent: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., with_leaves: bool = ...) -> None: ...

class ListSubmissionsResponse(_message.Message):
    __slots__ = ["next_page_token", "submissions", "withdrawn_leaves"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_LEAVES_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    submissions: _containers.RepeatedCompositeFieldContainer[Submission]
    withdrawn_leaves: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, submissions: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., withdrawn_leaves: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PrivacySpec(_message.Message):
    __slots__ = ["delta", "key_epsilon", "key_noise_multiplier", "keys", "noise_multiplier", "public_keys"]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEY_EPSILON_FIELD_NUMBER: _ClassVar[int]
    KEY_NOISE_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    NOISE_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEYS_FIELD_NUMBER: _ClassVar[int]
    delta: float
    key_epsilon: float
    key_noise_multiplier: float
    keys: KeySelection
    noise_multiplier: float
    public_keys: _containers.RepeatedCompositeFieldContainer[PublicKeys]
    def __init__(self, noise_multiplier: _Optional[float] = ..., keys: _Optional[_Union[KeySelection, str]] = ..., key_noise_multiplier: _Optional[float] = ..., key_epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., public_keys: _Optional[_Iterable[_Union[PublicKeys, _Mapping]]] = ...) -> None: ...

class PublicKeys(_message.Message):
    __slots__ = ["keys", "tensor"]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[int]
    tensor: str
    def __init__(self, tensor: _Optional[str] = ..., keys: _Optional[_Iterable[int]] = ...) -> None: ...

class PutResultRangeRequest(_message.Message):
    __slots__ = ["create_time", "name", "only", "page", "plan", "range"]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    create_time: _timestamp_pb2.Timestamp
    name: str
    only: str
    page: ResultPage
    plan: str
    range: KeyRange
    def __init__(self, name: _Optional[str] = ..., create_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ..., only: _Optional[str] = ..., plan: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., page: _Optional[_Union[ResultPage, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ["client_id", "code", "reason", "time"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    code: str
    reason: str
    time: _timestamp_pb2.Timestamp
    def __init__(self, client_id: _Optional[str] = ..., code: _Optional[str] = ..., reason: _Optional[str] = ..., time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ResultFormat(_message.Message):
    __slots__ = ["key_encodings", "value_encoding"]
    KEY_ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    VALUE_ENCODING_FIELD_NUMBER: _ClassVar[int]
    key_encodings: _containers.RepeatedScalarFieldContainer[KeyEncoding]
    value_encoding: ValueEncoding
    def __init__(self, key_encodings: _Optional[_Iterable[_Union[KeyEncoding, str]]] = ..., value_encoding: _Optional[_Union[ValueEncoding, str]] = ...) -> None: ...

class ResultPage(_message.Message):
    __slots__ = ["counts", "moments", "next_page_token", "ranges", "round", "slice", "summary", "weights"]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SLICE_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["clip", "close_time", "create_time", "end_time", "engine", "expire_time", "name", "num_bytes", "num_refused", "num_submissions", "num_tuples", "num_uploads", "recent_refusals", "release_id", "results", "spec", "state", "state_reason", "timeline"]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    CLOSE_TIME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    NUM_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_TUPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_UPLOADS_FIELD_NUMBER: _ClassVar[int]
    RECENT_REFUSALS_FIELD_NUMBER: _ClassVar[int]
    RELEASE_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["accept_partials", "aggregation", "certificate", "clip", "cluster", "deadline", "keep_submissions", "max_bytes_per_submission", "max_submissions", "max_tuples_per_submission", "min_submissions", "privacy", "result_ttl", "stay_open", "tensors"]
    ACCEPT_PARTIALS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    KEEP_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_PER_SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    MAX_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_TUPLES_PER_SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    MIN_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    RESULT_TTL_FIELD_NUMBER: _ClassVar[int]
    STAY_OPEN_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["finish", "longest", "open", "stages"]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    finish: _duration_pb2.Duration
    longest: str
    open: _duration_pb2.Duration
    stages: _containers.RepeatedCompositeFieldContainer[StageTime]
    def __init__(self, finish: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., open: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., stages: _Optional[_Iterable[_Union[StageTime, _Mapping]]] = ..., longest: _Optional[str] = ...) -> None: ...

class SealRoundRequest(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ServerActivity(_message.Message):
    __slots__ = ["history_interval", "num_ended_rounds", "num_refused", "num_rounds", "num_submissions", "num_submissions_history", "received_bytes", "received_bytes_history", "resident_bytes", "resident_bytes_history", "start_time"]
    HISTORY_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    NUM_ENDED_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    NUM_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_SUBMISSIONS_HISTORY_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_HISTORY_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_HISTORY_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["activity", "api_versions", "engine", "engine_description", "features", "instance", "key_encodings", "limits", "value_encodings", "version", "warnings"]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    API_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    KEY_ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VALUE_ENCODINGS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["max_bytes_per_submission", "max_connections", "max_lease", "max_memory_per_tenant", "max_message_bytes", "max_open_rounds", "max_open_rounds_per_tenant", "max_open_tasks", "max_page_bytes", "max_result_ttl", "max_row_width", "max_submissions", "max_submissions_per_second_per_tenant", "max_task_bytes", "max_tensors", "max_transfers_per_tenant", "max_tuples_per_submission", "max_uploads", "max_uploads_per_tenant", "max_wait", "max_waiting_leases", "memory_limit_bytes", "upload_timeout"]
    MAX_BYTES_PER_SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    MAX_CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_MEMORY_PER_TENANT_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_OPEN_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    MAX_OPEN_ROUNDS_PER_TENANT_FIELD_NUMBER: _ClassVar[int]
    MAX_OPEN_TASKS_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RESULT_TTL_FIELD_NUMBER: _ClassVar[int]
    MAX_ROW_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SUBMISSIONS_PER_SECOND_PER_TENANT_FIELD_NUMBER: _ClassVar[int]
    MAX_TASK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TENSORS_FIELD_NUMBER: _ClassVar[int]
    MAX_TRANSFERS_PER_TENANT_FIELD_NUMBER: _ClassVar[int]
    MAX_TUPLES_PER_SUBMISSION_FIELD_NUMBER: _ClassVar[int]
    MAX_UPLOADS_FIELD_NUMBER: _ClassVar[int]
    MAX_UPLOADS_PER_TENANT_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_LEASES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["sizes"]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class StageTime(_message.Message):
    __slots__ = ["busy", "bytes", "stage", "wait"]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    busy: _duration_pb2.Duration
    bytes: int
    stage: str
    wait: _duration_pb2.Duration
    def __init__(self, stage: _Optional[str] = ..., busy: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., bytes: _Optional[int] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ["create_time", "last_cut_cause", "last_cut_time", "name", "num_buffered", "num_commits", "num_refused", "num_uploads", "oldest_version", "recent_refusals", "spec", "staleness_counts", "version"]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    LAST_CUT_CAUSE_FIELD_NUMBER: _ClassVar[int]
    LAST_CUT_TIME_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_BUFFERED_FIELD_NUMBER: _ClassVar[int]
    NUM_COMMITS_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    NUM_UPLOADS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    RECENT_REFUSALS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STALENESS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["base_version", "position", "staleness", "staleness_weight", "version"]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    base_version: int
    position: int
    staleness: int
    staleness_weight: float
    version: int
    def __init__(self, version: _Optional[int] = ..., position: _Optional[int] = ..., base_version: _Optional[int] = ..., staleness: _Optional[int] = ..., staleness_weight: _Optional[float] = ...) -> None: ...

class StreamResultRequest(_message.Message):
    __slots__ = ["format", "max_page_bytes", "name", "range", "tensors"]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    format: ResultFormat
    max_page_bytes: int
    name: str
    range: KeyRange
    tensors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tensors: _Optional[_Iterable[str]] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., max_page_bytes: _Optional[int] = ..., format: _Optional[_Union[ResultFormat, _Mapping]] = ...) -> None: ...

class StreamSpec(_message.Message):
    __slots__ = ["buffer", "max_interval", "one_per_client", "round", "staleness_weights"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    MAX_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    ONE_PER_CLIENT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STALENESS_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    max_interval: _duration_pb2.Duration
    one_per_client: bool
    round: RoundSpec
    staleness_weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, round: _Optional[_Union[RoundSpec, _Mapping]] = ..., buffer: _Optional[int] = ..., staleness_weights: _Optional[_Iterable[float]] = ..., max_interval: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., one_per_client: bool = ...) -> None: ...

class StreamVersion(_message.Message):
    __slots__ = ["cause", "cut_time", "num_submissions", "round", "state", "state_reason", "version"]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    CUT_TIME_FIELD_NUMBER: _ClassVar[int]
    NUM_SUBMISSIONS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    cause: CutCause
    cut_time: _timestamp_pb2.Timestamp
    num_submissions: int
    round: str
    state: RoundState
    state_reason: str
    version: int
    def __init__(self, version: _Optional[int] = ..., round: _Optional[str] = ..., state: _Optional[_Union[RoundState, str]] = ..., state_reason: _Optional[str] = ..., num_submissions: _Optional[int] = ..., cause: _Optional[_Union[CutCause, str]] = ..., cut_time: _Optional[_Union[_timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Submission(_message.Message):
    __slots__ = ["client_id", "client_weight", "content_hash", "leaf", "num_bytes", "num_tuples", "stream_commit", "submission_id", "weight"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_HASH_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_TUPLES_FIELD_NUMBER: _ClassVar[int]
    STREAM_COMMIT_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["client_id", "leaf", "leaf_index", "path", "promise", "round", "tree_size"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    LEAF_INDEX_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TREE_SIZE_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    leaf: bytes
    leaf_index: int
    path: _containers.RepeatedScalarFieldContainer[bytes]
    promise: bytes
    round: str
    tree_size: int
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., leaf: _Optional[bytes] = ..., promise: _Optional[bytes] = ..., leaf_index: _Optional[int] = ..., tree_size: _Optional[int] = ..., path: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SubmitBatchRequest(_message.Message):
    __slots__ = ["base_version", "client_ids", "num_keys", "round", "slices", "submission_id", "weights"]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_KEYS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    base_version: int
    client_ids: str
    num_keys: bytes
    round: str
    slices: _containers.RepeatedCompositeFieldContainer[TensorSlice]
    submission_id: str
    weights: bytes
    def __init__(self, round: _Optional[str] = ..., client_ids: _Optional[str] = ..., submission_id: _Optional[str] = ..., weights: _Optional[bytes] = ..., num_keys: _Optional[bytes] = ..., slices: _Optional[_Iterable[_Union[TensorSlice, _Mapping]]] = ..., base_version: _Optional[int] = ...) -> None: ...

class SubmitBatchResponse(_message.Message):
    __slots__ = ["codes", "num_bytes", "num_duplicates", "num_tuples", "refusals"]
    CODES_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    NUM_TUPLES_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    codes: bytes
    num_bytes: int
    num_duplicates: int
    num_tuples: int
    refusals: _containers.RepeatedCompositeFieldContainer[BatchRefusal]
    def __init__(self, codes: _Optional[bytes] = ..., num_duplicates: _Optional[int] = ..., num_tuples: _Optional[int] = ..., num_bytes: _Optional[int] = ..., refusals: _Optional[_Iterable[_Union[BatchRefusal, _Mapping]]] = ...) -> None: ...

class TensorSlice(_message.Message):
    __slots__ = ["first_key", "key_encoding", "keys", "keys_sorted", "keys_unique", "num_keys", "tensor", "value_encoding", "values"]
    FIRST_KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KEYS_SORTED_FIELD_NUMBER: _ClassVar[int]
    KEYS_UNIQUE_FIELD_NUMBER: _ClassVar[int]
    KEY_ENCODING_FIELD_NUMBER: _ClassVar[int]
    NUM_KEYS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VALUE_ENCODING_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["aggregation", "clip", "dtype", "layout", "modular", "name", "num_rows", "row_width", "shape"]
    AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MODULAR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    ROW_WIDTH_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["dtype", "fixed_point_shift", "has_counts", "has_moments", "has_values", "has_weights", "layout", "name", "num_cut_keys", "num_keys", "num_rows", "plan", "row_width"]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    FIXED_POINT_SHIFT_FIELD_NUMBER: _ClassVar[int]
    HAS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    HAS_MOMENTS_FIELD_NUMBER: _ClassVar[int]
    HAS_VALUES_FIELD_NUMBER: _ClassVar[int]
    HAS_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUM_CUT_KEYS_FIELD_NUMBER: _ClassVar[int]
    NUM_KEYS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    ROW_WIDTH_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["base_version", "client_id", "last", "round", "sequence", "slices", "submission_id", "upload_tag", "weight"]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_TAG_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ["client_id", "committed", "complete", "next_sequence", "received_tuples", "round", "submission_id"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TUPLES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    committed: bool
    complete: bool
    next_sequence: int
    received_tuples: int
    round: str
    submission_id: str
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ..., next_sequence: _Optional[int] = ..., received_tuples: _Optional[int] = ..., complete: bool = ..., committed: bool = ...) -> None: ...

class WaitRoundRequest(_message.Message):
    __slots__ = ["name", "timeout"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    timeout: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchVersionsRequest(_message.Message):
    __slots__ = ["after_version", "name", "timeout"]
    AFTER_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    after_version: int
    name: str
    timeout: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., after_version: _Optional[int] = ..., timeout: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchVersionsResponse(_message.Message):
    __slots__ = ["versions"]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[StreamVersion]
    def __init__(self, versions: _Optional[_Iterable[_Union[StreamVersion, _Mapping]]] = ...) -> None: ...

class WithdrawSubmissionRequest(_message.Message):
    __slots__ = ["client_id", "round", "submission_id"]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SUBMISSION_ID_FIELD_NUMBER: _ClassVar[int]
    client_id: str
    round: str
    submission_id: str
    def __init__(self, round: _Optional[str] = ..., client_id: _Optional[str] = ..., submission_id: _Optional[str] = ...) -> None: ...

class WithdrawSubmissionResponse(_message.Message):
    __slots__ = ["withdrawn"]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
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
