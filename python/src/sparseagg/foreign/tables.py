"""Tables of keys and values: frames of pandas, tables of Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparseagg.foreign.parts import Array, Keyed

__all__ = ["is_arrow", "is_pandas", "read_arrow", "read_pandas"]

KEY = "key"  # the name of the column with the keys


def is_pandas(thing: Any) -> bool:
    """Returns whether this is a frame or series of pandas."""
    return hasattr(thing, "iloc") and hasattr(thing, "index")


def is_arrow(thing: Any) -> bool:
    """Returns whether this is a table or record batch of Arrow."""
    return hasattr(thing, "schema") and hasattr(thing, "column_names") and hasattr(thing, "column")


def read_pandas(table: Any) -> Keyed:
    """Returns keys and rows. Keys are the column "key" of a frame, else the index; the other columns are values.

    Raises:
        ValueError: a value is missing, or is no number; the message names the column.
    """
    if not hasattr(table, "columns"):  # a series
        return Keyed(_pandas_numbers(table.index, "the index"), _pandas_numbers(table, "the series"))
    names = list(table.columns)
    if names.count(KEY) > 1:
        raise ValueError(f"{names.count(KEY)} of its columns are named {KEY!r}")
    is_value = [name != KEY for name in names]
    if all(is_value):
        keys = _pandas_numbers(table.index, "the index")
    else:
        keys = _pandas_numbers(table[KEY], f"column {KEY!r}")
    if not any(is_value):
        return Keyed(keys, None)
    values = table.iloc[:, np.flatnonzero(is_value)]
    if all(_is_number_type(dtype) for dtype in values.dtypes):
        return Keyed(keys, values.to_numpy())
    columns = (_pandas_numbers(values.iloc[:, at], f"column {name!r}") for at, name in enumerate(values.columns))
    return Keyed(keys, np.column_stack(list(columns)))


def _pandas_numbers(column: Any, what: str) -> Array:
    if _is_number_type(column.dtype):
        return np.asarray(column.to_numpy())
    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise ValueError(f"{what} has a missing value at position {missing[0]}")
    numbers = np.asarray(column.to_numpy(dtype=getattr(column.dtype, "numpy_dtype", None)))
    if not _is_number_type(numbers.dtype):
        raise ValueError(f"{what} is of {column.dtype}, not of numbers")
    return numbers


def _is_number_type(dtype: Any) -> bool:
    """Returns whether this is a type of NumPy's numbers, and none of pandas's own, which may have missing values."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def read_arrow(table: Any) -> Keyed:
    """Returns the keys of the column "key", and the rows of the others, one of which may hold lists.

    Raises:
        ValueError: there is no column "key", a value is null, or lists differ in length; the message names the column.
    """
    names = list(table.column_names)
    if names.count(KEY) != 1:
        raise ValueError(f"one of its columns must be {KEY!r}; it has {', '.join(map(repr, names)) or 'none'}")
    keys = _arrow_numbers(table.column(KEY), KEY)
    columns = [_arrow_numbers(table.column(at), name) for at, name in enumerate(names) if name != KEY]
    if len(columns) < 2:
        return Keyed(keys, columns[0] if columns else None)
    for name, column in zip((name for name in names if name != KEY), columns):
        if column.ndim > 1:
            raise ValueError(f"column {name!r} holds lists, so that it must be the only one beside {KEY!r}")
    return Keyed(keys, np.column_stack(columns))


def _arrow_numbers(column: Any, name: str) -> Array:
    """Returns the numbers of a column, shape (n,); of one of lists, shape (n, length)."""
    chunks = getattr(column, "chunks", None)
    arrays = [_arrow_chunk(chunk, name) for chunk in ([column] if chunks is None else chunks)]
    arrays = [array for array in arrays if len(array)] or arrays[:1]
    if len(arrays) == 1:
        return arrays[0]
    if len({array.shape[1:] for array in arrays}) > 1:
        raise ValueError(f"the lists of column {name!r} differ in length")
    return np.concatenate(arrays) if arrays else np.empty(0, column.type.to_pandas_dtype())


def _arrow_chunk(chunk: Any, name: str) -> Array:
    if chunk.null_count:
        at = chunk.is_null().index(True).as_py()
        raise ValueError(f"column {name!r} has a null at position {at}")
    if not str(chunk.type).startswith(("list", "large_list", "fixed_size_list")):
        return np.asarray(chunk.to_numpy(zero_copy_only=False))
    values = _arrow_chunk(chunk.flatten(), name)
    lengths = np.unique(chunk.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise ValueError(f"the lists of column {name!r} differ in length")
    return values.reshape(len(chunk), *lengths.tolist() or [0])
