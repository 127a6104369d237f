"""Conversion of the arrays that callers have to keys and values of one tensor, in the types of the wire."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sparseagg._internal.base.arguments import shown
from sparseagg._internal.base.foreign import (
    READ_ON_GPU,
    Array,
    Keyed,
    Rows,
    bits_from_float,
    bits_from_integer,
    cuda_device,
    default_float_environment,
    has_columns,
    is_bfloat16,
    is_table,
    to_numpy,
)
from sparseagg._internal.base.tables import Places, read_columns, read_table
from sparseagg._internal.base.types import Update
from sparseagg._internal.spec.of_model import every_name
from sparseagg._internal.spec.options import outside_key_space
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.sparse import Entries, check_axes, keyed_entries, read_parts
from sparseagg.errors import InvalidArgumentError, SparseaggError

_NUMBER_TEXTS = (
    "number them the same way in all clients: by a common list of the texts, or by a 64-bit hash of each, in a tensor "
    "of num_rows=0"
)


@dataclasses.dataclass(frozen=True)
class TensorData:
    """The (key, row) tuples of one tensor, in the types of the wire."""

    spec: TensorSpec
    # uint32 or uint64, by ``spec.key_bytes``; shape (n,). None: 0, 1, …, n − 1. Of ``engine_data``: unchecked integers
    # of 32 or 64 bits.
    keys: Array | None
    # shape (n, row_width), contiguous, little-endian; bfloat16 as its bits, uint16. None: no values (union).
    values: Array | None
    num_keys: int  # n

    def copied(self) -> TensorData:
        """Returns the same tuples in new arrays."""
        keys, values = (None if array is None else array.copy() for array in (self.keys, self.values))
        return dataclasses.replace(self, keys=keys, values=values)


def is_module(update: Any) -> bool:
    """Returns whether this is a torch module, whose gradients stay in the same arrays from step to step."""
    return callable(getattr(update, "named_parameters", None))


def update_data(spec: RoundSpec, update: Update) -> list[TensorData]:
    """Converts one client's update, as ``Round.submit`` documents it. Arrays that have the wire's type are not copied.

    Rows and dense values may also be flat, row after row. Parameters of a module without a gradient are not touched.
    Returns the tensors of the update in the order of the spec. Raises ``InvalidArgumentError`` if the round has no such
    tensor, or a tensor has a wrong shape, type or value.
    """
    return [with_wire_keys(data) for data in engine_data(spec, update)]


@default_float_environment()
def engine_data(spec: RoundSpec, update: Any) -> list[TensorData]:
    """Converts one client's update as ``update_data`` does, but leaves keys to the engine in this process.

    The engine checks keys, and brings them to the wire's type, in the pass that copies them.
    """
    columns = spec.table_columns
    return [engine_tensor_data(tensor, given, columns) for tensor, given in given_tensors(spec, update)]


def given_tensors(spec: RoundSpec, update: Any) -> list[tuple[TensorSpec, Any]]:
    """Returns the tensors of an update as they are given, in the order of the spec; refuses others."""
    if is_module(update):
        update = _gradients(spec, update)
    elif not isinstance(update, Mapping) or hasattr(update, "tocoo"):  # SciPy's dok_matrix is a mapping
        update = _named(spec, update)
    for name in update:
        spec.tensor(name)
    return [(tensor, update[tensor.name]) for tensor in spec.tensors if tensor.name in update]


def _gradients(spec: RoundSpec, module: Any) -> dict[str, Any]:
    """Returns the gradients of a module. One that has several names comes by each that the round has."""
    known = {tensor.name for tensor in spec.tensors}
    named = list(every_name(module.named_parameters))
    names: dict[int, list[str]] = {}
    for name, parameter in named:
        if name in known:
            names.setdefault(id(parameter), []).append(name)
    gradients: dict[str, Any] = {}
    for first, parameter in module.named_parameters():
        if parameter.grad is not None:
            gradients.update(dict.fromkeys(names.get(id(parameter), [first]), parameter.grad))
    return gradients


def _named(spec: RoundSpec, update: Any) -> Mapping[str, Any]:
    """Returns an update without names as a mapping."""
    names = [tensor.name for tensor in spec.tensors]
    # As RoundSpec.like names the arrays of a list.
    if isinstance(update, list) and len(update) == len(names) and names == [str(at) for at in range(len(names))]:
        return dict(zip(names, update))
    if len(names) != 1:
        cure = "; of a pair (update, weight), the weight is an argument of its own" if isinstance(update, tuple) else ""
        raise InvalidArgumentError(
            f"an update must be a mapping from tensor names to tensors, got {kind_of(update)}{cure}"
        )
    return {names[0]: update}


@default_float_environment()
def tensor_data(spec: TensorSpec, tensor: Any, columns: dict[str, list[Any]] | None = None) -> TensorData:
    """Converts one tensor; see ``update_data``. ``columns``: ``RoundSpec.table_columns`` of its round."""
    return with_wire_keys(engine_tensor_data(spec, tensor, columns))


def engine_tensor_data(spec: TensorSpec, tensor: Any, columns: dict[str, list[Any]] | None = None) -> TensorData:
    """Converts one tensor as ``engine_data`` does."""
    with readable(spec.name, tensor):
        return _tensor_data(spec, tensor, {} if columns is None else columns)


@contextlib.contextmanager
def readable(name: str, thing: Any, part: str = "") -> Iterator[None]:
    """Turns any error of reading ``thing`` into an ``InvalidArgumentError`` that names tensor, part and type."""
    try:
        yield
    except (SparseaggError, MemoryError):
        raise
    except Exception as error:  # any kind of error that the thing's library raises
        cure = "" if cuda_device(thing) is None else READ_ON_GPU
        raise InvalidArgumentError(f"tensor {name!r}: cannot read {part}{kind_of(thing)}: {error}{cure}") from error


def _tensor_data(spec: TensorSpec, tensor: Any, columns: dict[str, list[Any]]) -> TensorData:
    if callable(getattr(tensor, "as_update", None)):  # a TensorResult
        tensor = tensor.as_update()
    if isinstance(tensor, tuple):
        if len(tensor) != 2:
            raise InvalidArgumentError(f"tensor {spec.name!r}: a tuple is (keys, rows), not one of {len(tensor)}")
        keys, rows = tensor
        with readable(spec.name, keys, "keys of "):
            keys = _key_array(keys)
        with readable(spec.name, rows, "rows of "):
            if rows is not None:
                rows = read_columns(rows, _places(spec, columns)) if is_table(rows) else to_numpy(rows)
        return _from_rows(spec, keys, rows)
    # Tables first: a frame's columns are attributes of any name.
    parts = read_table(tensor, _places(spec, columns)) if is_table(tensor) else read_parts(tensor)
    if isinstance(parts, Keyed):
        return _from_rows(spec, parts.keys, parts.rows)
    if isinstance(parts, Entries):
        return _from_rows(spec, *keyed_entries(spec, parts))
    return _from_dense(spec, tensor)


def _places(spec: TensorSpec, columns: dict[str, list[Any]]) -> Places:
    """Returns the function that finds the columns of a tensor's first table in its later ones, by name."""

    def places(names: list[Any]) -> list[int]:
        first = columns.setdefault(spec.name, names)
        if names == first:
            return list(range(len(names)))
        at = {name: place for place, name in enumerate(names)}
        if len(names) != len(first) or set(first) != set(at) or len(at) < len(names):
            raise ValueError(
                f"its value columns are {shown(names)}, but those of the first table for this tensor are "
                f"{shown(first)}; columns go by name: rename them, or give rows without names, as (keys, array)"
            )
        return [at[name] for name in first]

    return places


