"""Conversion of updates for an engine that reads arrays in a GPU's memory. Such arrays are borrowed, not converted."""

from __future__ import annotations

import dataclasses
import math
import string
from typing import TYPE_CHECKING, Any, Union

from sparseagg._internal.base import extension
from sparseagg._internal.base.foreign import ANY_DEVICE, cuda_device, default_float_environment, is_torch_coo
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec
from sparseagg._internal.updates.arrays import (
    TensorData,
    check_dense_shape,
    check_key_shape,
    check_row_shape,
    engine_tensor_data,
    given_tensors,
    kind_of,
    readable,
    with_wire_keys,
)
from sparseagg._internal.updates.sparse import check_sparse_shape
from sparseagg.errors import InvalidArgumentError

if TYPE_CHECKING:
    from sparseagg._engine import Aggregator, DeviceArray, MemoryRounds

# What borrows arrays in the memory of its engine's device.
DeviceReader = Union["Aggregator", "MemoryRounds"]

_KEY_TYPES = ("int32", "int64", "uint32", "uint64")


@dataclasses.dataclass(frozen=True)
class DeviceData:
    """The (key, row) tuples of one tensor, in the memory of the engine's device, contiguous."""

    spec: TensorSpec
    keys: DeviceArray | None  # integers of 32 or 64 bits, shape (n,), unchecked. None: 0, 1, …, n − 1.
    # n · row_width values of the tensor's dtype; bfloat16 also as its bits, uint16. None: no values (union).
    values: DeviceArray | None
    num_keys: int  # n

    @property
    def num_bytes(self) -> int:
        """The bytes of keys and values."""
        return sum(math.prod(a.shape) * int(a.dtype.strip(string.ascii_letters)) // 8 for a in self.arrays)

    @property
    def arrays(self) -> list[DeviceArray]:
        """The keys and the values, those of them that there are."""
        return [array for array in (self.keys, self.values) if array is not None]


def device_update_data(spec: RoundSpec, update: Any, engine: DeviceReader) -> tuple[list[TensorData], list[DeviceData]]:
    """Converts one client's update as ``update_data`` does, but keeps tensors that are on the engine's device there.

    Values are copied, in host memory or on the device, so that the caller may change the arrays once this returns.
    Raises as ``device_engine_data``.
    """
    data = device_engine_data(spec, update, engine, copy=True)
    return (
        [with_wire_keys(tensor) for tensor in data if isinstance(tensor, TensorData)],
        [tensor for tensor in data if isinstance(tensor, DeviceData)],
    )


@default_float_environment()
def device_engine_data(
    spec: RoundSpec, update: Any, engine: DeviceReader, *, copy: bool
) -> list[TensorData | DeviceData]:
    """Converts one client's update as ``engine_data`` does, but borrows arrays that are on the engine's device.

    The keys and rows of one tensor must be in the same place. ``copy``: copy the values, on the device that they are
    on. Raises ``InvalidArgumentError`` also if arrays are on another device, not contiguous or not of the tensor's
    dtype, for they are not converted there.
    """
    assert engine.device_stream is not None
    reader = _Reader(engine, engine.device_stream[0], copy, spec.table_columns)
    return [reader.read(tensor, given) for tensor, given in given_tensors(spec, update)]


@dataclasses.dataclass(frozen=True)
class _Reader:
    engine: DeviceReader
    device: int
    copy: bool
    columns: dict[str, list[Any]]

    def read(self, spec: TensorSpec, tensor: Any) -> TensorData | DeviceData:
        data: TensorData | DeviceData | None = None
        if isinstance(tensor, tuple) and len(tensor) == 2:
            data = self._read_pair(spec, *tensor)
        elif cuda_device(tensor) is not None and is_torch_coo(tensor):
            with readable(spec.name, tensor):
                data = self._read_torch_coo(spec, tensor.detach())
        elif cuda_device(tensor) is not None and not _is_torch_sparse(tensor):
            data = self._read_dense(spec, tensor)
        if data is not None:
            return data
        host = engine_tensor_data(spec, tensor, self.columns)
        return host.copied() if self.copy else host

    def _read_pair(self, spec: TensorSpec, keys: Any, rows: Any) -> TensorData | DeviceData | None:
        places = [cuda_device(keys)] if rows is None else [cuda_device(keys), cuda_device(rows)]
        if places == [None] * len(places):
            return None
        if None in places:
            on_host, on_device = ("keys", "rows") if places[0] is None else ("rows", "keys")
            device = self._name(keys if on_device == "keys" else rows)
            raise InvalidArgumentError(
                f"tensor {spec.name!r}: {on_host} are in host memory and {on_device} on {device}; give both in one "
                "place"
            )
        return self._from_rows(spec, keys, rows)

    def _read_dense(self, spec: TensorSpec, tensor: Any) -> DeviceData:
        values = self._borrow(spec, tensor, "", copy=self.copy)
        check_dense_shape(spec, values.shape)
        _check_values(spec, tensor, values)
        return DeviceData(spec, None, values, spec.num_rows)

    def _read_torch_coo(self, spec: TensorSpec, tensor: Any) -> TensorData | DeviceData | None:
        """Returns None if entries are not rows, or coordinates are outside: the host reads those, or refuses them."""
        # The private names, for only these take tensors that are not coalesced.
        indices, values = tensor._indices(), tensor._values()
        shape = tuple(int(size) for size in tensor.shape)
        num_axes = len(indices)
        if num_axes == 0:
            return None
        if num_axes > 1 or spec.num_rows != 0:
            check_sparse_shape(spec, num_axes, shape)
            if math.prod(shape[num_axes:]) != spec.row_width:
                return None
        keys = indices[0]
        if num_axes > 1:
            for axis, length in zip(indices, shape):
                if bool(((axis < 0) | (axis >= length)).any()):
                    return None
            for axis, length in zip(indices[1:], shape[1:]):
                keys = keys * length + axis
        return self._from_rows(spec, keys.contiguous(), values.contiguous())

    def _from_rows(self, spec: TensorSpec, keys: Any, rows: Any) -> TensorData | DeviceData:
        borrowed_keys = self._borrow(spec, keys, "keys", copy=False)
        borrowed_rows = None if rows is None else self._borrow(spec, rows, "rows", copy=self.copy)
        check_key_shape(spec, borrowed_keys.shape)
        num_keys = borrowed_keys.shape[0]
        if borrowed_rows is not None:
            check_row_shape(spec, borrowed_rows.shape, num_keys)
        if num_keys == 0:  # of any dtype, as in host memory
            return engine_tensor_data(spec, ([], None))
        if borrowed_keys.dtype not in _KEY_TYPES:
            raise InvalidArgumentError(
                f"tensor {spec.name!r}: keys on a GPU must be {', '.join(_KEY_TYPES[:-1])} or {_KEY_TYPES[-1]}, got "
                f"{borrowed_keys.dtype}{_converted(keys, 'int64')}"
            )
        _check_layout(spec, keys, borrowed_keys, "keys")
        if borrowed_rows is not None:
            _check_values(spec, rows, borrowed_rows)
        return DeviceData(spec, borrowed_keys, borrowed_rows, num_keys)

    def _borrow(self, spec: TensorSpec, array: Any, part: str, *, copy: bool) -> DeviceArray:
        if cuda_device(array) not in (self.device, ANY_DEVICE):
            raise InvalidArgumentError(
                f"tensor {spec.name!r}: {part or 'values'} are on {self._name(array)}, but the engine works on CUDA "
                f"device {self.device}"
            )
        with readable(spec.name, array, f"{part} of " if part else ""):
            if copy:
                array = _copy(array)
            with extension.errors():
                return self.engine.borrow(array)

    def _name(self, array: Any) -> str:
        at = cuda_device(array)
        return f"CUDA device {self.device if at == ANY_DEVICE else at}"


def _is_torch_sparse(tensor: Any) -> bool:
    return str(getattr(tensor, "layout", "")).startswith("torch.sparse_")


def _copy(array: Any) -> Any:
    for name in ("clone", "copy"):
        if callable(getattr(array, name, None)):
            return getattr(array, name)()
    raise ValueError(f"{kind_of(array)} has no method that copies it on its device; copy it before")


def _check_values(spec: TensorSpec, given: Any, values: DeviceArray) -> None:
    if values.dtype != spec.dtype and (spec.dtype, values.dtype) != ("bfloat16", "uint16"):
        raise InvalidArgumentError(
            f"tensor {spec.name!r}: values on a GPU must be of the tensor's dtype {spec.dtype}, got "
            f"{values.dtype}{_converted(given, spec.dtype)}"
        )
    _check_layout(spec, given, values, "values")


def _converted(array: Any, dtype: str) -> str:
    """Returns what converts an array, for errors; nothing if its library has no such method."""
    if hasattr(array, "detach"):
        return f"; .to(torch.{dtype}) converts them"
    return f'; .astype("{dtype}") converts them' if hasattr(array, "astype") else ""


def _check_layout(spec: TensorSpec, given: Any, array: DeviceArray, what: str) -> None:
    if array.is_contiguous:
        return
    cure = ""
    if hasattr(given, "contiguous"):
        cure = "; .contiguous() makes them so"
    elif kind_of(given).startswith("cupy."):
        cure = "; cupy.ascontiguousarray makes them so"
    raise InvalidArgumentError(f"tensor {spec.name!r}: {what} on a GPU must be contiguous, row after row{cure}")
