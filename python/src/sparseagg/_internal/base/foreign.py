"""Arrays of other libraries, as NumPy's arrays and as keys and rows."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np

# Attributes of tables: of pandas, Polars, Arrow, Spark, DuckDB, Dask, and of the interchange protocol.
_TABLE_MARKS = ("columns", "column_names", "__dataframe__")
# What NumPy makes an array of without a guess.
_ARRAY_MARKS = ("__array__", "__array_interface__", "__array_struct__", "__dlpack__")

_PLAIN = (int, float, np.generic)


def has_attribute(thing: Any, *names: str) -> bool:
    """Returns whether the class of a thing has one of the attributes. No code of the thing's library runs.

    The columns of a frame and the labels of a series are attributes of the instance, with any names.
    """
    return any(hasattr(type(thing), name) for name in names)


def has_columns(thing: Any) -> bool:
    """Returns whether this is a table."""
    return has_attribute(thing, *_TABLE_MARKS)


def to_numpy(array: Any) -> Array:
    """Returns a NumPy array, which shares memory with ``array`` where its library can.

    Raises:
        Exception: of any kind, as the array's library raises them; ``ValueError`` for what NumPy takes for an array and
            reads as something else: the columns of a table, the keys of a mapping, bytes as numbers, entries that are
            masked or missing as values, axes with labels.
    """
    if isinstance(array, np.ndarray):
        return _unmasked(array)
    _refuse_other(array)
    if hasattr(array, "detach") and hasattr(array, "cpu"):  # torch
        array = array.detach().cpu()
        if hasattr(array, "resolve_neg"):
            array = array.resolve_neg()  # NumPy has no negated views
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()  # exact; NumPy has no bfloat16
        return _unmasked(np.asanyarray(array.numpy()))
    if isinstance(array, (list, tuple, collections.deque)):
        return _from_sequence(array)
    _refuse_missing(array)
    if callable(getattr(array, "numpy", None)):  # TensorFlow
        return _unmasked(np.asanyarray(array.numpy()))
    if not hasattr(array, "__array__") and hasattr(array, "__dlpack__"):
        return np.asarray(np.from_dlpack(array))
    return _unmasked(np.asanyarray(array))


def _unmasked(array: Array) -> Array:
    """Returns the array; raises if it is of objects or has masked entries, whose values have no meaning.

    The array is of no subclass, such as a matrix, which has two axes in every shape. Without entries, any type will do.
    """
    if np.ma.is_masked(array):
        raise ValueError("some of its entries are masked")
    if array.dtype == object and array.size:
        raise ValueError("it is no array of numbers")
    return np.asarray(array)


def _refuse_other(thing: Any) -> None:
    """Raises for what is no array, and NumPy would make one of nevertheless."""
    if has_columns(thing):
        raise ValueError("it is a table; give one of its columns, or the whole table as the tensor")
    if isinstance(thing, Mapping):
        raise ValueError("it is a mapping, not an array")
    if isinstance(thing, (str, bytes, bytearray)):
        raise ValueError("it is text or raw bytes, whose type is not known; np.frombuffer makes an array")
    if has_attribute(thing, "dims") and len(getattr(thing, "indexes", ())):  # xarray
        raise ValueError("its axes have labels; give (labels, rows), or its values alone")
    if isinstance(thing, (numbers.Number, np.generic, Sequence)) or has_attribute(thing, *_ARRAY_MARKS):
        return
    if callable(getattr(thing, "numpy", None)):
        return
    try:
        memoryview(thing)
    except TypeError:
        raise ValueError("it is no array") from None


def _from_sequence(things: Any) -> Array:
    """Returns the array of a list, whose items may be numbers, lists or arrays."""
    if not _is_plain(things):
        things = [thing if isinstance(thing, _PLAIN) else to_numpy(thing) for thing in things]
    return _unmasked(np.asarray(things))


def _is_plain(things: Any) -> bool:
    """Returns whether these are numbers, or lists of numbers."""
    kinds = [kind for kind in set(map(type, things)) if not issubclass(kind, _PLAIN)]
    if not set(kinds) <= {list, tuple}:
        return False
    return not kinds or all(isinstance(thing, _PLAIN) or _is_plain(thing) for thing in things)


def _refuse_missing(array: Any) -> None:
    """Raises for entries that are missing, which NumPy reads as NaN: of arrays of Arrow, Polars and pandas."""
    if has_attribute(array, "null_count"):
        count = array.null_count
        missing = array.is_null() if (count() if callable(count) else count) else ()
    elif has_attribute(array, "isna") and not isinstance(getattr(array, "dtype", None), np.dtype):
        missing = array.isna()
    else:
        return
    positions = np.flatnonzero(np.asarray(missing))
    if len(positions):
        raise ValueError(f"it has a missing value at position {positions[0]}")


Array = np.ndarray[Any, Any]
Rows = Union[Array, list[Array]]  # a list: the columns, of any types, each of shape (n,)


@dataclasses.dataclass(frozen=True)
class Keyed:
    """A row at each key. Keys may come more than once.

    Attributes:
        keys: of any type, shape (n,).
        rows: shape (n,) or (n, …); None if there are keys alone.
    """

    keys: Array
    rows: Rows | None


@dataclasses.dataclass(frozen=True)
class Entries:
    """The stored entries of a sparse array, whose last axes may be dense. Entries may come more than once.

    Attributes:
        coordinates: for each sparse axis the entries' positions, shape (n,). They may lie outside the axis.
        values: shape (n, …), with the dense axes.
        shape: of the array.

    Raises:
        ValueError: the three do not go together.
    """

    coordinates: list[Array]
    values: Array
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        num_axes, values = len(self.coordinates), self.values
        if not 0 < num_axes <= len(self.shape):
            raise ValueError(f"it has indices for {num_axes} axes, but shape {self.shape}")
        if values.ndim == 0 or values.shape[1:] != tuple(self.shape[num_axes:]):
            raise ValueError(
                f"its values of shape {values.shape} do not go with shape {self.shape}, of which the indices are for "
                f"{num_axes} axes"
            )
        for axis, coordinates in enumerate(self.coordinates):
            if coordinates.shape != values.shape[:1]:
                raise ValueError(
                    f"it has {len(values)} values, but indices of shape {coordinates.shape} for axis {axis}"
                )
            if coordinates.size and coordinates.dtype.kind not in "iu":
                raise ValueError(f"its indices must be integers, got {coordinates.dtype}")


Parts = Union[Keyed, Entries, None]  # None: the array is no sparse one


# The device of an array that does not name its device: the CUDA Array Interface has no field for it.
ANY_DEVICE = -1

# Kinds of memory in DLPack that a CUDA device reads: its own, and managed memory.
_CUDA_KINDS = (2, 13)

# For errors of reading an array that is on a GPU.
READ_ON_GPU = (
    "; it is in the memory of a GPU: copy it to host memory, or merge it there with "
    "sparseagg.aggregate and the package sparseagg-cuda13, the wheel of `make cuda-wheel`"
)


def cuda_device(array: Any) -> int | None:
    """Returns the number of the CUDA device that an array is on, ``ANY_DEVICE`` if the array does not name it.

    None for arrays in host memory, and for things that are no arrays.
    """
    if isinstance(array, np.ndarray):
        return None
    try:
        if has_attribute(array, "__dlpack_device__"):
            kind, device = array.__dlpack_device__()
            return int(device) if int(kind) in _CUDA_KINDS else None
        # Libraries raise AttributeError where the array is in host memory.
        if has_attribute(array, "__cuda_array_interface__") and array.__cuda_array_interface__ is not None:
            return ANY_DEVICE
    except Exception:  # any kind of error that the array's library raises, such as of an array on several devices
        pass
    return None


def is_torch_coo(tensor: Any) -> bool:
    """Returns whether this is a sparse COO tensor of torch."""
    return str(getattr(tensor, "layout", "")) == "torch.sparse_coo"


def has_device_arrays(update: Any) -> bool:
    """Returns whether one of the arrays of an update is on a CUDA device.

    ``update``: as of ``Round.submit``, or with a weight. Numbers in lists are not looked at one by one.
    """
    if isinstance(update, np.ndarray):
        return False
    if isinstance(update, Mapping) and not hasattr(update, "tocoo"):  # SciPy's dok_matrix is a mapping
        return any(map(has_device_arrays, update.values()))
    if isinstance(update, tuple):
        return any(map(has_device_arrays, update))
    if isinstance(update, list):
        return bool(update) and hasattr(update[0], "shape") and any(map(has_device_arrays, update))
    if callable(getattr(update, "named_parameters", None)):
        return any(cuda_device(parameter.grad) is not None for _, parameter in update.named_parameters())
    return cuda_device(update) is not None


def expand_pointers(
    pointers: Array, indices: Array, num_lines: int, line_length: int, what: str, *, padded: bool = False
) -> tuple[Array, Array, Array]:
    """Returns the batch, the line and the place in the line of each entry, int64, in the order of the entries.

    Args:
        pointers: where each line's entries begin, and where the last one's end; shape (batches, num_lines + 1).
        indices: places in the lines; shape (batches, n).
        num_lines: rows, if rows are compressed; else columns. Of blocks, if there are blocks.
        line_length: places are below it.
        what: the pointers' name in their library, for errors.
        padded: entries behind the last pointer are there; their line is ``num_lines``. Otherwise there must be none.

    Raises:
        ValueError: pointers do not begin at 0, descend, or do not end with the entries; or a place is outside.
    """
    if pointers.shape[-1] != num_lines + 1:
        raise ValueError(f"{what} has {pointers.shape[-1]} entries, but {num_lines} lines need {num_lines + 1}")
    if len(pointers) != len(indices):
        raise ValueError(f"{what} is of {len(pointers)} batches, and there are indices of {len(indices)}")
    for name, array in ((what, pointers), ("indices", indices)):
        if array.size and array.dtype.kind not in "iu":
            raise ValueError(f"{name} must be integers, got {array.dtype}")
    pointers, indices = pointers.astype(np.int64), indices.astype(np.int64)
    num_batches, num_entries = indices.shape
    lengths = np.diff(pointers, axis=1)
    _refuse(pointers[:, :1] != 0, pointers, f"{what} must begin with 0")
    _refuse(lengths < 0, lengths, f"{what} must not descend, but a line has a negative length")
    ends = pointers[:, -1:]
    _refuse(ends > num_entries if padded else ends != num_entries, ends, f"{what} must end at {num_entries} entries")
    if padded:
        lengths = np.concatenate([lengths, num_entries - ends], axis=1)
    else:
        _refuse((indices < 0) | (indices >= line_length), indices, f"indices must be in [0, {line_length})")
    lines = np.repeat(np.tile(np.arange(lengths.shape[1]), num_batches), lengths.reshape(-1))
    batches = np.repeat(np.arange(num_batches), num_entries)
    return batches, lines, indices.reshape(-1)


def expand_blocks(rows: Array, columns: Array, block: Sequence[int]) -> tuple[Array, Array]:
    """Returns the row and the column of each element of blocks, block after block, from the blocks' own."""
    in_row, in_column = np.indices(tuple(block)).reshape(2, math.prod(block))
    return (
        (rows[:, np.newaxis] * block[0] + in_row).reshape(-1),
        (columns[:, np.newaxis] * block[1] + in_column).reshape(-1),
    )


