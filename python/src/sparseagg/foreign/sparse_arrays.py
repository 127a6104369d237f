"""Sparse arrays and tables of other libraries as their parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparseagg.foreign.numpy_arrays import to_numpy
from sparseagg.foreign.parts import Entries, Keyed, Parts
from sparseagg.foreign.tables import is_arrow, is_pandas, read_arrow, read_pandas

__all__ = ["read_parts"]


def read_parts(tensor: Any) -> Parts:
    """Returns the parts of a sparse array or a table; None for other things, which may be dense arrays.

    Stored zeros are entries. SciPy, torch, TensorFlow and JAX are known, pandas and Arrow.

    Raises:
        Exception: of any kind, as the array's library raises them; ``ValueError`` where the array makes no sense.
    """
    if isinstance(tensor, np.ndarray):
        return None
    if is_pandas(tensor):  # first: a frame's columns are attributes of any name
        return read_pandas(tensor)
    if hasattr(tensor, "tocoo"):
        return _read_scipy(tensor)
    if str(getattr(tensor, "layout", "")).startswith("torch.sparse_"):
        return _read_torch(tensor)
    if hasattr(tensor, "dense_shape") and hasattr(tensor, "indices"):
        return _read_tensor_flow(tensor)
    if hasattr(tensor, "n_batch") and hasattr(tensor, "n_sparse"):
        return _read_jax(tensor)
    return read_arrow(tensor) if is_arrow(tensor) else None


def _read_scipy(matrix: Any) -> Entries:
    coo = matrix.tocoo(copy=False)
    coordinates = getattr(coo, "coords", None)
    if coordinates is None:  # SciPy before 1.13
        coordinates = (coo.row, coo.col)
    return Entries(list(coordinates), to_numpy(coo.data), tuple(coo.shape))


def _read_torch(tensor: Any) -> Entries:
    tensor = tensor.detach().cpu()
    if not tensor.is_sparse:  # compressed rows or columns, of entries or blocks, whose zeros stay
        tensor = tensor.to_sparse()
    # The private names, for only these take tensors that are not coalesced.
    return Entries(list(to_numpy(tensor._indices())), to_numpy(tensor._values()), tuple(tensor.shape))


def _read_tensor_flow(tensor: Any) -> Parts:
    indices, values = to_numpy(tensor.indices), to_numpy(tensor.values)
    if tensor.dense_shape is None:  # of tf.IndexedSlices
        return Keyed(indices, values)
    shape = tuple(int(size) for size in to_numpy(tensor.dense_shape))
    return Entries([indices] if indices.ndim == 1 else list(indices.T), values, shape)


def _read_jax(array: Any) -> Entries:
    if hasattr(array, "to_bcoo"):  # BCSR
        array = array.to_bcoo()
    shape = tuple(array.shape)
    batch, axes = shape[: array.n_batch], shape[array.n_batch :][: array.n_sparse]
    data, indices = to_numpy(array.data), to_numpy(array.indices)
    dense = data.shape[len(batch) + 1 :]
    slots = (*batch, indices.shape[-2])
    num_slots = math.prod(slots)
    # Batches may share their indices or values: an axis of size 1 stands for all.
    data = np.broadcast_to(data, (*slots, *dense)).reshape(num_slots, *dense)
    indices = np.broadcast_to(indices, (*slots, len(axes))).reshape(num_slots, len(axes))
    batch_indices = np.indices(slots)[:-1].reshape(len(batch), num_slots)
    # Entries beyond the shape are padding.
    is_entry = (indices < np.array(axes, np.int64)).all(axis=1)
    coordinates = [*batch_indices[:, is_entry], *indices[is_entry].T]
    return Entries(coordinates, data[is_entry], shape)