def kind_of(thing: Any) -> str:
    """Returns the full name of a thing's type, for errors."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _key_array(keys: Any) -> Array:
    try:
        array = to_numpy(keys)
    except ValueError as error:
        is_column = isinstance(keys, (list, tuple)) or (hasattr(keys, "__array__") and not has_columns(keys))
        if is_column and getattr(keys, "ndim", 1) == 1 and any(isinstance(key, str) for key in keys):
            raise ValueError(f"they are text; {_NUMBER_TEXTS}") from error
        raise
    # NumPy makes floats from integers without a common type, such as 0 and 2^64 - 1.
    if array.dtype.kind == "f" and isinstance(keys, (list, tuple)) and all(type(key) is int for key in keys):
        return np.array(keys, dtype=np.uint64)
    return array


def _from_dense(spec: TensorSpec, tensor: Any) -> TensorData:
    if isinstance(tensor, list) and len(tensor) == 2 and spec.num_rows != 2 and hasattr(tensor[0], "__len__"):
        raise InvalidArgumentError(
            f"tensor {spec.name!r}: a list is a dense array; keys and rows are a tuple (keys, rows)"
        )
    values = to_numpy(tensor)
    check_dense_shape(spec, values.shape)
    rows = values.reshape(spec.num_rows, spec.row_width)
    return TensorData(spec, None, wire_values(spec, None, rows, spec.num_rows), spec.num_rows)


def check_dense_shape(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raises ``InvalidArgumentError`` if a dense array of this shape is not the whole tensor."""
    size = math.prod(shape)
    if size != spec.num_rows * spec.row_width or spec.num_rows == 0:
        raise InvalidArgumentError(
            f"tensor {spec.name!r}: a dense array of shape {shape} has {size} values, but num_rows "
            f"{spec.num_rows} × row_width {spec.row_width} needs {spec.num_rows * spec.row_width}; "
            "give (keys, rows) for a part"
        )
    check_axes(spec, "dense", shape)