def _refuse(bad: Array, values: Array, rule: str) -> None:
    if bad.any():
        batch, at = (int(axis[0]) for axis in np.nonzero(bad))
        where = f" of batch {batch}" if len(values) > 1 else ""
        raise ValueError(f"{rule}; got {values[batch, at]} at position {at}{where}")


def read_parts(tensor: Any) -> Parts:
    """Returns the parts of a sparse array; None for other things, which may be dense arrays.

    Stored zeros are entries. SciPy, torch, TensorFlow, JAX and pydata's sparse are known.

    Raises:
        Exception: of any kind, as the array's library raises them; ``ValueError`` where the array makes no sense.
    """
    reader = _reader_of(tensor)
    return None if reader is None else reader(tensor)


def is_sparse(tensor: Any) -> bool:
    """Returns whether this is a sparse array, which ``read_parts`` reads."""
    return _reader_of(tensor) is not None


def _reader_of(tensor: Any) -> Callable[[Any], Parts] | None:
    if isinstance(tensor, np.ndarray):
        return None
    if hasattr(tensor, "fill_value") and hasattr(tensor, "todense"):
        return _read_pydata
    if hasattr(tensor, "tocoo"):
        return _read_scipy
    if str(getattr(tensor, "layout", "")).startswith("torch.sparse_"):
        return _read_torch
    if hasattr(tensor, "dense_shape") and hasattr(tensor, "indices"):
        return _read_tensor_flow
    if hasattr(tensor, "n_batch") and hasattr(tensor, "n_sparse"):
        return _read_jax
    return None


