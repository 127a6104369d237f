"""Dense arrays of other libraries as NumPy's."""

from __future__ import annotations

import collections
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparseagg._internal.foreign.parts import Array

__all__ = ["has_attribute", "has_columns", "to_numpy"]

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
