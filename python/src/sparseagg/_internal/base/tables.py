"""Tables of keys and values: frames of pandas, and what Arrow reads, such as frames of Polars."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Callable

import numpy as np

from sparseagg._internal.base.foreign import Array, Keyed, Rows, _is_pandas, has_attribute, has_columns

KEY = "key"  # the name of the column with the keys

# Returns where the columns of a row are among value columns of these names; ValueError: the names are not those.
Places = Callable[[list[Any]], list[int]]


class _MissingValue(ValueError):
    """A column has no value at a row."""

    def __init__(self, what: str, row: int) -> None:
        super().__init__(f"{what} at position {row}")
        self.row = row


@contextlib.contextmanager
def _naming_key(keys: Array) -> Iterator[None]:
    """Names the key of a row without a value."""
    try:
        yield
    except _MissingValue as error:
        raise ValueError(f"{error}, key {keys[error.row]}") from error


def _is_arrow(thing: Any) -> bool:
    return has_attribute(thing, "schema") and has_attribute(thing, "column_names") and has_attribute(thing, "column")


def read_table(table: Any, places: Places) -> Keyed:
    """Returns the keys and rows of a table.

    Keys are the column "key"; of pandas, where there is none, the index. The other columns are values. One of Arrow's
    columns may hold lists. A table without rows has no keys, whatever its columns and their types are. Raises
    ``ValueError``, which names the column, for what is not read, or names that ``places`` refuses.
    """
    table = table if _is_pandas(table) else _as_arrow(table)
    if _num_rows(table) == 0:
        return Keyed(np.empty(0, np.uint64), np.empty(0))
    return _read_pandas(table, places) if _is_pandas(table) else _read_arrow(table, places)


def read_columns(table: Any, places: Places) -> Rows:
    """Returns the rows of a table whose columns are all values; ``ValueError`` also if there is a column "key"."""
    if _is_pandas(table) and not has_columns(table):
        return _pandas_numbers(table, "the series")
    table = table if _is_pandas(table) else _as_arrow(table)
    names = list(table.columns if _is_pandas(table) else table.column_names)
    if KEY in names:
        raise ValueError(f"its column {KEY!r} is not a value; give the table alone, or the other columns as rows")
    if not names:
        raise ValueError("it has no columns")
    if _num_rows(table) == 0:
        return np.empty((0, len(names)))
    rows = _pandas_rows(table, places) if _is_pandas(table) else _arrow_rows(table, names, places)
    assert rows is not None  # there are columns
    return rows


def _num_rows(table: Any) -> int:
    return int(len(table.index) if _is_pandas(table) else table.num_rows)


def _as_arrow(table: Any) -> Any:
    if _is_arrow(table):
        return table
    if not has_attribute(table, "__arrow_c_stream__"):
        raise ValueError("it is a table without __arrow_c_stream__; give (keys, rows)")
    try:
        import pyarrow
    except ImportError as error:
        raise ValueError(f"pyarrow, which reads this table, is not installed ({error}); give (keys, rows)") from error
    return pyarrow.table(table)


def _read_pandas(table: Any, places: Places) -> Keyed:
    if not has_columns(table):  # a series
        keys = _index_keys(table.index, "(keys, series), and a dense array as series.to_numpy()")
        with _naming_key(keys):
            return Keyed(keys, _pandas_numbers(table, "the series"))
    names = list(table.columns)
    if names.count(KEY) > 1:
        raise ValueError(f"{names.count(KEY)} of its columns are named {KEY!r}")
    is_value = [name != KEY for name in names]
    if all(is_value):
        keys = _index_keys(
            table.index, f"a column {KEY!r} or frame.set_index(…), and a dense array as frame.to_numpy()"
        )
    else:
        keys = _pandas_numbers(table[KEY], f"column {KEY!r}")
    with _naming_key(keys):
        return Keyed(keys, _pandas_rows(table.iloc[:, np.flatnonzero(is_value)], places))


def _index_keys(index: Any, cure: str) -> Array:
    """Returns the keys of an index; raises for one that pandas makes where none is given: its numbers are of rows."""
    if index.name is None and all(has_attribute(index, field) for field in ("start", "stop", "step")):
        raise ValueError(f"its index only counts rows, so that its keys are not known; give keys as {cure}")
    return _pandas_numbers(index, "the index")


def _pandas_rows(values: Any, places: Places) -> Rows | None:
    """Returns the numbers of a frame's columns; None if there are no columns."""
    names = list(values.columns)
    if not names:
        return None
    order = places(names)
    dtypes = set(values.dtypes)
    if len(dtypes) == 1 and all(map(_is_number_type, dtypes)):
        rows = values.to_numpy()
        return np.asarray(rows if order == sorted(order) else rows[:, order])
    return [_pandas_numbers(values.iloc[:, at], f"column {names[at]!r}") for at in order]


def _pandas_numbers(column: Any, what: str) -> Array:
    if _is_number_type(column.dtype):
        return np.asarray(column.to_numpy())
    missing = np.flatnonzero(column.isna())
    if len(missing):
        raise _MissingValue(f"{what} has a missing value", int(missing[0]))
    numbers = np.asarray(column.to_numpy(dtype=getattr(column.dtype, "numpy_dtype", None)))
    if not _is_number_type(numbers.dtype):
        raise ValueError(f"{what} is of {column.dtype}, not of numbers")
    return numbers


def _is_number_type(dtype: Any) -> bool:
    """Returns whether this is a type of NumPy's numbers, and none of pandas's own, which may have missing values."""
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def _read_arrow(table: Any, places: Places) -> Keyed:
    names = list(table.column_names)
    if names.count(KEY) != 1:
        raise ValueError(f"one of its columns must be {KEY!r}; it has {', '.join(map(repr, names)) or 'none'}")
    keys = _arrow_numbers(table.column(names.index(KEY)), KEY)
    with _naming_key(keys):
        return Keyed(keys, _arrow_rows(table, names, places))


def _arrow_rows(table: Any, names: list[str], places: Places) -> Rows | None:
    """Returns the numbers of all columns but that of the keys; None if there are no others."""
    values = [at for at, name in enumerate(names) if name != KEY]
    if not values:
        return None
    order = [values[at] for at in places([names[at] for at in values])]
    columns = [_arrow_numbers(table.column(at), names[at]) for at in order]
    if len(columns) == 1:
        return columns[0]
    for at, column in zip(order, columns):
        if column.ndim > 1:
            raise ValueError(f"column {names[at]!r} holds lists, so that it must be the only one of values")
    return columns


def _arrow_numbers(column: Any, name: str) -> Array:
    """Returns the numbers of a column, shape (n,); of one of lists, shape (n, length)."""
    column.validate(full=True)  # the offsets of lists, before they are followed
    if column.null_count:
        raise _MissingValue(f"column {name!r} has a null", column.is_null().index(True).as_py())
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
        raise ValueError(f"a list of column {name!r} has a null")
    if not str(chunk.type).startswith(("list", "large_list", "fixed_size_list")):
        numbers = np.asarray(chunk.to_numpy(zero_copy_only=False))
        if not _is_number_type(numbers.dtype):
            raise ValueError(f"column {name!r} is of {chunk.type}, not of numbers")
        return numbers
    values = _arrow_chunk(chunk.flatten(), name)
    lengths = np.unique(chunk.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise ValueError(f"the lists of column {name!r} differ in length")
    return values.reshape(len(chunk), *lengths.tolist() or [0])