def _read_pydata(array: Any) -> Entries:
    if not hasattr(array, "coords"):
        raise ValueError('of its formats only COO is read; give array.asformat("coo")')
    if array.fill_value != 0:
        raise ValueError(f"its entries that are not stored are {array.fill_value}, not 0")
    return Entries(list(to_numpy(array.coords)), to_numpy(array.data), tuple(array.shape))


def _read_scipy(matrix: Any) -> Entries:
    shape, kind = tuple(int(size) for size in matrix.shape), getattr(matrix, "format", None)
    if kind in ("csr", "csc", "bsr"):
        return _read_scipy_compressed(matrix, shape, kind)
    if kind == "dia":
        return _read_scipy_diagonals(matrix, shape)
    if kind == "lil":
        return _read_scipy_lists(matrix, shape)
    coo = matrix.tocoo(copy=False)  # itself, or of a dictionary, whose conversion is written in Python
    coordinates = getattr(coo, "coords", None)
    if coordinates is None:  # SciPy before 1.13
        coordinates = (coo.row, coo.col)
    return Entries([to_numpy(axis) for axis in coordinates], to_numpy(coo.data), tuple(coo.shape))


def _read_scipy_compressed(matrix: Any, shape: tuple[int, ...], kind: str) -> Entries:
    pointers, indices, values = (to_numpy(part) for part in (matrix.indptr, matrix.indices, matrix.data))
    block = values.shape[1:] if kind == "bsr" else (1, 1)
    if not (pointers.ndim == indices.ndim == 1 <= len(pointers)) or len(indices) != len(values):
        raise ValueError(f"indptr {pointers.shape}, indices {indices.shape} and data {values.shape} do not go together")
    if len(block) != 2 or 0 in block or (len(shape) != 2 and kind != "csr"):
        raise ValueError(f"data {values.shape} are no blocks of shape {shape}")
    if len(indices) > pointers[-1] >= 0:  # SciPy keeps room behind the last entry
        indices, values = indices[: pointers[-1]], values[: pointers[-1]]
    # An array of one axis is a single row.
    rows_and_columns = (1, *shape)[-2:]
    lines, places = (_divided(size, by) for size, by in zip(rows_and_columns, block))
    if kind == "csc":
        lines, places = places, lines
    _, line, place = expand_pointers(pointers[np.newaxis], indices[np.newaxis], lines, places, "indptr")
    rows, columns = (place, line) if kind == "csc" else (line, place)
    if kind == "bsr":
        rows, columns = expand_blocks(rows, columns, block)
        values = values.reshape(-1)
    return Entries([rows, columns][-len(shape) :], values, shape)


