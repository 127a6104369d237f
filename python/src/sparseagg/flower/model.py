"""The model as server and clients exchange it: arrays and keys in Flower's records, and the server's tables.

A sparse tensor ``name`` is two arrays of an ``ArrayRecord``: ``name:keys`` and ``name:rows``. One record of
configuration, ``CONFIG``, goes with every message and reply:

    to a client     model, version    which model this is; the client's copy has this version afterwards
                    since             the copy that the rows are based on: at least this version; -1: the model is whole
                    names             all tensors, in the order of the model
                    rows, elements    the sparse ones among them, whose keys are rows or elements; no list is empty
                    arrays, weight    where the model is, and what the client's weight is called
                    round             (only with a server) the handle to submit to
                    handle, rows_down (only with a model on the server, which the message then has no arrays of) where
                                      it is, and whether the node reads what has changed or the rows that it uses
    to the server   model             as above
                    client            the id of the client's submission, which sets the order of sums
                    version           of the client's copy; -1: it keeps none
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Collection, Iterable, Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.supercore import log

import sparseagg as sa
from sparseagg._internal.base.types import Op
from sparseagg._internal.spec.of_model import Names
from sparseagg.errors import InvalidArgumentError

_BLOCK = 1 << 14  # rows


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """One tensor: an array as it was, and above it the rows that have changed since. Immutable.

    A round costs time and memory for its rows, not for the tensor. When half of the rows have changed, they are
    written into a new array.
    """

    array: Array  # the tensor as it was; Flower's array, whose bytes are shared
    row_width: int  # values of a row
    keys: Any  # rows that are not those of ``array``: int64, ascending
    rows: Any  # the rows at ``keys``

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


CONFIG = "sparseagg"
KEYS, ROWS = ":keys", ":rows"
# Flower's code for a client-side mod that cannot do its work (flwr.common.constant.ErrorCode.MOD_FAILED_PRECONDITION).
PRECONDITION = 6
# How the error of a client begins that has lost its copy of the model. The strategy sends it the whole model.
NEEDS_WHOLE = "sparseagg: the whole model is needed"

_NUMPY = "numpy.ndarray"  # the only serialization that Flower has


def view(array: Array, what: str = "an array") -> Any:
    """Returns the values of a record's array, read-only, without copying them as ``Array.numpy`` does.

    Raises ``InvalidArgumentError``, which begins with ``what``, if the bytes are no array of numbers.
    """
    if array.stype != _NUMPY:
        raise InvalidArgumentError(f"{what}: it is serialized as {array.stype!r}, not as {_NUMPY!r}")
    try:
        return _values(array.data, array.data)
    except (OverflowError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"{what}: {len(array.data)} bytes cannot be read as an array: {error}") from error


def _values(data: bytes, buffer: Any) -> Any:
    """Returns the values in a buffer that has the same content as ``data``, or once had."""
    header = io.BytesIO(data[:4096])
    version = np.lib.format.read_magic(header)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(header)
    if dtype.kind not in "biuf":
        raise ValueError(f"values of dtype {dtype} are no real numbers")
    flat = np.frombuffer(buffer, dtype, offset=header.tell())
    return flat.reshape(shape, order="F" if is_fortran else "C")


def with_rows(array: Array, width: int, keys: Any, rows: Any) -> Array:
    """Returns an array in C order with other rows at some keys; its bytes are copied once."""
    stream = io.BytesIO(array.data)
    with stream.getbuffer() as buffer:  # the copy
        _values(array.data, buffer).reshape(-1, width)[keys] = rows
    return Array(dtype=array.dtype, shape=tuple(array.shape), stype=_NUMPY, data=stream.getvalue())


def to_array(values: Any) -> Array:
    """Returns values as a record's array; the values are copied once, where ``Array(values)`` does so twice."""
    values = np.asarray(values)
    if not values.flags.c_contiguous:
        values = values.copy(order="C")  # ascontiguousarray would make an array of one axis from a scalar
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    data = b"".join([header.getvalue(), values.data if values.size else b""])
    return Array(dtype=str(values.dtype), shape=tuple(values.shape), stype=_NUMPY, data=data)


def sparse_arrays(name: str, keys: Any, rows: Any) -> dict[str, Array]:
    """Returns the two arrays of a sparse tensor; keys are uint32 where they fit."""
    keys = np.asarray(keys)
    narrow = not keys.size or int(keys.max()) < 1 << 32
    return {name + KEYS: to_array(keys.astype(np.uint32 if narrow else np.uint64)), name + ROWS: to_array(rows)}


