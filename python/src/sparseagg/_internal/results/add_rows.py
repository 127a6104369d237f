"""The addition of merged rows to an array or tensor, in place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from sparseagg._internal.base import floats
from sparseagg._internal.base.arguments import is_number, shown
from sparseagg._internal.base.floats import default_float_environment
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.spec.options import dtype_name
from sparseagg._internal.updates.arrays import kind_of
from sparseagg.errors import InvalidArgumentError, OutOfRangeError

# Values that are added at a time, so that their float64 sums stay in the cache.
_BLOCK_VALUES = 1 << 15


class Addition:
    """target += alpha · rows, checked when it is made, and done by ``run``. Rows that are not there change nothing.

    Args:
        name: of the tensor, for errors.
        shape: of the tensor. A row at key k is at the flat positions from k · width on.
        keys: ascending and unique; None for all.
        values: of the rows, shape (n, width).
        target: a NumPy array, or a torch tensor or parameter on any device, of that shape.
        alpha: a finite number.

    Raises:
        InvalidArgumentError: the target is no such array, is read-only, or has another shape or an unfit dtype; or
            alpha is no finite number, or no integer where the target has integers.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], keys: Array | None, values: Array, target: Any, alpha: Any
    ) -> None:
        self._name, self._shape, self._keys, self._values = name, shape, keys, values
        self._target = _target_of(name, target)
        if tuple(target.shape) != shape:
            raise InvalidArgumentError(
                f"tensor {name!r} has shape {shape}, and the array to add to has {tuple(target.shape)}; "
                "TensorSpec(shape=…) gives a result the shape of its array"
            )
        if not is_number(alpha) or not math.isfinite(alpha):
            raise InvalidArgumentError(f"alpha must be a finite number, got {shown(alpha)}")
        self._alpha = alpha
        self._is_integer = "int" in self._target.dtype
        if self._is_integer and (values.dtype.kind not in "iu" or int(alpha) != alpha):
            raise InvalidArgumentError(
                f"tensor {name!r}: {alpha} × {values.dtype} does not add to {self._target.dtype}"
            )
        self._view, self._is_flat = self._target.rows(values.shape[1])

    @default_float_environment()
    def run(self) -> None:
        """Adds the rows: each sum is computed in float64 and rounded once to the target's dtype; integers are exact.

        Raises:
            OutOfRangeError: an integer does not fit the target's dtype. Rows at smaller keys are added.
        """
        num_rows, width = self._values.shape
        block = max(1, _BLOCK_VALUES // width)
        for start in range(0, num_rows, block):
            rows = self._values[start : start + block]
            index = self._index(start, start + len(rows), width)
            before = self._target.read(self._view, index)
            self._target.write(self._view, index, self._sums(before, rows, start))

    def _index(self, start: int, stop: int, width: int) -> Any:
        if self._keys is None and self._is_flat:
            return slice(start, stop)
        keys = np.arange(start, stop) if self._keys is None else self._keys[start:stop].astype(np.int64)
        if self._is_flat:
            return keys
        return np.unravel_index(keys[:, np.newaxis] * width + np.arange(width), self._shape)

    def _sums(self, before: Array, rows: Array, start: int) -> Array:
        """Returns before + alpha · rows in the target's dtype; bfloat16 as its bits. ``start``: their start."""
        dtype = self._target.dtype
        if self._is_integer:
            return self._integer_sums(before, rows, start)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            sums = rows.astype(np.float64)
            if self._alpha != 1:
                sums *= float(self._alpha)
            sums += before.astype(np.float64)
            return floats.bits_from_float(sums) if dtype == "bfloat16" else sums.astype(dtype)

    def _integer_sums(self, before: Array, rows: Array, start: int) -> Array:
        sums = before.astype(object) + rows.astype(object) * int(self._alpha)  # Python's integers: slow, and exact
        limits = np.iinfo(self._target.dtype)
        if sums.size and not limits.min <= sums.min() <= sums.max() <= limits.max:
            row = int(np.argmax(((sums < limits.min) | (sums > limits.max)).any(axis=1)))
            key = start + row if self._keys is None else self._keys[start + row]
            raise OutOfRangeError(f"tensor {self._name!r}, key {key}: a sum does not fit {limits.dtype}")
        return np.asarray(sums, dtype=limits.dtype)


def _target_of(name: str, target: Any) -> _NumpyTarget | _TorchTarget:
    is_torch = hasattr(target, "detach") and hasattr(target, "new_tensor")
    if not is_torch and not isinstance(target, np.ndarray):
        raise InvalidArgumentError(
            f"tensor {name!r}: rows are added to a NumPy array or a torch tensor in place, not to {kind_of(target)}"
        )
    try:
        return _TorchTarget(target) if is_torch else _NumpyTarget(target)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"tensor {name!r}: rows cannot be added in place: {error}") from error


class _NumpyTarget:
    """A NumPy array. Views and indices are those of the class below, too."""

    def __init__(self, array: Array) -> None:
        self.dtype = dtype_name(array.dtype)
        if not array.flags.writeable:
            raise InvalidArgumentError("the array is read-only")
        self._array = array

    def rows(self, width: int) -> tuple[Any, bool]:
        """Returns a view with a row of that width for each key, and true; or the array, and false, if none has it."""
        is_flat = self._array.flags.c_contiguous
        return (self._array.reshape(-1, width) if is_flat else self._array), is_flat

    def read(self, view: Any, index: Any) -> Array:
        """Returns the values at an index, exactly."""
        return np.asarray(view[index])

    def write(self, view: Any, index: Any, values: Array) -> None:
        """Sets the values at an index."""
        view[index] = values.view(view.dtype) if self.dtype == "bfloat16" else values


class _TorchTarget:
    """A torch tensor. Written through a tensor that is detached, so that autograd sees another version, not a step."""

    def __init__(self, tensor: Any) -> None:
        self.dtype = dtype_name(tensor.dtype)
        if str(tensor.layout) != "torch.strided":
            raise InvalidArgumentError(f"the tensor's layout is {tensor.layout}")
        self._tensor = tensor.detach()

    def rows(self, width: int) -> tuple[Any, bool]:
        is_flat = self._tensor.is_contiguous()
        return (self._tensor.view(-1, width) if is_flat else self._tensor), is_flat

    def read(self, view: Any, index: Any) -> Array:
        values = view[self._index(view, index)].cpu()
        return np.asarray((values.float() if self.dtype == "bfloat16" else values).numpy())

    def write(self, view: Any, index: Any, values: Array) -> None:
        import torch

        if self.dtype == "bfloat16":
            written = torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
        else:
            written = torch.from_numpy(values)
        view[self._index(view, index)] = written.to(view.device)

    def _index(self, view: Any, index: Any) -> Any:
        import torch

        if isinstance(index, slice):
            return index
        if isinstance(index, tuple):
            return tuple(torch.from_numpy(axis).to(view.device) for axis in index)
        return torch.from_numpy(index).to(view.device)