def _read_scipy_diagonals(matrix: Any, shape: tuple[int, ...]) -> Entries:
    offsets, values = to_numpy(matrix.offsets), to_numpy(matrix.data)
    if offsets.ndim != 1 or values.ndim != 2 or len(offsets) != len(values) or offsets.dtype.kind not in "iu":
        raise ValueError(f"offsets of shape {offsets.shape} do not go with diagonals of shape {values.shape}")
    columns = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    rows = columns - offsets.astype(np.int64)[:, np.newaxis]
    # As SciPy reads them: zeros are not stored, and diagonals may be longer than the matrix.
    stored = (values != 0) & (rows >= 0) & (rows < shape[0]) & (columns < shape[1])
    return Entries([rows[stored], columns[stored]], values[stored], shape)


def _read_scipy_lists(matrix: Any, shape: tuple[int, ...]) -> Entries:
    in_rows, values_in_rows = list(matrix.rows), list(matrix.data)
    lengths = [len(row) for row in in_rows]
    if lengths != [len(row) for row in values_in_rows] or len(lengths) != shape[0]:
        raise ValueError("its lists of columns and of values differ in length")
    rows = np.repeat(np.arange(shape[0]), lengths)
    columns = np.fromiter(itertools.chain.from_iterable(in_rows), np.int64, len(rows))
    values = np.fromiter(itertools.chain.from_iterable(values_in_rows), matrix.dtype, len(rows))
    return Entries([rows, columns], values, shape)


