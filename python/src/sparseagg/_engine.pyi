"""The extension module; python/engine/ in the repository."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from sparseagg._internal.base.foreign import Array
from sparseagg._internal.wire.columns import Bulk

class EngineError(Exception):
    """``args``: the number of the canonical code, the text, and reason and metadata of the ErrorInfo."""

class RawResult(TypedDict):
    layout: str
    dtype: str
    keys: Array | None
    values: Array | None
    counts: Array
    weights: Array
    moments: Array
    plan: str
    num_cut_keys: int

class DeviceArray:
    """An array in the memory of the engine's device, borrowed from its library."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def is_contiguous(self) -> bool: ...

class DeviceColumn:
    """An array of a result in CUDA memory, which it lends by DLPack and by the CUDA Array Interface."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

class RawDeviceResult(TypedDict):
    layout: str
    dtype: str
    keys: DeviceColumn | None
    values: DeviceColumn | None
    counts: DeviceColumn
    weights: DeviceColumn
    plan: str

Piece = tuple[int, Array | None, Array | None, int] | tuple[int, DeviceArray | None, DeviceArray | None, int]
Convert = Callable[[str, Any], tuple[list[Piece], float | list[float] | None]]

def describe() -> str: ...
def check_spec(spec: bytes) -> None:
    """Raises EngineError for a serialised RoundSpec that no round can have."""

def force_simd(target: str) -> None: ...
def load_cuda(path: str) -> str:
    """Loads the CUDA engine from its plug-in, once per process. Returns its name and description."""

def release_memory() -> None: ...
def coarse_bits(num_rows: int) -> int: ...

class Aggregator:
    def __init__(
        self,
        spec: bytes,  # a RoundSpec
        is_stored: bool,
        threads: int,
        memory_limit: int,
        device: bool,
        noise_key: bytes,
        release_id: bytes,
    ) -> None: ...
    def add_one(self, client_id: str, update: Any, weight: float | None, convert: Convert) -> None: ...
    def add_all(self, names: list[str] | None, first: int, updates: list[Any], convert: Convert) -> None: ...
    def add_pages(self, pages: list[tuple[Any, ...]], sorts: bool, convert: Convert) -> None: ...
    def borrow(self, array: Any) -> DeviceArray:
        """Borrows an array that is in the memory of the engine's device. Raises what the array's library raises."""

    def defer_merges(self, leaves_keys: bool) -> None:
        """Leaves all merging to ``finish``: the caller keeps the updates until then."""

    def merge(self, other: Aggregator) -> None: ...
    def add_partial(self, client_id: str, blocks: list[Bulk], first: int, last: int) -> None: ...
    def export_partial(self, tensor: int, first: int, last: int, max_bytes: int) -> tuple[bytes, int | None]:
        """Returns a block of a partial, and the first key behind it; None: the block ends at ``last``."""

    def withdraw(self, client_id: str) -> bool: ...
    def finish(self, finite: Sequence[int]) -> list[RawResult] | None: ...
    def finish_on_device(self) -> list[RawDeviceResult]: ...
    @property
    def engine(self) -> str: ...
    @property
    def device_stream(self) -> tuple[int, int] | None:
        """The CUDA device whose memory the engine reads, and its stream; None if it reads only host memory."""
    @property
    def release_id(self) -> bytes: ...
    @property
    def num_submissions(self) -> int: ...
    @property
    def num_tuples(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def clip(self) -> dict[str, Any]:
        """What the bounds have done to the submissions: the fields of ClipSummary."""
    @property
    def times(self) -> tuple[float, float, float]: ...

# A tensor's name, keys (None: 0, 1, …), bytes of a key, number of keys, values (None: a union's), and their encoding.
Part = tuple[str, Bulk | None, int, int, Bulk | None, str]
# The same in the memory of the engine's device: name, keys, number of keys, and values.
DevicePart = tuple[str, DeviceArray | None, int, DeviceArray | None]

def encode_keys(keys: Array, implicit: bool, delta: bool) -> tuple[str, bytes]:
    """Returns the name of the smallest encoding of keys, uint32 or uint64, among "plain" and those; and its bytes.

    Those of "plain", which wins a tie, and of "implicit" are none.
    """

def decode_keys(data: bytes | memoryview, first_key: int, num_keys: int, key_bytes: int) -> Array:
    """Returns the keys of "delta_bitpacked" bytes, as unsigned integers of ``key_bytes``."""

def initial_rows(tensor: bytes, position: int, keys: Array) -> Array:
    """Returns the initial rows of uint64 keys: bytes, of shape (n, bytes of a row). ``tensor``: a ModelTensor."""

class OptimizerSteps:
    """The steps of one tensor by one optimizer: the state that its rows share. Not thread-safe.

    Args:
        optimizer: an OptimizerSpec; options that are unset have their defaults.
        powers: of beta_1 and beta_2, from ``powers`` of an earlier object; None: of a new tensor.
    """

    def __init__(self, optimizer: bytes, powers: tuple[float, float] | None = None) -> None: ...
    @property
    def slots(self) -> tuple[str, ...]:
        """The state of a row: "m", "v", both or none."""
    @property
    def powers(self) -> tuple[float, float]: ...
    def advance(self) -> None:
        """Counts a step of the tensor."""

    def take(self, dtype: str, x: Array, m: Array | None, v: Array | None, delta: Array, factor: float) -> None:
        """Takes the current step of some rows, in place. Releases the GIL.

        All arrays are C-contiguous and have the same number of values: ``x`` of ``dtype``, any float, as words; ``m``
        and ``v`` float32, float64 for a float64 ``x``; ``delta`` float32 or float64, multiplied by ``factor``.
        """

class MemoryRound:
    """A round of MemoryRounds, for what ``MemoryRounds.call`` does not do. Thread-safe. Errors: a server's."""

    def submit(
        self,
        client_id: str,
        submission_id: str,
        weight: float | None,
        parts: list[Part],
        base_version: int | None = None,
        device_parts: list[DevicePart] = ...,
    ) -> bytes:
        """Adds an update, of which nobody may change the keys meanwhile. Returns a CommitSubmissionResponse.

        Values of ``device_parts`` are borrowed until they are merged; nobody may change them before.
        """

    def submit_batch(
        self,
        client_ids: str,
        submission_id: str,
        weights: bytes,
        num_keys: bytes,
        parts: list[Part],
        base_version: int | None = None,
    ) -> dict[str, Any]:
        """Adds the updates of many clients, as SubmitBatchRequest has them. Returns the fields of the answer."""

    def describe(self) -> bytes:
        """Returns a Round; as the next three for private rounds, which ``MemoryRounds.call`` does not find."""

    def close(self) -> None: ...
    def cancel(self, reason: str) -> None: ...
    def await_end(self, seconds: float | None, number: int) -> None:
        """Has ``next_ended`` return ``number`` when the round has ended, or after some seconds. Does not block."""

    def read(self, tensors: list[str]) -> list[RawResult]:
        """Returns these results, all without a name. Their arrays are views of the round's, which must not change."""

    def raise_failure(self) -> None:
        """Raises the error for which the round has no result, if there is one."""

