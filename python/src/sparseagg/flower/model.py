"""The server's model: immutable tables, so that the arrays of earlier rounds stay what they were."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from sparseagg.flower.records import to_array, view, with_rows

_BLOCK = 1 << 14  # rows


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """One tensor: an array as it was, and above it the rows that have changed since. Immutable.

    A round costs time and memory for its rows, not for the tensor. When half of the rows have changed, they are
    written into a new array.

    Attributes:
        array: the tensor as it was; Flower's array, whose bytes are shared.
        row_width: values of a row.
        keys: rows that are not those of ``array``: int64, ascending.
        rows: the rows at ``keys``.
    """

    array: Array
    row_width: int
    keys: Any
    rows: Any

    @classmethod
    def of(cls, array: Array, row_width: int = 1) -> Table:
        """Returns the table of an array."""
        if isinstance(array, _LazyArray):
            array = array.table.to_array()
        values = view(array)
        if not values.flags.c_contiguous:
            array = to_array(values)
        return cls(array, row_width, np.empty(0, np.int64), np.empty((0, row_width), values.dtype))

    def rewritten(self, array: Array) -> Table:
        """Returns the table with other values, in this table's dtype and shape."""
        if (np.dtype(array.dtype), tuple(array.shape)) != (self.dtype, self.shape):
            array = to_array(view(array).astype(self.dtype).reshape(self.shape))
        return Table.of(array, self.row_width)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array."""
        dtype: np.dtype[Any] = np.dtype(self.array.dtype)
        return dtype

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(view(self.array).size // self.row_width)

    def rows_at(self, keys: Any) -> Any:
        """Returns a copy of the rows at these keys."""
        rows = np.empty((len(keys), self.row_width), self.dtype)
        values = view(self.array).reshape(-1, self.row_width)
        for begin in range(0, len(keys), _BLOCK):  # so that no other array has their size
            some = keys[begin : begin + _BLOCK]
            at = np.searchsorted(self.keys, some)
            at[at == len(self.keys)] = 0
            changed = self.keys[at] == some if len(self.keys) else np.zeros(len(some), bool)
            part = rows[begin : begin + _BLOCK]
            part[changed] = self.rows[at[changed]]
            part[~changed] = values[some[~changed]]
        return rows

    def with_rows(self, keys: Any, rows: Any) -> Table:
        """Returns a table with other rows at these keys, which are int64 and ascending."""
        kept = ~np.isin(self.keys, keys, assume_unique=True)
        if kept.any():
            old = self.keys[kept]
            at = np.searchsorted(keys, old) + np.arange(len(old))
            is_new = np.ones(len(old) + len(keys), bool)
            is_new[at] = False
            merged_keys, merged = np.empty(len(is_new), np.int64), np.empty((len(is_new), self.row_width), self.dtype)
            merged_keys[at], merged[at] = old, self.rows[kept]
            merged_keys[is_new], merged[is_new] = keys, rows
            keys, rows = merged_keys, merged
        table = Table(self.array, self.row_width, keys, rows)
        return Table.of(table.to_array(), self.row_width) if 2 * len(keys) >= self.num_rows else table

    def dense(self) -> Any:
        """Returns the whole tensor; read-only if no row has changed."""
        values = view(self.array)
        if not len(self.keys):
            return values
        values = values.copy(order="C")
        values.reshape(-1, self.row_width)[self.keys] = self.rows
        return values

    def to_array(self) -> Array:
        """Returns the whole tensor as Flower's array, without a copy if no row has changed."""
        return with_rows(self.array, self.row_width, self.keys, self.rows) if len(self.keys) else self.array


class _LazyArray(Array):
    """A table as Flower's array, whose bytes are made when somebody asks for them, and are not kept."""

    table: Table

    def __init__(self, table: Table) -> None:
        self.__dict__.update(dtype=str(table.dtype), shape=table.shape, stype=table.array.stype, table=table)

    @property
    def data(self) -> bytes:
        """The bytes."""
        data: bytes = self.table.to_array().data
        return data

    def numpy(self) -> Any:
        """The values, as a new array."""
        values = self.table.dense()
        return values if values.flags.writeable else values.copy()


class Model:
    """The tables of a model by name, and the number of its version.

    Attributes:
        tables: by name, in the order of the model.
        version: counts the changes.
        record: the model as Flower's record.
    """

    def __init__(self, tables: Mapping[str, Table], version: int) -> None:
        self.tables = dict(tables)
        self.version = version
        self.record = ArrayRecord()
        for name, table in self.tables.items():
            self.record[name] = _LazyArray(table) if len(table.keys) else table.array
        self._arrays = dict(self.record.items())  # the record is the user's, too, who may put other arrays into it

    def is_like(self, arrays: ArrayRecord) -> bool:
        """Returns whether a record has arrays of the same names, shapes and dtypes."""
        return arrays.keys() == self._arrays.keys() and all(
            (np.dtype(arrays[name].dtype), tuple(arrays[name].shape)) == (table.dtype, table.shape)
            for name, table in self.tables.items()
        )

    def is_in(self, arrays: ArrayRecord) -> bool:
        """Returns whether a record has this model's arrays, or copies of them."""
        return self.is_like(arrays) and all(self.has(name, array) for name, array in arrays.items())

    def has(self, name: str, array: Array) -> bool:
        """Returns whether an array of a tensor's shape and dtype is the model's, or a copy of it."""
        return array is self._arrays[name] or array.data == self._arrays[name].data
