"""Who contributes what: client ids, weights, and the updates of many clients."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsFloat, SupportsIndex, Union

import numpy as np

from sparseagg._internal.base.arguments import checked_text, is_number, shown
from sparseagg._internal.base.foreign import Array, default_float_environment, is_bfloat16, to_numpy
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.arrays import TensorData, tensor_data
from sparseagg.errors import InvalidArgumentError, OutOfRangeError, ResourceExhaustedError, error_of

ClientId = Union[str, SupportsIndex]  # an integer, also NumPy's, stands for its decimal text


def checked_client_id(client_id: Any) -> str:
    """Returns a client's id: a string, or the decimal text of an integer. The round checks its length."""
    if not isinstance(client_id, str):
        if not (is_number(client_id) and isinstance(client_id, numbers.Integral)):
            cure = "; it comes before the update" if isinstance(client_id, Mapping) else ""
            raise InvalidArgumentError(f"a client id must be a string or an integer, got {shown(client_id)}{cure}")
        try:
            client_id = str(int(client_id))
        except ValueError:  # Python prints no integers of thousands of digits
            raise InvalidArgumentError(f"a client id must be at most 256 bytes long, got {shown(client_id)}") from None
    return checked_text("a client id", client_id)


def checked_weight(weight: Any) -> float | None:
    """Returns a weight as a float; ``InvalidArgumentError`` if it is no number. The round checks its value."""
    if weight is None:
        return None
    number = weight
    if _is_scalar_array(weight):
        number = to_numpy(weight)
        if number.dtype.kind in "iuf" or is_bfloat16(number.dtype):
            number = float(number)
    if not is_number(number):
        raise InvalidArgumentError(f"a weight must be a number, got {shown(weight)}")
    if type(number) is float:
        return number
    try:
        with default_float_environment():  # a longdouble is rounded
            return float(number)
    except OverflowError:
        raise InvalidArgumentError(f"a weight must be a number that float64 can hold, got {shown(weight)}") from None


def checked_updates(updates: Any) -> Any:
    """Returns ``updates``; ``InvalidArgumentError`` if they are neither a mapping nor an iterable."""
    if hasattr(updates, "__aiter__"):
        raise InvalidArgumentError(
            "updates must not be an asynchronous iterator; pass [update async for update in updates]"
        )
    if isinstance(updates, (str, bytes)) or not isinstance(updates, Iterable):
        raise InvalidArgumentError(
            f"updates must be a mapping from client ids to updates, or an iterable of updates, got {shown(updates)}"
        )
    return updates


def split_weight(update: Any) -> tuple[Any, Any]:
    """Returns an update and its weight from a pair (update, weight); a weight of None for an update alone.

    A tuple of two may also be (keys, rows). The types of its parts decide.
    """
    if not isinstance(update, tuple) or len(update) != 2:
        return update, None
    first, second = update
    # A mapping or a pair (keys, rows) cannot be keys, so the second part is a weight.
    if isinstance(second, numbers.Real) or isinstance(first, Mapping) or _is_pair_of_arrays(first):
        return update
    # An array without axes is a weight, unless the first part is one key: then it may be the key's row.
    if _is_scalar_array(second) and not _has_one_entry(first):
        return update
    return update, None


def _is_scalar_array(thing: Any) -> bool:
    """Returns whether this is an array or tensor without axes. Numbers of NumPy are not: they are numbers."""
    if isinstance(thing, numbers.Real):
        return False
    try:
        return len(thing.shape) == 0
    except Exception:  # any kind of error that the thing's library raises
        return False


def _is_pair_of_arrays(thing: Any) -> bool:
    """Returns whether this is a pair (keys, rows), and not a tuple of two keys."""
    return isinstance(thing, tuple) and len(thing) == 2 and not is_number(thing[0])


def _has_one_entry(keys: Any) -> bool:
    if isinstance(keys, list):
        return len(keys) == 1
    return bool(getattr(keys, "shape", None) == (1,))


def named_updates(updates: Any) -> Iterator[tuple[str, Any]]:
    """Yields pairs (client id, update or (update, weight)) in the order of ``updates``."""
    if isinstance(updates, Mapping):
        return ((checked_client_id(client_id), update) for client_id, update in updates.items())
    return ((f"{position:020}", update) for position, update in enumerate(updates))


@contextlib.contextmanager
def naming_client(client_id: Any) -> Iterator[None]:
    """Names the client in the refusal of an update, in the engine's form, unless the text begins with a client."""
    try:
        yield
    except (InvalidArgumentError, OutOfRangeError, ResourceExhaustedError) as error:
        if str(error).startswith("client "):
            raise
        raise error_of(error.code, f"client {client_id!r}: {error}") from error


_MOST_SUBMISSIONS = 16384  # of one message
_MOST_UPDATES = 1 << 20  # of one message: submissions times tensors of the round
_HEAD_BYTES = 16  # of a submission, besides its id, and the number of keys of each tensor