def _read_torch(tensor: Any) -> Entries:
    tensor = tensor.detach().cpu()
    shape = tuple(tensor.shape)
    if tensor.is_sparse:
        # The private names, for only these take tensors that are not coalesced.
        return Entries(list(to_numpy(tensor._indices())), to_numpy(tensor._values()), shape)
    by_row = str(tensor.layout) in ("torch.sparse_csr", "torch.sparse_bsr")
    lines, places = ("crow_indices", "col_indices") if by_row else ("ccol_indices", "row_indices")
    pointers, indices = to_numpy(getattr(tensor, lines)()), to_numpy(getattr(tensor, places)())
    values = to_numpy(tensor.values())
    num_batch = pointers.ndim - 1
    has_blocks = str(tensor.layout) in ("torch.sparse_bsr", "torch.sparse_bsc")
    block = values.shape[num_batch + 1 :][:2] if has_blocks else (1, 1)
    batch, axes = shape[:num_batch], shape[num_batch : num_batch + 2]
    if len(axes) != 2 or len(block) != 2 or 0 in block:
        raise ValueError(f"values of shape {values.shape} do not go with {lines} of shape {pointers.shape}")
    num_lines, line_length = (_divided(size, by) for size, by in zip(axes, block))
    if not by_row:
        num_lines, line_length = line_length, num_lines
    expanded = _expand_batches(batch, pointers, indices, num_lines, line_length, lines)
    *in_batch, line, place = expanded
    rows, columns = (line, place) if by_row else (place, line)
    if has_blocks:
        rows, columns = expand_blocks(rows, columns, block)
        in_batch = [np.repeat(axis, math.prod(block)) for axis in in_batch]
    dense = shape[num_batch + 2 :]
    return Entries([*in_batch, rows, columns], _rows_of(values, len(rows), dense), shape)


def _expand_batches(
    batch: tuple[int, ...],
    pointers: Array,
    indices: Array,
    num_lines: int,
    line_length: int,
    what: str,
    *,
    padded: bool = False,
) -> list[Array]:
    """Returns the coordinates of the entries: those of the axes of batches, then line and place in the line."""
    if indices.ndim != len(batch) + 1 or pointers.ndim != len(batch) + 1:
        raise ValueError(f"{what} of shape {pointers.shape} does not go with indices of shape {indices.shape}")
    num_batches = math.prod(batch)
    in_batch, line, place = expand_pointers(
        pointers.reshape(num_batches, pointers.shape[-1]),
        indices.reshape(num_batches, indices.shape[-1]),
        num_lines,
        line_length,
        what,
        padded=padded,
    )
    return [*(np.unravel_index(in_batch, batch) if batch else ()), line, place]


def _rows_of(values: Array, count: int, dense: Sequence[int]) -> Array:
    """Returns values with one axis of entries before the dense axes."""
    if values.size != count * math.prod(dense):
        raise ValueError(f"values of shape {values.shape} are not those of {count} entries of shape {tuple(dense)}")
    return values.reshape(count, *dense)


def _divided(size: int, by: int) -> int:
    if size % by:
        raise ValueError(f"an axis of {size} does not consist of blocks of {by}")
    return size // by


def _read_tensor_flow(tensor: Any) -> Parts:
    indices, values = to_numpy(tensor.indices), to_numpy(tensor.values)
    if tensor.dense_shape is None:  # of tf.IndexedSlices
        return Keyed(indices, values)
    shape = tuple(int(size) for size in to_numpy(tensor.dense_shape))
    return Entries([indices] if indices.ndim == 1 else list(indices.T), values, shape)


def _read_jax(array: Any) -> Entries:
    """Reads BCOO and BCSR. The only padding is what JAX itself makes: an index that is equal to the size of its axis.

    JAX ignores every index beyond the shape. Here the others are left in, and refused as coordinates outside.
    """
    shape, num_batch = tuple(array.shape), array.n_batch
    batch, axes = shape[:num_batch], shape[num_batch:][: array.n_sparse]
    data, indices = to_numpy(array.data), to_numpy(array.indices)
    is_compressed = hasattr(array, "indptr")
    slots = (*batch, indices.shape[num_batch])
    num_slots = math.prod(slots)
    dense = data.shape[num_batch + 1 :]
    # Batches may share their indices or values: an axis of size 1 stands for all.
    data = np.broadcast_to(data, (*slots, *dense)).reshape(num_slots, *dense)
    if is_compressed:
        pointers = to_numpy(array.indptr)
        pointers = np.broadcast_to(pointers, (*batch, *pointers.shape[num_batch:]))
        indices = np.broadcast_to(indices, slots)
        coordinates = _expand_batches(batch, pointers, indices, axes[0], axes[1], "indptr", padded=True)
    else:
        indices = np.broadcast_to(indices, (*slots, len(axes))).reshape(num_slots, len(axes)).astype(np.int64)
        coordinates = [*np.indices(slots)[:-1].reshape(len(batch), num_slots), *indices.T]
    places = np.array(coordinates[len(batch) :], np.int64).reshape(len(axes), num_slots).T
    sizes = np.array(axes, np.int64)
    is_inside = ((places >= 0) & (places <= sizes)).all(axis=1)
    is_padding = is_inside & ((places == sizes).all(axis=1) if is_compressed else (places == sizes).any(axis=1))
    return Entries([axis[~is_padding] for axis in coordinates], data[~is_padding], shape)
