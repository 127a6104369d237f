"""Keys and arrays of callers of a model, in the types of the wire."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparseagg._internal.base.arguments import shown
from sparseagg._internal.base.foreign import Array, float_from_bits, to_numpy
from sparseagg._internal.results.model_info import ModelTensor
from sparseagg._internal.spec.options import outside_key_space
from sparseagg._internal.updates.arrays import readable
from sparseagg._internal.wire.model_spec import wire_dtype
from sparseagg.errors import InvalidArgumentError


def checked_keys(tensor: ModelTensor, keys: Any) -> Array:
    """Returns keys as uint64; ``InvalidArgumentError`` names tensor and key."""
    with readable(tensor.name, keys, "keys of "):
        array = to_numpy(keys)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"tensor {tensor.name!r}: keys must be integers on one axis, or ... for all rows, got {array.dtype} of "
            f"shape {array.shape}"
        )
    if array.size == 0:
        return np.empty(0, np.uint64)
    for key in (int(array.min()), int(array.max())):
        if not 0 <= key < (tensor.num_rows or 1 << 64):
            raise InvalidArgumentError(f"tensor {tensor.name!r}: key {key} {outside_key_space(tensor.num_rows)}")
    return array.astype(np.uint64, copy=False)


def padded(tensor: ModelTensor, keys: Array) -> Array:
    """Returns distinct keys with others, drawn at random, up to a power of two, or to all keys."""
    if not tensor.num_rows:
        raise InvalidArgumentError(f"tensor {tensor.name!r} has no num_rows, among which pad could draw keys")
    size = min(tensor.num_rows, 1 << max(0, len(keys) - 1).bit_length())
    rng = np.random.default_rng()  # allow(randomness): nobody may be able to tell which keys were drawn
    while len(keys) < size:
        if 2 * size >= tensor.num_rows:
            others = np.setdiff1d(np.arange(tensor.num_rows, dtype=np.uint64), keys, assume_unique=True)
            drawn = rng.permutation(others)[: size - len(keys)]
        else:
            drawn = rng.integers(0, tensor.num_rows, size - len(keys), np.uint64)
        keys = np.union1d(keys, drawn)
    return keys


def values_of(rows: Array, dtype: str) -> Array:
    """Returns rows of the wire as users have them."""
    return float_from_bits(rows) if dtype == "bfloat16" else rows


def table_of(tensor: ModelTensor, given: Any) -> Array:
    """Returns the memory of an array of NumPy or torch as rows of the wire's type, which can be written."""
    where = f"tensor {tensor.name!r}"
    if str(getattr(given, "layout", "")) == "torch.strided":
        if given.device.type != "cpu":
            raise InvalidArgumentError(f"{where} is on {given.device}; give a tensor on the CPU")
        given = given.detach()
        dtype = str(given.dtype).removeprefix("torch.")
        if dtype == "bfloat16":  # NumPy has no such type
            import torch

            given = given.view(torch.int16)
        array = given.numpy()
    elif isinstance(given, np.ndarray):
        array, dtype = given, given.dtype.name
    else:
        raise InvalidArgumentError(
            f"{where} must be an array of NumPy or torch, which is written in place, got {shown(given)}"
        )
    if dtype != tensor.dtype or array.shape != tensor.shape or not tensor.num_rows:
        raise InvalidArgumentError(
            f"{where} must be {tensor.dtype} of shape {tensor.shape} as in the model, got {dtype} of {array.shape}"
        )
    if not array.flags.writeable or not array.flags.c_contiguous:
        what = "C-contiguous" if array.flags.writeable else "writable"
        raise InvalidArgumentError(f"{where}: the array of shape {array.shape} is not {what}: give a copy")
    table: Array = array.reshape(tensor.num_rows, tensor.width).view(wire_dtype(tensor.dtype))
    return table
