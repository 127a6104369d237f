"""Merged tensors in the forms of other libraries, which are imported when they are asked for, and on a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparseagg._internal.base.foreign import Array, default_float_environment, is_bfloat16
from sparseagg._internal.base.text import plain
from sparseagg._internal.spec.options import key_axes, shape_of_rows
from sparseagg.errors import FailedPreconditionError

if TYPE_CHECKING:
    from sparseagg._engine import DeviceColumn


_PARTS = 64
_UNBOUNDED = "; .keys and .values have its rows, and TensorSpec(num_rows=…) bounds the keys"


class Forms:
    """A merged tensor in the forms of other libraries. ``TensorResult`` has the attributes."""

    name: str
    layout: str
    dtype: str
    num_rows: int
    row_width: int
    keys: Array
    values: Array | None
    counts: Array | None
    fill: float
    shape: tuple[int, ...] | None

    def __len__(self) -> int:
        raise NotImplementedError

    @property
    def indices(self) -> Array:
        """The keys as int64, which NumPy, torch, SciPy and TensorFlow index with.

        Raises:
            FailedPreconditionError: a key does not fit int64; the message names it.
        """
        if len(self) and int(self.keys[-1]) >= 1 << 63:
            raise FailedPreconditionError(
                f"tensor {self.name!r} has key {self.keys[-1]}, which does not fit int64; if keys are the bits of "
                "signed ids, keys.view(np.int64) has these"
            )
        return self.keys.astype(np.int64)

    @default_float_environment()
    def dense(self, fill: float | None = None) -> Array:
        """Returns all values, in the tensor's ``shape``.

        Args:
            fill: value at keys that this result does not have; None: the spec's fill if the result is dense, else 0.
                A dense result of the whole tensor has all keys.

        Raises:
            FailedPreconditionError: there are no values (union), no bound on the keys (num_rows 0), or too many rows
                for the memory.
        """
        values = self._values()
        if self.shape is None:
            raise FailedPreconditionError(f"tensor {self.name!r} of num_rows 0 cannot be made dense{_UNBOUNDED}")
        if self._is_whole():
            return values.reshape(self.shape)
        if fill is None:
            fill = self.fill if self.layout == "dense" else 0.0
        rows = empty_array(self, (self.num_rows, *values.shape[1:]), values.dtype)
        rows[...] = fill
        rows[self.keys] = values
        return rows.reshape(self.shape)

    def to_scipy(self) -> Any:
        """Returns a ``scipy.sparse.csr_matrix`` of shape (num_rows, row_width), with one stored row per key.

        16-bit floats, with which SciPy does not compute, are widened to float32, exactly.

        Raises:
            FailedPreconditionError: there are no values (union), no bound on the keys (num_rows 0), or too many rows
                for the memory.
        """
        import scipy.sparse

        values = _rows(self, "SciPy shape")
        present = empty_array(self, (self.num_rows + 1,), np.dtype(np.int64))
        present[...] = 0
        present[self.indices + 1] = self.row_width
        columns = np.tile(np.arange(self.row_width), len(self))
        shape = (self.num_rows, self.row_width)
        return scipy.sparse.csr_matrix((_widened(values.reshape(-1)), columns, np.cumsum(present)), shape=shape)

    def to_torch(self) -> Any:
        """Returns a torch tensor: ``dense()`` if the result is dense, else a coalesced COO tensor of ``shape``.

        The axes that make the keys are sparse, and those of a row are dense.

        Raises:
            FailedPreconditionError: there are no values (union), or num_rows is 0 or does not fit int64.
        """
        import torch

        if self.layout == "dense":
            return _torch_array(torch, self, self.dense())
        rows, coordinates, shape = _coordinates(self, "torch shape")
        indices = torch.from_numpy(coordinates)
        # Keys are unique and ascending, and so are coordinates: coalesce only says so.
        return torch.sparse_coo_tensor(indices, _torch_array(torch, self, rows), shape).coalesce()

    def to_tf(self) -> Any:
        """Returns a ``tf.Tensor`` of ``dense()`` if the result is dense, else a ``tf.IndexedSlices`` of ``shape``.

        Keys that are single elements of an array of several axes make a ``tf.SparseTensor``.

        Raises:
            FailedPreconditionError: there are no values (union), or num_rows or a key does not fit int64.
        """
        import tensorflow as tf

        if self.layout == "dense":
            return tf.convert_to_tensor(self.dense())
        if self.num_rows == 0:
            values = _rows(self)
            return tf.IndexedSlices(tf.convert_to_tensor(values), tf.convert_to_tensor(self.indices))
        rows, coordinates, shape = _coordinates(self, "TensorFlow shape")
        values, dense_shape = tf.convert_to_tensor(rows), tf.convert_to_tensor(list(shape), dtype=tf.int64)
        if len(coordinates) == 1:
            return tf.IndexedSlices(values, tf.convert_to_tensor(coordinates[0]), dense_shape)
        if len(coordinates) == len(shape):
            return tf.SparseTensor(tf.convert_to_tensor(coordinates.T), values, dense_shape)
        raise FailedPreconditionError(
            f"tensor {self.name!r} has {len(coordinates)} axes of keys before its rows, for which TensorFlow has no "
            "type"
        )

    def to_jax(self) -> Any:
        """Returns a JAX array of ``dense()`` if the result is dense, else a ``BCOO`` array of ``shape``.

        The axes that make the keys are sparse, and those of a row are dense. Indices are unique and sorted.

        Raises:
            FailedPreconditionError: there are no values (union), num_rows is 0, or values or indices need 64 bits that
                JAX is not set to have.
        """
        import jax
        import jax.experimental.sparse

        def array(values: Array) -> Any:
            if self.dtype == "bfloat16":
                return jax.numpy.asarray(values.astype(np.float32)).astype(jax.numpy.bfloat16)  # exact both ways
            made = jax.numpy.asarray(values)
            if made.dtype != values.dtype:
                raise FailedPreconditionError(
                    f"tensor {self.name!r} is {values.dtype}, which JAX would make {made.dtype}: set jax_enable_x64, "
                    "or ask for another result_dtype"
                )
            return made

        if self.layout == "dense":
            return array(self.dense())
        rows, coordinates, shape = _coordinates(self, "JAX shape")
        if not jax.config.jax_enable_x64:
            if max(shape, default=0) > np.iinfo(np.int32).max:
                raise FailedPreconditionError(
                    f"tensor {self.name!r} of shape {shape} has indices beyond int32: set jax_enable_x64"
                )
            coordinates = coordinates.astype(np.int32)
        indices = jax.numpy.asarray(np.ascontiguousarray(coordinates.T))
        return jax.experimental.sparse.BCOO(
            (array(rows), indices), shape=shape, indices_sorted=True, unique_indices=True
        )

    def to_pandas(self) -> Any:
        """Returns a ``pandas.DataFrame``: keys in the index "key"; a column "value", or columns 0 … row_width − 1.

        An update may be such a frame. 16-bit floats are widened to float32, exactly; other values are not copied.

        Raises:
            FailedPreconditionError: there are no values (union).
        """
        import pandas

        values = _widened(_rows(self))
        index = pandas.Index(self.keys, name="key")
        columns = ["value"] if self.row_width == 1 else None
        return pandas.DataFrame(values.reshape(len(self), self.row_width), index=index, columns=columns, copy=False)

    def to_arrow(self) -> Any:
        """Returns a ``pyarrow.Table`` of columns "key" and "value", whose values are lists if row_width is not 1.

        An update may be such a table. 16-bit floats are widened to float32, exactly; keys and other values are not
        copied.

        Raises:
            FailedPreconditionError: there are no values (union).
        """
        import pyarrow

        values = pyarrow.array(_widened(_rows(self)).reshape(-1))
        if self.row_width > 1:
            values = pyarrow.FixedSizeListArray.from_arrays(values, self.row_width)
        return pyarrow.table({"key": pyarrow.array(self.keys), "value": values})

    def _is_whole(self) -> bool:
        return self.layout == "dense" and len(self) == self.num_rows

    def _values(self) -> Array:
        return _rows(self)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DeviceTensorResult:
    """One tensor's result in the memory of the GPU that merged it, with the bits of ``TensorResult``.

    Each column is an array for DLPack (``torch.from_dlpack``, ``cupy.from_dlpack``, ``jax.dlpack.from_dlpack``) and,
    but for bfloat16, for version 3 of the CUDA Array Interface (Numba). It is lent, not copied, and complete, so that
    any stream may read it. The memory is given back when the columns and all arrays that were made of them are gone;
    then the GPU has to finish what it is doing.

    Attributes:
        name, layout, dtype, num_rows, row_width, fill, shape: as of ``TensorResult``.
        keys: shape (n,), ascending and unique; uint32 where num_rows allows, else uint64. None for a dense result,
            which has all keys.
        values: shape (n,) if ``row_width`` is 1, else (n, row_width). None for a union.
        counts: uint32, shape (n,); None without ``return_counts``.
        weights: float64, shape (n,); None without ``return_weights``.
    """

    name: str
    layout: str
    dtype: str
    num_rows: int
    row_width: int
    keys: DeviceColumn | None
    values: DeviceColumn | None
    counts: DeviceColumn | None
    weights: DeviceColumn | None
    fill: float
    shape: tuple[int, ...] | None

    def __post_init__(self) -> None:
        if self.shape is None:
            object.__setattr__(self, "shape", shape_of_rows(self.num_rows, self.row_width))

    def __len__(self) -> int:
        return self.num_rows if self.keys is None else self.keys.shape[0]

    def __repr__(self) -> str:
        return f"DeviceTensorResult({self.name!r}, {self.layout}, {self.dtype}, {len(self)} rows of {self.row_width})"

    def to_torch(self) -> Any:
        """Returns a torch tensor on the GPU: of all values if the result is dense, else a coalesced COO tensor.

        It has the tensor's ``shape``. The axes that make the keys are sparse, and those of a row are dense. Values are
        not copied; keys are, into int64.

        Raises:
            FailedPreconditionError: there are no values (union), or num_rows is 0 or does not fit int64.
        """
        import torch

        shape, num_axes = _array_axes(self, "torch shape")
        values = torch.from_dlpack(self.values)
        if self.keys is None:
            return values.reshape(self.shape)
        keys = torch.from_dlpack(self.keys).to(torch.int64)
        coordinates = []
        for length in reversed(shape[1:num_axes]):
            coordinates.append(keys % length)
            keys = keys // length
        indices = torch.stack([keys, *reversed(coordinates)])
        # Keys are unique and ascending, and so are coordinates.
        return torch.sparse_coo_tensor(indices, values.reshape(len(self), *shape[num_axes:]), shape, is_coalesced=True)


def draw(tensors: Sequence[Forms]) -> Any:
    """Returns a figure with the places and the counts of the rows of each tensor."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=(10, 2.6 * len(tensors)), layout="constrained")
    FigureCanvasAgg(figure)
    for tensor, (places, counts) in zip(tensors, figure.subplots(len(tensors), 2, squeeze=False)):
        end = tensor.num_rows or 1 << 64
        edges = np.linspace(0.0, float(end), _PARTS + 1)
        whole = tensor._is_whole()  # whose keys are not made for this
        shares = np.ones(_PARTS) if whole else np.histogram(tensor.keys.astype(np.float64), edges)[0] / np.diff(edges)
        places.stairs(shares, edges, fill=True)
        places.set(title=plain(tensor.name), xlabel="key", ylabel="share of the rows")
        places.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
        places.yaxis.set_major_formatter(PercentFormatter(1.0))
        if tensor.counts is None or not len(tensor):
            counts.set_axis_off()
            why = "no counts: the round was made without return_counts" if len(tensor) else "no rows"
            counts.text(0, 0.5, why)
            continue
        bars = np.unique(np.linspace(1, int(tensor.counts.max()) + 1, _PARTS + 1).astype(int))
        counts.hist(tensor.counts, bins=bars - 0.5)
        counts.set(title=f"{len(tensor):,} rows", xlabel="clients of a row", ylabel="rows", yscale="log")
        counts.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
    return figure