def _from_rows(spec: TensorSpec, keys: Array, rows: Rows | None) -> TensorData:
    keys = _integer_keys(spec, keys)
    if isinstance(rows, list):
        return TensorData(spec, keys, wire_columns(spec, keys, rows), len(keys))
    if rows is None and len(keys) == 0:
        rows = np.empty(0)  # no keys have no values, whatever the op
    values = None if rows is None else wire_values(spec, keys, rows, len(keys))
    return TensorData(spec, keys, values, len(keys))


def _integer_keys(spec: TensorSpec, keys: Array) -> Array:
    """Returns the keys as contiguous integers of 32 or 64 bits in the machine's byte order, copied if they are not."""
    check_key_shape(spec, keys.shape)
    if keys.size == 0:
        return np.empty(0, dtype=f"=u{spec.key_bytes}")
    if keys.dtype.kind not in "iu":
        cure = {
            "U": f"; {_NUMBER_TEXTS}",
            "f": "; np.asarray(keys).astype(np.int64) makes integers of whole numbers",
            "b": "; np.flatnonzero(mask) makes keys of a mask",
        }
        raise InvalidArgumentError(
            f"tensor {spec.name!r}: keys must be integers, not {keys.dtype}{cure.get(keys.dtype.kind, '')}"
        )
    return np.ascontiguousarray(keys, dtype=f"={keys.dtype.kind}{max(4, keys.dtype.itemsize)}")


def check_key_shape(spec: TensorSpec, shape: tuple[int, ...]) -> None:
    """Raises ``InvalidArgumentError`` if keys of this shape are on several axes, or on none."""
    if len(shape) != 1:
        raise InvalidArgumentError(f"tensor {spec.name!r}: keys must be one-dimensional, not of shape {shape}")


def with_wire_keys(data: TensorData) -> TensorData:
    """Returns the tuples with keys of the wire's type, which share memory with keys of as many bits."""
    keys, spec = data.keys, data.spec
    if keys is None:
        return data
    wire = np.dtype(f"<u{spec.key_bytes}")
    bits = keys.view(f"=u{keys.dtype.itemsize}")  # a negative key becomes one beyond the type's largest
    largest = min(np.iinfo(keys.dtype).max, np.iinfo(wire).max)
    if largest < np.iinfo(bits.dtype).max and keys.size > 0 and int(bits.max()) > largest:
        at = first_true(bits > bits.dtype.type(largest))
        raise InvalidArgumentError(
            f"tensor {spec.name!r}: key {keys[at]} at position {at} {outside_key_space(spec.num_rows)}"
        )
    return dataclasses.replace(data, keys=np.ascontiguousarray(bits, dtype=wire))


class _Misfit(Exception):
    """A value does not fit the tensor's dtype."""

    def __init__(self, values: Array, bad: Array) -> None:
        super().__init__()
        self.index = first_true(bad.reshape(-1))
        self.value = values.reshape(-1)[self.index]


def first_true(mask: Array) -> int:
    """Returns the position of the first true entry."""
    return int(np.argmax(mask))


def wire_values(spec: TensorSpec, keys: Array | None, values: Array, num_keys: int) -> Array:
    """Returns values of the tensor's dtype, rounded to nearest even; shape (num_keys, row_width), little-endian.

    Arrays of the wire's type are not copied. ``keys``: of the values, for errors; None: 0, 1, …. Raises
    ``InvalidArgumentError`` if the size is wrong, or a value does not fit the dtype.
    """
    check_row_shape(spec, values.shape, num_keys)
    try:
        converted = _converted(spec, values)
    except _Misfit as error:
        raise misfit(spec, keys, error.index, error.value, spec.dtype) from None
    wire = converted.dtype.newbyteorder("<")
    return np.ascontiguousarray(converted, dtype=wire).reshape(num_keys, spec.row_width)


def wire_columns(spec: TensorSpec, keys: Array, columns: list[Array]) -> Array:
    """Returns the values of columns, each of shape (n,) and of a dtype of its own, as ``wire_values`` does.

    Each value is rounded once: a dtype that all columns have in common would round int64 beside float32 before.
    """
    check_row_shape(spec, (len(keys), len(columns)), len(keys))
    rows = []
    for at, column in enumerate(columns):
        try:
            rows.append(_converted(spec, column))
        except _Misfit as error:
            raise misfit(spec, keys, error.index * spec.row_width + at, error.value, spec.dtype) from None
    return wire_values(spec, keys, np.column_stack(rows), len(keys))