class MemoryRounds:
    """The rounds of one client. Thread-safe.

    Args:
        merges: how many rounds merge at once; with 0 none ever does, for tests.
        noise_key: secret of rounds with privacy; without it they are refused.
        device: merge with the engine of load_cuda.
    """

    def __init__(self, merges: int, noise_key: bytes = b"", device: bool = False) -> None: ...
    def borrow(self, array: Any) -> DeviceArray:
        """Borrows an array that is in the memory of the engine's device. Raises what the array's library raises."""

    @property
    def engine(self) -> str:
        """The engine's name and description."""
    @property
    def device_stream(self) -> tuple[int, int] | None:
        """As of Aggregator."""
    def create_private(self, spec: bytes) -> MemoryRound:
        """Opens a round that cannot be found."""

    def call(self, method: str, request: bytes) -> bytes:
        """Calls a unary method of v1.Aggregation and returns the response. Blocks until the method has answered."""

    def start(self, method: str, request: bytes, number: int) -> None:
        """Has ``next_ended`` return the end of such a call."""

    def find(self, name: str) -> MemoryRound: ...
    def find_target(self, name: str) -> MemoryRound:
        """Returns where submissions to a name go: a round, or the intake of a stream."""

    def close(self) -> None:
        """Cancels and forgets all rounds, takes no more, and ends ``next_ended``."""

    def next_ended(self) -> list[tuple[int, tuple[int, str, str, dict[str, str]], bytes]]:
        """Blocks until calls of ``start`` or waits are over; returns none after ``close``.

        Each has its number, the arguments of its ``EngineError`` (the code is 0 if there is none), and the response.
        """

    @property
    def memory_bytes(self) -> int:
        """Bytes of updates, partial sums and results that the rounds hold."""