def empty_array(result: Forms, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an uninitialised array; ``FailedPreconditionError`` if it is too large."""
    try:
        return np.empty(shape, dtype)
    except (MemoryError, OverflowError, ValueError) as error:  # also for more entries than there are addresses
        raise FailedPreconditionError(
            f"tensor {result.name!r} of num_rows {result.num_rows} is too large for an array of all keys: {error}"
        ) from error


def _rows(result: Forms, bounded: str = "") -> Array:
    """Returns the values; ``FailedPreconditionError`` for a union, and where ``bounded`` needs num_rows."""
    _check_rows(result, bounded)
    assert result.values is not None
    return result.values


def _check_rows(result: Any, bounded: str) -> None:
    if result.values is None:
        raise FailedPreconditionError(f"tensor {result.name!r} is a union, which has keys and counts but no values")
    if bounded and result.num_rows == 0:
        raise FailedPreconditionError(f"tensor {result.name!r} of num_rows 0 has no {bounded}{_UNBOUNDED}")


def _coordinates(result: Forms, what: str) -> tuple[Array, Array, tuple[int, ...]]:
    """Returns the rows, the coordinates of the keys, int64 of shape (axes of keys, n), and the shape of the array."""
    shape, num_axes = _array_axes(result, what)
    rows = _rows(result).reshape(len(result), *shape[num_axes:])
    if num_axes == 1:
        return rows, result.indices.reshape(1, -1), shape
    return rows, np.stack(np.unravel_index(result.indices, shape[:num_axes])), shape


def _array_axes(result: Any, what: str) -> tuple[tuple[int, ...], int]:
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


def _torch_array(torch: Any, result: Forms, values: Array) -> Any:
    if result.dtype == "bfloat16":
        return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)  # exact both ways
    return torch.from_numpy(values)


def _widened(values: Array) -> Array:
    """Returns 16-bit floats, with which SciPy, pandas and Arrow hardly compute, as float32, exactly."""
    if is_bfloat16(values.dtype) or values.dtype == np.float16:
        return values.astype(np.float32)
    return values