def _converted(spec: TensorSpec, values: Array) -> Array:
    """Returns the values in the tensor's dtype, in any byte order; bfloat16 as its bits."""
    if values.size == 0:
        return np.empty(0, dtype=np.uint16 if spec.dtype == "bfloat16" else spec.dtype)
    if spec.dtype == "bfloat16":
        return _to_bfloat16(spec, values)
    return _to_float(spec, values) if spec.dtype.startswith("float") else _to_integer(spec, values)


def check_row_shape(spec: TensorSpec, shape: tuple[int, ...], num_keys: int) -> None:
    """Raises ``InvalidArgumentError`` if values of this shape are not a row for each key."""
    if math.prod(shape) != num_keys * spec.row_width or (len(shape) > 1 and shape[0] != num_keys):
        raise InvalidArgumentError(
            f"tensor {spec.name!r}: values of shape {shape} do not go with {num_keys} keys of row_width "
            f"{spec.row_width}, whose rows have shape ({num_keys}, {spec.row_width})"
        )


def _refuse_type(spec: TensorSpec, values: Array) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"tensor {spec.name!r}: values of dtype {values.dtype} cannot be sent as {spec.dtype}; "
        f"values.astype({spec.dtype!r}) does it all the same"
    )


def misfit(spec: TensorSpec, keys: Array | None, index: int, value: Any, dtype: str) -> InvalidArgumentError:
    """Returns the error of a value that does not fit a dtype, with the place in the engine's words.

    ``index``: of the value among those of the update; ``keys``: None: 0, 1, ….
    """
    position, column = divmod(index, spec.row_width)
    where = f"tensor {spec.name!r}, key {position if keys is None else keys[position]}, position {position}"
    where += f", column {column}" if spec.row_width > 1 else ""
    return InvalidArgumentError(f"{where}: value {value} does not fit {dtype}")


def _to_float(spec: TensorSpec, values: Array) -> Array:
    if is_bfloat16(values.dtype):
        values = values.astype(np.float32)
    if values.dtype.kind not in "fiub":
        raise _refuse_type(spec, values)
    if values.dtype == np.dtype(spec.dtype):
        return values
    with np.errstate(over="ignore", under="ignore"):
        # NumPy casts a longdouble to float16 by way of float64, which would round twice.
        is_longer = values.dtype.kind == "f" and values.dtype.itemsize > 8
        source = _rounded_to_odd(values) if is_longer and spec.dtype == "float16" else values
        converted = source.astype(spec.dtype)
    infinite = np.isinf(converted)
    if infinite.any():
        overflow = infinite & np.isfinite(values)
        if overflow.any():
            raise _Misfit(values, overflow)
    return converted


def _rounded_to_odd(values: Array) -> Array:
    """Returns longdoubles as float64; a longdouble between two float64 values becomes the odd one of the two.

    An odd float64 is never half-way between two values of a narrower type. So rounding it again gives the same value
    as rounding the longdouble.
    """
    near = values.astype(np.float64)
    other = np.nextafter(near, np.where(values > near, np.inf, -np.inf))
    return np.where((near != values) & (near.view(np.uint64) % 2 == 0), other, near)


def _to_bfloat16(spec: TensorSpec, values: Array) -> Array:
    if values.dtype.kind == "u" and values.dtype.itemsize == 2:  # bits, in any byte order
        return values
    if is_bfloat16(values.dtype):
        return values.view(np.dtype(np.uint16).newbyteorder(values.dtype.byteorder))
    if values.dtype.kind in "iub":
        return bits_from_integer(values)
    if values.dtype.kind != "f":
        raise _refuse_type(spec, values)
    bits = bits_from_float(values)
    infinite = (bits & 0x7FFF) == 0x7F80
    if infinite.any():
        overflow = infinite & np.isfinite(values)
        if overflow.any():
            raise _Misfit(values, overflow)
    return bits


def _to_integer(spec: TensorSpec, values: Array) -> Array:
    if values.dtype.kind not in "iub":
        raise _refuse_type(spec, values)
    dtype = np.dtype(spec.dtype)
    if values.dtype == dtype:
        return values
    if not np.can_cast(values.dtype, dtype):
        limits = np.iinfo(dtype)
        # Older NumPy compares integers of mixed signs as float64. Minima and maxima as Python integers are exact.
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            outside = np.array([not limits.min <= int(v) <= limits.max for v in values.reshape(-1)])
            raise _Misfit(values, outside)
    return values.astype(dtype)
