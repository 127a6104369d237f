"""Sparse arrays of other libraries as their parts.

Nothing but NumPy follows their indices and pointers, and these are checked first: conversions of the libraries
themselves crash where they are inconsistent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sparseagg._internal.foreign.compressed import expand_blocks, expand_pointers
from sparseagg._internal.foreign.numpy_arrays import to_numpy
from sparseagg._internal.foreign.parts import Array, Entries, Keyed, Parts

__all__ = ["read_parts"]


def read_parts(tensor: Any) -> Parts:
    """Returns the parts of a sparse array; None for other things, which may be dense arrays.

    Stored zeros are entries. SciPy, torch, TensorFlow, JAX and pydata's sparse are known.

    Raises:
        Exception: of any kind, as the array's library raises them; ``ValueError`` where the array makes no sense.
    """
    if isinstance(tensor, np.ndarray):
        return None
    if hasattr(tensor, "fill_value") and hasattr(tensor, "todense"):
        return _read_pydata(tensor)
    if hasattr(tensor, "tocoo"):
        return _read_scipy(tensor)
    if str(getattr(tensor, "layout", "")).startswith("torch.sparse_"):
        return _read_torch(tensor)
    if hasattr(tensor, "dense_shape") and hasattr(tensor, "indices"):
        return _read_tensor_flow(tensor)
    if hasattr(tensor, "n_batch") and hasattr(tensor, "n_sparse"):
        return _read_jax(tensor)
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
