"""The tensors of a published model as rows of 32-bit words, which a sum of one submission leaves as they are.

Sums of floats would make +0.0 of -0.0, refuse NaN, and leave out types that no round has.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sparseagg._internal.base.arguments import checked_text, shown
from sparseagg._internal.base.types import Layout
from sparseagg._internal.results.result import TensorResult
from sparseagg._internal.spec.round_spec import TensorSpec
from sparseagg._internal.updates.arrays import Array, to_numpy
from sparseagg.errors import InvalidArgumentError

__all__ = ["ModelTensor", "Rows", "change_of", "model_tensors", "rows_of"]


@dataclasses.dataclass(frozen=True)
class ModelTensor:
    """One tensor of a model: an array whose first axis counts the rows. An array without axes has one row."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def wire_name(self) -> str:
        """The name of the round's tensor, which has type and shape, so that a reader with other arrays finds none."""
        return f"{self.name} {self.dtype} {'x'.join(map(str, self.shape))}"

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.shape[0] if self.shape else 1

    @property
    def row_width(self) -> int:
        """The number of values in a row."""
        return math.prod(self.shape[1:])

    def spec(self, num_words: int, layout: Layout) -> TensorSpec:
        """Returns the round's tensor, with ``num_words`` words in a row."""
        return TensorSpec(
            self.wire_name, "uint32", num_rows=self.num_rows, row_width=num_words, layout=layout, modular=True
        )


class Rows:
    """An array of the caller's, as rows that can be read and written as words.

    Attributes:
        tensor: what the array is.
        num_words: words in a row.
    """

    def __init__(self, tensor: ModelTensor, array: Array) -> None:
        self.tensor = tensor
        self._array = array.reshape(tensor.num_rows, *tensor.shape[1:])  # a view, since the shape is the same
        self._row_bytes = tensor.row_width * array.dtype.itemsize
        self.num_words = -(-self._row_bytes // 4)

    @classmethod
    def of_words(cls, tensor: ModelTensor, num_words: int) -> Rows:
        """Returns new rows, which hold the words as they are."""
        words = ModelTensor(tensor.name, "uint32", (tensor.num_rows, num_words))
        rows = cls(words, np.zeros(words.shape, "<u4"))
        rows.tensor = tensor
        return rows

    def words(self, rows: Array | None = None) -> Array:
        """Returns all rows, or ``rows`` of the same type and row_width, as words: views if these fill the rows."""
        array = np.ascontiguousarray(self._array if rows is None else rows)
        octets = array.reshape(len(array), -1).view(np.uint8)
        padding = 4 * self.num_words - self._row_bytes
        if padding:
            octets = np.pad(octets, ((0, 0), (0, padding)))
        return octets.view("<u4")

    def write(self, result: TensorResult) -> None:
        """Writes the rows of a result."""
        assert result.values is not None
        words = np.ascontiguousarray(result.values.reshape(len(result), self.num_words))
        octets = words.view(np.uint8)[:, : self._row_bytes]
        rows = np.ascontiguousarray(octets).view(self._array.dtype).reshape(len(result), *self._array.shape[1:])
        if len(result) == self.tensor.num_rows:
            self._array[...] = rows
        else:
            self._array[result.keys] = rows


def rows_of(arrays: Any, *, writable: bool) -> dict[str, Rows]:
    """Returns the arrays of a model, NumPy's or torch's, by name, without those that have no values.

    Args:
        arrays: a mapping from names to arrays.
        writable: whether ``write`` has to change the caller's arrays.

    Raises:
        InvalidArgumentError: this is no such mapping, or an array cannot be used in place; the message names the array.
    """
    if not isinstance(arrays, Mapping):
        raise InvalidArgumentError(f"a model must be a mapping from names to arrays, got {shown(arrays)}")
    found = {}
    for name, given in arrays.items():
        array, dtype = _viewed(checked_text("a tensor's name", name), given, writable)
        if array.size:
            found[name] = Rows(ModelTensor(name, dtype, array.shape), array)
    return found


def _viewed(name: str, given: Any, writable: bool) -> tuple[Array, str]:
    """Returns a NumPy array over the memory of an array, and the name of its type."""
    if str(getattr(given, "layout", "")) == "torch.strided":
        if writable and given.device.type != "cpu":
            raise InvalidArgumentError(f"tensor {name!r} is on {given.device}; give a tensor on the CPU")
        tensor = given.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such type
            import torch

            return tensor.view(torch.int16).numpy(), "bfloat16"
        array = np.asarray(tensor.numpy())
    elif isinstance(given, np.ndarray) or not writable:
        array = to_numpy(given)
    else:
        raise InvalidArgumentError(
            f"tensor {name!r}: must be an array of NumPy or torch, which is written in place, got {shown(given)}"
        )
    if array.dtype.hasobject or not array.dtype.isnative:
        raise InvalidArgumentError(f"tensor {name!r}: an array of numbers is wanted, not one of {array.dtype}")
    if writable and not array.flags.writeable:
        raise InvalidArgumentError(f"tensor {name!r}: the array is read-only")
    return array, array.dtype.name


def change_of(tensor: ModelTensor, change: Any) -> tuple[Array | None, Array, int] | None:
    """Returns the keys (None: all rows), words and words in a row of a change; None if nothing changes.

    Raises:
        InvalidArgumentError: the change does not fit the tensor.
    """
    if change is None:
        return None
    where = f"tensor {tensor.name!r}"
    if not isinstance(change, tuple):
        (rows,) = rows_of({tensor.name: change}, writable=False).values()
        if rows.tensor != tensor:
            raise InvalidArgumentError(
                f"{where}: must be {tensor.dtype} of shape {tensor.shape} as in the model, got {rows.tensor.dtype} of "
                f"shape {rows.tensor.shape}"
            )
        return None, rows.words(), rows.num_words
    if len(change) != 2:
        raise InvalidArgumentError(f"{where}: a tuple must be (keys, rows), got {len(change)} members")
    keys, (values, dtype) = to_numpy(change[0]), _viewed(tensor.name, change[1], writable=False)
    if keys.ndim != 1 or (keys.size and keys.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"{where}: keys must be integers on one axis, got {keys.dtype} of shape {keys.shape}"
        )
    if len(keys) == 0:
        return None
    if dtype != tensor.dtype or values.size != len(keys) * tensor.row_width or len(values) != len(keys):
        raise InvalidArgumentError(
            f"{where}: {len(keys)} rows of {tensor.dtype} and shape {tensor.shape[1:]} must be given, got {dtype} of "
            f"shape {values.shape}"
        )
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    twice = keys[1:] == keys[:-1]
    if twice.any():
        raise InvalidArgumentError(f"{where}: key {keys[1:][twice][0]} has two rows")
    rows = Rows(dataclasses.replace(tensor, shape=(len(keys), *tensor.shape[1:])), values.reshape(len(keys), -1))
    return keys, rows.words()[order], rows.num_words


def model_tensors(specs: Any) -> dict[str, tuple[ModelTensor, int]]:
    """Returns the tensors of a round's spec, each with its words in a row, by name."""
    found = {}
    for spec in specs:
        name, dtype, sizes = spec.name.rsplit(" ", 2)
        shape = tuple(int(size) for size in sizes.split("x") if size)
        found[name] = ModelTensor(name, dtype, shape), spec.row_width
    return found
