"""Arrays of models, and the rows of them that changed: NumPy's and torch's, without an import of torch."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

import sparseagg as sa

__all__ = [
    "FLOATS",
    "KEYS",
    "ROWS",
    "ArrayForm",
    "MergedRows",
    "bits_of",
    "changed_rows",
    "checked_names",
    "copy_of",
    "pair_of",
    "rows_that_differ",
    "sparse_diff",
    "to_array",
]

# The rows of a sparse tensor travel as two arrays of these names after the tensor's.
KEYS, ROWS = ":keys", ":rows"

FLOATS = ("float16", "bfloat16", "float32", "float64")


def sparse_diff(before: Any, after: Any, sparse: list[str]) -> Any:
    """Returns the difference of two models; of sparse tensors, the rows that changed (``name:keys``, ``name:rows``).

    Args:
        before: the model that the client received: an FLModel, or NumPy arrays or torch tensors by name.
        after: the trained model, likewise. Tensors that only one of the two has are left out.
        sparse: names of tensors.

    Returns:
        An FLModel of params_type DIFF with the metrics and meta of ``after``, if that is one; else the params alone.

    Raises:
        InvalidArgument: a sparse tensor is missing, or without an axis of rows.
    """
    before = before.params if isinstance(before, FLModel) else before
    if isinstance(after, FLModel):
        model = copy.copy(after)
        model.params, model.params_type = sparse_diff(before, after.params, sparse), ParamsType.DIFF
        return model
    missing = [name for name in checked_names(sparse) if name not in before or name not in after]
    if missing:
        raise sa.InvalidArgument(f"sparse tensor {missing[0]!r} is not in both models")
    params: dict[str, Any] = {}
    for name in before:
        if name in after:
            delta = to_array(after[name]) - to_array(before[name])
            params.update(changed_rows(name, delta) if name in sparse else {name: delta})
    return params


class MergedRows:
    """The merged rows of one tensor. ``model + rows`` adds them to the model in place, and returns the model.

    NVFlare's controllers and shareable generators apply a difference as ``weights[name] = weights[name] + difference``.
    NumPy and torch leave that addition to this class, so that it takes time and memory for the rows alone.
    """

    __array_ufunc__ = None  # NumPy's + asks __radd__

    def __init__(self, rows: sa.TensorResult) -> None:
        self.rows = rows

    def __radd__(self, model: Any) -> Any:
        if isinstance(model, np.ndarray) and not model.flags.writeable:
            model = model.copy()
        self.rows.add_to(model)
        return model

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.rows.dense(), dtype)

    def __repr__(self) -> str:
        return f"MergedRows({self.rows!r})"


@dataclasses.dataclass(frozen=True)
class ArrayForm:
    """Shape and dtype of an array of the server's model; ``torch_dtype`` is None for NumPy's."""

    shape: tuple[int, ...]
    dtype: str
    torch_dtype: Any

    @classmethod
    def of(cls, array: Any) -> ArrayForm:
        array = to_array(array)
        name = str(array.dtype).rpartition(".")[2]  # torch.float32
        return cls(tuple(array.shape), name, None if isinstance(array, np.ndarray) else array.dtype)

    @property
    def wire_dtype(self) -> str:
        """The dtype in which values are summed up: integers and bools as float64, for a mean of them is no integer."""
        return self.dtype if self.dtype in FLOATS else "float64"

    def array(self, values: Any) -> Any:
        """Returns merged values as an array of the model; integers are rounded to nearest."""
        values = np.asarray(values).reshape(self.shape)
        if self.dtype not in FLOATS:
            values = np.asarray(np.rint(values))
        if self.torch_dtype is None:
            return values.astype(self.dtype, copy=False)
        import torch

        if values.dtype.name == "bfloat16":  # of ml_dtypes
            values = values.astype(np.float32)
        return torch.from_numpy(values).to(self.torch_dtype)


def checked_names(names: Any) -> list[str]:
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise sa.InvalidArgument(f"sparse is a list of names of tensors, not {names!r}")
    return list(names)


def to_array(value: Any) -> Any:
    """Returns a NumPy array or torch tensor; lazy references are read."""
    materialize = getattr(value, "materialize", None)
    value = materialize() if callable(materialize) else value
    if callable(getattr(value, "detach", None)):
        return value.detach()
    return np.asarray(value)


def copy_of(array: Any) -> Any:
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def changed_rows(name: str, delta: Any) -> dict[str, Any]:
    if not delta.ndim:
        raise sa.InvalidArgument(f"tensor {name!r} is a scalar, which has no rows")
    changed = (delta != 0).reshape(len(delta), -1).any(1)
    keys = np.flatnonzero(changed) if isinstance(delta, np.ndarray) else changed.nonzero().reshape(-1)
    return {name + KEYS: keys, name + ROWS: delta[keys]}


def pair_of(name: str, keys: Any, rows: Any, like: Any) -> dict[str, Any]:
    """Returns NumPy's keys and rows as params; as torch tensors, if ``like`` is one."""
    if not isinstance(like, np.ndarray):
        import torch

        keys, rows = torch.from_numpy(keys), torch.as_tensor(rows, dtype=like.dtype)
    return {name + KEYS: keys, name + ROWS: rows}


def bits_of(array: Any) -> Any:
    """Returns the bits of an array's values as unsigned integers, of shape (rows, values)."""
    array = to_array(array)
    if not isinstance(array, np.ndarray):
        import torch

        array = array.cpu().contiguous().view(torch.uint8).numpy()
    array = np.ascontiguousarray(array).reshape(len(array), -1)
    return array.view(np.uint8 if array.dtype.itemsize == 1 else f"u{array.dtype.itemsize}")


def rows_that_differ(left: Any, right: Any) -> Any:
    """Returns the numbers of the rows in which two arrays differ. In blocks, which fit the cache."""
    block = max(1, (1 << 18) // max(1, left.shape[1]))
    found = [
        first + np.flatnonzero((left[first : first + block] != right[first : first + block]).any(axis=1))
        for first in range(0, len(left), block)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)
