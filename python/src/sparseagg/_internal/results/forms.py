"""Merged tensors in the forms of other libraries, which are imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparseagg._internal.base import bfloat16
from sparseagg._internal.spec.shapes import key_axes
from sparseagg._internal.updates.arrays import Array
from sparseagg.errors import FailedPreconditionError

if TYPE_CHECKING:
    from sparseagg._internal.results.device_result import DeviceTensorResult
    from sparseagg._internal.results.result import TensorResult

__all__ = ["device_to_torch", "empty_array", "to_arrow", "to_jax", "to_pandas", "to_scipy", "to_tf", "to_torch"]


def to_scipy(result: TensorResult) -> Any:
    """See ``TensorResult.to_scipy``."""
    import scipy.sparse

    values = _rows(result, "SciPy shape")
    present = empty_array(result, (result.num_rows + 1,), np.dtype(np.int64))
    present[...] = 0
    present[result.indices + 1] = result.row_width
    columns = np.tile(np.arange(result.row_width), len(result))
    shape = (result.num_rows, result.row_width)
    return scipy.sparse.csr_matrix((_widened(values.reshape(-1)), columns, np.cumsum(present)), shape=shape)


def to_torch(result: TensorResult) -> Any:
    """See ``TensorResult.to_torch``."""
    import torch

    if result.layout == "dense":
        return _torch_array(torch, result, result.dense())
    rows, coordinates, shape = _coordinates(result, "torch shape")
    indices = torch.from_numpy(coordinates)
    # Keys are unique and ascending, and so are coordinates: coalesce only says so.
    return torch.sparse_coo_tensor(indices, _torch_array(torch, result, rows), shape).coalesce()


def device_to_torch(result: DeviceTensorResult) -> Any:
    """See ``DeviceTensorResult.to_torch``."""
    import torch

    shape, num_axes = _array_axes(result, "torch shape")
    values = torch.from_dlpack(result.values)
    if result.keys is None:
        return values.reshape(result.shape)
    keys = torch.from_dlpack(result.keys).to(torch.int64)
    coordinates = []
    for length in reversed(shape[1:num_axes]):
        coordinates.append(keys % length)
        keys = keys // length
    indices = torch.stack([keys, *reversed(coordinates)])
    # Keys are unique and ascending, and so are coordinates.
    return torch.sparse_coo_tensor(indices, values.reshape(len(result), *shape[num_axes:]), shape, is_coalesced=True)


def to_tf(result: TensorResult) -> Any:
    """See ``TensorResult.to_tf``."""
    import tensorflow as tf

    if result.layout == "dense":
        return tf.convert_to_tensor(result.dense())
    if result.num_rows == 0:
        values = _rows(result)
        return tf.IndexedSlices(tf.convert_to_tensor(values), tf.convert_to_tensor(result.indices))
    rows, coordinates, shape = _coordinates(result, "TensorFlow shape")
    values, dense_shape = tf.convert_to_tensor(rows), tf.convert_to_tensor(list(shape), dtype=tf.int64)
    if len(coordinates) == 1:
        return tf.IndexedSlices(values, tf.convert_to_tensor(coordinates[0]), dense_shape)
    if len(coordinates) == len(shape):
        return tf.SparseTensor(tf.convert_to_tensor(coordinates.T), values, dense_shape)
    raise FailedPreconditionError(
        f"tensor {result.name!r} has {len(coordinates)} axes of keys before its rows, for which TensorFlow has no type"
    )


def to_jax(result: TensorResult) -> Any:
    """See ``TensorResult.to_jax``."""
    import jax
    import jax.experimental.sparse

    def array(values: Array) -> Any:
        if result.dtype == "bfloat16":
            return jax.numpy.asarray(values.astype(np.float32)).astype(jax.numpy.bfloat16)  # exact both ways
        made = jax.numpy.asarray(values)
        if made.dtype != values.dtype:
            raise FailedPreconditionError(
                f"tensor {result.name!r} is {values.dtype}, which JAX would make {made.dtype}: set jax_enable_x64, or "
                "ask for another result_dtype"
            )
        return made

    if result.layout == "dense":
        return array(result.dense())
    rows, coordinates, shape = _coordinates(result, "JAX shape")
    if not jax.config.jax_enable_x64:
        if max(shape, default=0) > np.iinfo(np.int32).max:
            raise FailedPreconditionError(
                f"tensor {result.name!r} of shape {shape} has indices beyond int32: set jax_enable_x64"
            )
        coordinates = coordinates.astype(np.int32)
    indices = jax.numpy.asarray(np.ascontiguousarray(coordinates.T))
    return jax.experimental.sparse.BCOO((array(rows), indices), shape=shape, indices_sorted=True, unique_indices=True)


def to_pandas(result: TensorResult) -> Any:
    """See ``TensorResult.to_pandas``."""
    import pandas

    values = _widened(_rows(result))
    index = pandas.Index(result.keys, name="key")
    columns = ["value"] if result.row_width == 1 else None
    return pandas.DataFrame(values.reshape(len(result), result.row_width), index=index, columns=columns, copy=False)


def to_arrow(result: TensorResult) -> Any:
    """See ``TensorResult.to_arrow``."""
    import pyarrow

    values = pyarrow.array(_widened(_rows(result)).reshape(-1))
    if result.row_width > 1:
        values = pyarrow.FixedSizeListArray.from_arrays(values, result.row_width)
    return pyarrow.table({"key": pyarrow.array(result.keys), "value": values})


def empty_array(result: TensorResult, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an uninitialised array; ``FailedPreconditionError`` if it is too large."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, OverflowError, ValueError) as error:  # also for more entries than there are addresses
        raise FailedPreconditionError(
            f"tensor {result.name!r} of num_rows {result.num_rows} is too large for an array of all keys: {error}"
        ) from error


def _rows(result: TensorResult, bounded: str = "") -> Array:
    """Returns the values; ``FailedPreconditionError`` for a union, and where ``bounded`` needs num_rows."""
    _check_rows(result, bounded)
    assert result.values is not None
    return result.values


def _check_rows(result: TensorResult | DeviceTensorResult, bounded: str) -> None:
    if result.values is None:
        raise FailedPreconditionError(f"tensor {result.name!r} is a union, which has keys and counts but no values")
    if bounded and result.num_rows == 0:
        raise FailedPreconditionError(f"tensor {result.name!r} of num_rows 0 has no {bounded}")


def _coordinates(result: TensorResult, what: str) -> tuple[Array, Array, tuple[int, ...]]:
    """Returns the rows, the coordinates of the keys, int64 of shape (axes of keys, n), and the shape of the array."""
    shape, num_axes = _array_axes(result, what)
    rows = _rows(result).reshape(len(result), *shape[num_axes:])
    if num_axes == 1:
        return rows, result.indices.reshape(1, -1), shape
    return rows, np.stack(np.unravel_index(result.indices, shape[:num_axes])), shape


def _array_axes(result: TensorResult | DeviceTensorResult, what: str) -> tuple[tuple[int, ...], int]:
    """Returns the shape of the array, and how many of its first axes make the keys.

    Where none of the tensor's shape do, the array is one of (num_rows, row_width).
    """
    _check_rows(result, what)
    if result.num_rows >= 1 << 63:
        raise FailedPreconditionError(
            f"tensor {result.name!r} of num_rows {result.num_rows}, which does not fit int64, has no {what}"
        )
    shape = result.shape or (1,)
    num_axes = key_axes(shape, result.num_rows)
    return (shape, num_axes) if num_axes else ((result.num_rows, result.row_width), 1)


def _torch_array(torch: Any, result: TensorResult, values: Array) -> Any:
    if result.dtype == "bfloat16":
        return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)  # exact both ways
    return torch.from_numpy(values)


def _widened(values: Array) -> Array:
    """Returns 16-bit floats, with which SciPy, pandas and Arrow hardly compute, as float32, exactly."""
    if bfloat16.is_bfloat16(values.dtype) or values.dtype == np.float16:
        return values.astype(np.float32)
    return values