@dataclasses.dataclass(frozen=True)
class BatchColumn:
    """The tuples that all clients have of one tensor; client i has those from ``offsets[i]`` to ``offsets[i + 1]``."""

    data: TensorData
    offsets: Array  # int64, shape (clients + 1,)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Some consecutive submissions."""

    # their positions
    first: int
    stop: int
    client_ids: str  # joined by line feeds
    weights: bytes  # float64 of each, or no bytes
    num_keys: bytes  # uint32 of each, tensor by tensor
    tensors: list[TensorData]  # their tuples


def submission_columns(spec: RoundSpec, num_clients: int, updates: Mapping[str, Any]) -> list[BatchColumn]:
    """Checks and converts the columns of a batch; see ``Round.submit_batch``."""
    if not isinstance(updates, Mapping):
        raise InvalidArgumentError(
            f"updates of a batch must be a mapping from tensor names to (offsets, keys, rows), got {shown(updates)}"
        )
    return [_column(spec, num_clients, name, columns) for name, columns in updates.items()]


def _column(spec: RoundSpec, num_clients: int, name: str, columns: Any) -> BatchColumn:
    tensor = spec.tensor(name)
    if not isinstance(columns, tuple) or len(columns) != 3:
        raise InvalidArgumentError(f"tensor {name!r} of a batch must be (offsets, keys, rows), got {shown(columns)}")
    offsets = to_numpy(columns[0])
    data = tensor_data(tensor, columns[1:], spec.table_columns)
    if offsets.shape != (num_clients + 1,) or offsets.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"tensor {name!r}: offsets of {num_clients} clients must be {num_clients + 1} integers, not "
            f"{offsets.dtype} of shape {offsets.shape}"
        )
    offsets = offsets.astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != data.num_keys or (offsets[1:] < offsets[:-1]).any():
        raise InvalidArgumentError(
            f"tensor {name!r}: offsets must ascend from 0 to the number of keys, {data.num_keys}; they go from "
            f"{offsets[0]} to {offsets[-1]}"
        )
    return BatchColumn(data, offsets)


def columns_of(columns: Sequence[BatchColumn], clients: Array) -> list[BatchColumn]:
    """Returns the tuples of some clients, whose positions ascend."""
    picked = []
    for column in columns:
        sizes = np.diff(column.offsets)[clients]
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        rows = np.arange(offsets[-1]) + np.repeat(column.offsets[clients] - offsets[:-1], sizes)
        keys, values = column.data.keys, column.data.values
        data = dataclasses.replace(
            column.data,
            keys=None if keys is None else keys[rows],
            values=None if values is None else values[rows],
            num_keys=len(rows),
        )
        picked.append(BatchColumn(data, offsets))
    return picked


def batches(
    client_ids: Sequence[ClientId],
    columns: Sequence[BatchColumn],
    weights: Sequence[SupportsFloat] | Array | None,
    most_bytes: int,
    num_tensors: int,
) -> Iterator[Batch]:
    """Yields batches of about ``most_bytes`` at most, and of one submission at least. ``num_tensors``: of the round.

    Raises ``InvalidArgumentError`` if ids or weights are not as many as the clients, or not of their types.
    """
    ids = [checked_client_id(client_id) for client_id in client_ids]
    for client_id in ids:
        if "\n" in client_id:
            raise InvalidArgumentError(f"client id {client_id!r} has the control character U+000A")
    every_weight = None if weights is None else _weights(weights, len(ids))
    sizes = np.fromiter((len(client_id.encode()) for client_id in ids), np.int64, len(ids))
    sizes += _HEAD_BYTES + 4 * len(columns)
    for column in columns:
        arrays = [array for array in (column.data.keys, column.data.values) if array is not None]
        row_bytes = sum(array.nbytes for array in arrays) // max(1, column.data.num_keys)
        sizes += np.diff(column.offsets) * row_bytes
    ends = np.cumsum(sizes)
    most = min(_MOST_SUBMISSIONS, max(1, _MOST_UPDATES // num_tensors))
    first = 0
    while first < len(ids):
        limit = most_bytes + (ends[first - 1] if first else 0)
        stop = min(max(first + 1, int(np.searchsorted(ends, limit, "right"))), first + most)
        tensors = [_piece(column, first, stop) for column in columns]
        num_keys = [np.diff(column.offsets[first : stop + 1]).astype("<u4").tobytes() for column in columns]
        yield Batch(
            first,
            stop,
            "\n".join(ids[first:stop]),
            b"" if every_weight is None else every_weight[first:stop].tobytes(),
            b"".join(num_keys),
            tensors,
        )
        first = stop


def _weights(weights: Any, num_clients: int) -> Array:
    array = to_numpy(weights)
    if array.shape != (num_clients,) or array.dtype.kind not in "iuf":
        raise InvalidArgumentError(
            f"weights of {num_clients} clients must be {num_clients} numbers, not {array.dtype} of shape {array.shape}"
        )
    return array.astype("<f8")


def _piece(column: BatchColumn, first: int, stop: int) -> TensorData:
    begin, end = int(column.offsets[first]), int(column.offsets[stop])
    data = column.data
    assert data.keys is not None  # of a pair (keys, rows)
    values = None if data.values is None else data.values[begin:end]
    return dataclasses.replace(data, keys=data.keys[begin:end], values=values, num_keys=end - begin)
