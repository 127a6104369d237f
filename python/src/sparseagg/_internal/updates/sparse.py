"""Sparse arrays of other libraries, as keys and rows of one tensor."""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Union

import numpy as np

from sparseagg._internal.base.foreign import Array, Keyed, to_numpy
from sparseagg._internal.spec.round_spec import TensorSpec
from sparseagg.errors import InvalidArgumentError


@dataclasses.dataclass(frozen=True)
class Entries:
    """The stored entries of a sparse array, whose last axes may be dense. Entries may come more than once.

    Raises:
        ValueError: the three do not go together.
    """

    coordinates: list[Array]  # for each sparse axis the entries' positions, shape (n,). They may lie outside the axis.
    values: Array  # shape (n, …), with the dense axes
    shape: tuple[int, ...]  # of the array

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


def _expand_pointers(
    pointers: Array, indices: Array, num_lines: int, line_length: int, what: str, *, padded: bool = False
) -> tuple[Array, Array, Array]:
    """Returns the batch, the line and the place in the line of each entry, int64, in the order of the entries.

    ``pointers``, shape (batches, lines + 1): where each line's entries begin, and where the last one's end;
    ``indices``, shape (batches, n): places in the lines. ``padded``: entries behind the last pointer are there; their
    line is ``num_lines``. Raises ``ValueError`` where pointers do not begin at 0, descend, or do not end with the
    entries; or a place is outside.
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


def _expand_blocks(rows: Array, columns: Array, block: Sequence[int]) -> tuple[Array, Array]:
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

    Stored zeros are entries. SciPy, torch, TensorFlow, JAX and pydata's sparse are known, whose errors are of any kind;
    ``ValueError`` where the array makes no sense.
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
    _, line, place = _expand_pointers(pointers[np.newaxis], indices[np.newaxis], lines, places, "indptr")
    rows, columns = (place, line) if kind == "csc" else (line, place)
    if kind == "bsr":
        rows, columns = _expand_blocks(rows, columns, block)
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
        rows, columns = _expand_blocks(rows, columns, block)
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
    in_batch, line, place = _expand_pointers(
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


def check_axes(spec: TensorSpec, kind: str, shape: tuple[int, ...]) -> None:
    """Refuses an array whose axes are not the tensor's, such as a transposed array.

    An array with one axis is flat, and axes of size 1 make no difference. Without a shape in the spec, keys may be on
    several axes, and columns also. The first axes make the keys.
    """
    if len(shape) < 2:
        return
    if spec.shape is None:
        if spec.num_rows in itertools.accumulate(shape, operator.mul, initial=1):
            return
        raise InvalidArgumentError(
            f"tensor {spec.name!r}: the first axes of a {kind} array of shape {shape} do not make num_rows "
            f"{spec.num_rows}, and the others row_width {spec.row_width}"
        )
    if shape[0] != spec.num_rows and [n for n in shape if n > 1] != [n for n in spec.shape if n > 1]:
        raise InvalidArgumentError(f"tensor {spec.name!r} has shape {spec.shape}, and this {kind} array {shape}")


def keyed_entries(spec: TensorSpec, entries: Entries) -> tuple[Array, Array]:
    """Returns keys and rows of a sparse array's entries. The axes make first the keys, then the columns."""
    coordinates, values = entries.coordinates, entries.values
    shape = tuple(int(size) for size in entries.shape)
    if len(coordinates) == 1 and spec.num_rows == 0:
        return coordinates[0], values
    check_sparse_shape(spec, len(coordinates), shape)
    sparse_shape, row_width = shape[: len(coordinates)], math.prod(shape[len(coordinates) :])
    try:
        flat = np.ravel_multi_index(tuple(coordinates), sparse_shape)
    except ValueError as error:
        raise _refuse_coordinates(spec, coordinates, sparse_shape) from error
    if row_width % spec.row_width == 0:  # each entry is a row, or several
        rows_each = row_width // spec.row_width
        if rows_each > 1:
            flat = (flat[:, np.newaxis] * rows_each + np.arange(rows_each)).reshape(-1)
            values = values.reshape(len(flat), spec.row_width)
        return flat, values
    if row_width == 1:
        return _rows_of_values(spec, flat, values)
    raise _refuse_shape(spec, shape)


def check_sparse_shape(spec: TensorSpec, num_axes: int, shape: tuple[int, ...]) -> None:
    """Raises ``InvalidArgumentError`` if a sparse array of this shape is not the tensor's.

    ``num_axes``: how many of the first axes are sparse.
    """
    if math.prod(shape) != spec.num_rows * spec.row_width or math.prod(shape[:num_axes]) >= 1 << 63:
        raise _refuse_shape(spec, shape)
    check_axes(spec, "sparse", shape)


def _refuse_shape(spec: TensorSpec, shape: tuple[int, ...]) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"tensor {spec.name!r}: a sparse array of shape {shape} does not fit num_rows {spec.num_rows} × row_width "
        f"{spec.row_width}"
    )


def _refuse_coordinates(
    spec: TensorSpec, coordinates: list[Array], sparse_shape: tuple[int, ...]
) -> InvalidArgumentError:
    for axis, (indices, length) in enumerate(zip(coordinates, sparse_shape)):
        outside = (indices < 0) | (indices >= length)
        if outside.any():
            at = int(np.argmax(outside))
            return InvalidArgumentError(
                f"tensor {spec.name!r}: coordinate {indices[at]} of axis {axis} at position {at} is not in "
                f"[0, {length})"
            )
    return InvalidArgumentError(f"tensor {spec.name!r}: these are no coordinates of an array of shape {sparse_shape}")


def _rows_of_values(spec: TensorSpec, flat: Array, values: Array) -> tuple[Array, Array]:
    """Returns keys and rows of single values at key · row_width + column, with zeros in the other columns.

    A repeated entry goes to another row of its key. The merge adds up the rows of a key, in float64.
    """
    if not (flat[1:] > flat[:-1]).all():
        order = np.argsort(flat, kind="stable")
        flat, values = flat[order], values[order]
    keys, columns = np.divmod(flat, spec.row_width)
    is_new = _differs(flat)
    if not is_new.all():
        position = np.arange(len(flat))
        repeat = position - np.maximum.accumulate(np.where(is_new, position, 0))
        order = np.lexsort((repeat, keys))
        keys, columns, values, repeat = keys[order], columns[order], values[order], repeat[order]
        starts = _differs(keys) | _differs(repeat)
    else:
        starts = _differs(keys)
    rows = np.zeros((np.count_nonzero(starts), spec.row_width), dtype=values.dtype)
    rows[np.cumsum(starts) - 1, columns] = values
    return keys[starts], rows


def _differs(array: Array) -> Array:
    """Returns for each entry whether it differs from the entry before; true for the first entry."""
    mask = np.ones(len(array), dtype=bool)
    mask[1:] = array[1:] != array[:-1]
    return mask