def tied_names(arrays: Mapping[str, Array], listed: Collection[str]) -> dict[str, str]:
    """Returns the names of tied weights, of which the model has a copy for each name: {name: the one in ``listed``}.

    Arrays are taken for tied that have the same shape and bytes when training begins; with one value throughout, such
    as 0, only those of two axes and more. If they are not, nothing is wrong with a mean: their updates are sparse, too.
    """
    by_form: dict[Any, list[str]] = {}
    for name in listed:
        by_form.setdefault(_form_of(arrays[name]), []).append(name)
    tied: dict[str, str] = {}
    for name, array in arrays.items():
        candidates = [] if name in listed else by_form.get(_form_of(array), [])
        first = next((one for one in candidates if arrays[one].data == array.data), None)
        if first is not None and (len(array.shape) > 1 or not is_constant(array)):
            tied[name] = first
    return tied


def is_constant(array: Array) -> bool:
    """Returns whether an array has one value throughout."""
    values = view(array).reshape(-1)
    return not (values != values[:1]).any()


def _form_of(array: Array) -> tuple[Any, ...]:
    return array.dtype, tuple(array.shape), array.data[-64:]


def update_of(arrays: ArrayRecord, names: Iterable[str]) -> Mapping[str, Any]:
    """Returns the arrays of a record by tensor: (keys, rows) of a sparse one, else its values.
    ``InvalidArgumentError``: an array belongs to no tensor of ``names``, or a tensor has keys without rows.
    """
    known, update = set(names), {}
    for name, array in arrays.items():
        if name in known:
            update[name] = view(array, f"tensor {name!r}")
            continue
        tensor, colon, part = name.rpartition(":")
        if tensor not in known or colon + part not in (KEYS, ROWS):
            raise InvalidArgumentError(f"unknown tensor {name!r}; the model has {', '.join(map(repr, names))}")
        if tensor + KEYS not in arrays or tensor + ROWS not in arrays:
            raise InvalidArgumentError(f"tensor {tensor!r} has {name!r} alone; keys and rows come together")
        if colon + part == KEYS:
            update[tensor] = (
                view(array, f"keys of tensor {tensor!r}"),
                view(arrays[tensor + ROWS], f"rows of tensor {tensor!r}"),
            )
    return update


def served_settings(model: sa.Model, rows_down: str, arrays_key: str, weight_key: str) -> dict[str, Any]:
    """Returns what clients of a model on a server need to know; as ``sparse_layout``."""
    names = list(model.info.tensors)
    where = {"handle": model.handle, "rows_down": rows_down}
    return {"names": names, "rows": names, **where, "arrays": arrays_key, "weight": weight_key}


def check_served(model: sa.Model, arrays: ArrayRecord) -> None:
    """Raises ``InvalidArgumentError`` for arrays that the model does not have: nobody would train them."""
    for name in arrays:
        if name not in model.info.tensors:
            known = ", ".join(map(repr, model.info.tensors))
            raise InvalidArgumentError(f"array {name!r} is no tensor of {model.name}, which has {known}")


def sparse_layout(
    arrays: ArrayRecord, sparse: Names, elements: Names, op: Op, arrays_key: str, weight_key: str
) -> tuple[dict[str, int], dict[str, Any]]:
    """Returns the sparse tensors with the widths of their rows, and what clients need to know.

    ``arrays_key``, ``weight_key``: what the records of the model and of a client's weight are called.
    """
    shapes = {name: np.broadcast_to(np.float32(0), array.shape) for name, array in arrays.items()}
    shapes = {name: array for name, array in shapes.items() if array.size}
    spec = sa.RoundSpec.like(shapes, sparse, elements=elements)
    widths = {tensor.name: tensor.row_width for tensor in spec.tensors if tensor.layout == "sparse"}
    by_element = {tensor.name for tensor in sa.RoundSpec.like(shapes, sparse).tensors if tensor.layout == "dense"}
    for name, first in tied_names(arrays, widths).items():
        if is_constant(arrays[name]) and op != "mean":
            log(
                WARNING,
                "tensor %r has the one value of %r throughout, and is merged as a whole: if the two are tied weights, "
                "add it to sparse or elements",
                name,
                first,
            )
            continue
        widths[name] = widths[first]
        if first not in by_element:
            by_element.discard(name)
    lists = {
        "names": list(arrays),
        "rows": [name for name in widths if name not in by_element],
        "elements": [name for name in widths if name in by_element],
    }
    # Without empty lists, of which Flower's ConfigRecord cannot count the bytes (1.42).
    settings = {name: value for name, value in lists.items() if value}
    return widths, {**settings, "arrays": arrays_key, "weight": weight_key}
