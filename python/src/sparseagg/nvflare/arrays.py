"""Arrays of models, and the rows of them that changed: NumPy's and torch's, without an import of torch."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

import sparseagg as sa
from sparseagg._internal.spec import options as spec_options
from sparseagg._internal.updates import nonfinite

# The rows of a sparse tensor travel as two arrays of these names after the tensor's.
KEYS, ROWS = ":keys", ":rows"

FLOATS = ("float16", "bfloat16", "float32", "float64")


def sparse_diff(before: Any, after: Any, sparse: list[str], elements: list[str] | None = None) -> Any:
    """Returns the difference of two models; of sparse tensors, the rows that changed (``name:keys``, ``name:rows``).

    A value that is not finite and has not changed, such as −inf in a mask, has the difference 0. Differences of
    integers are int64.

    Args:
        before: the model that the client received: an FLModel, or NumPy arrays or torch tensors by name.
        after: the trained model, likewise. Tensors that only one of the two has are left out. Shapes may differ in axes
            of length 1. A sparse tensor may be the first rows, and one of ``elements`` any corner, of the received one,
            as LoRA factors of a smaller rank are.
        sparse: names of tensors.
        elements: names of tensors of which single elements are sent, at their flat positions in the received one.

    Returns:
        An FLModel of params_type DIFF with the metrics and meta of ``after``, if that is one; else the params alone.

    Raises:
        InvalidArgumentError: a sparse tensor is missing, or without an axis of rows; a tensor has another shape than
        the received one, or bools that have changed. The message names the tensor.
    """
    before = before.params if isinstance(before, FLModel) else before
    if isinstance(after, FLModel):
        model = copy.copy(after)
        model.params, model.params_type = sparse_diff(before, after.params, sparse, elements), ParamsType.DIFF
        return model
    sparse, elements = checked_names(sparse, elements)
    missing = [name for name in [*sparse, *elements] if name not in before or name not in after]
    if missing:
        raise sa.InvalidArgumentError(f"sparse tensor {missing[0]!r} is not in both models")
    params: dict[str, Any] = {}
    for name in before:
        if name in after:
            with naming_tensor(name):
                old, new = to_array(before[name]), to_array(after[name])
                is_corner = name in elements or (name in sparse and new.shape[1:] == old.shape[1:])
                if is_corner and new.ndim == old.ndim and all(map(operator.le, new.shape, old.shape)):
                    old, whole = old[tuple(map(slice, new.shape))], tuple(old.shape)
                else:
                    whole = None
                delta = _difference(name, old, new)
            is_sparse = name in sparse or name in elements
            params.update(changed_rows(name, delta, name in elements, whole) if is_sparse else {name: delta})
    return params


def _difference(name: str, before: Any, after: Any) -> Any:
    if not spec_options.is_like(after.shape, before.shape):
        raise sa.InvalidArgumentError(
            f"tensor {name!r} has shape {tuple(after.shape)} after training; the received model's has "
            f"{tuple(before.shape)}: name it in sparse if it has the first rows, in elements if it is another corner"
        )
    after = after.reshape(before.shape)
    dtype = str(before.dtype).rpartition(".")[2]
    if dtype == "bool":
        if bool((before != after).any()):
            raise sa.InvalidArgumentError(
                f"tensor {name!r} of bool has changed: there are differences of numbers alone"
            )
        return before ^ after
    if isinstance(before, np.ndarray):
        after = numpy_of(after)
        if before.dtype.kind in "iu" and after.dtype.kind in "iu":
            return after.astype(np.int64) - before.astype(np.int64)
        return nonfinite.difference(before, after)
    import torch

    after = torch.as_tensor(after)
    if not before.is_floating_point() and not after.is_floating_point():
        return after.to(torch.int64) - before.to(torch.int64)
    delta = after - before
    if not bool(torch.isfinite(delta).all()):
        delta[(before == after) | (torch.isnan(before) & torch.isnan(after))] = 0
    return delta


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

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("merged rows are added to the model as they are; SparseAggregator(rows=False) gives arrays")

    __add__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __getitem__ = _refuse

    def __repr__(self) -> str:
        return f"MergedRows({self.rows!r})"


@dataclasses.dataclass(frozen=True)
class ArrayForm:
    """What is remembered of an array of the server's model."""

    # of the array
    shape: tuple[int, ...]
    dtype: str
    torch_dtype: Any  # None for NumPy's
    nonfinite: nonfinite.Nonfinite | None  # its values that are not finite, None if there are none

    @classmethod
    def of(cls, array: Any) -> ArrayForm:
        array = to_array(array)
        name = str(array.dtype).rpartition(".")[2]  # torch.float32
        odd = nonfinite.Nonfinite.of(numpy_of(array)) if name in FLOATS else None
        return cls(tuple(array.shape), name, None if isinstance(array, np.ndarray) else array.dtype, odd)

    @property
    def is_float(self) -> bool:
        """Whether the values are floats that are summed up in their own dtype."""
        return self.dtype in FLOATS

    @property
    def wire_dtype(self) -> str:
        """The dtype in which values are summed up: integers and bools as float64, for a mean of them is no integer."""
        return self.dtype if self.is_float else "float64"

    def array(self, values: Any) -> Any:
        """Returns merged values as an array of the model; integers are rounded to nearest."""
        values = np.asarray(values).reshape(self.shape)
        if not self.is_float:
            values = np.asarray(np.rint(values)).astype(np.int64)  # from which a difference below 0 wraps, as it should
        if self.torch_dtype is None:
            return values.astype(self.dtype, copy=False)
        import torch

        if values.dtype.name == "bfloat16":  # of ml_dtypes
            values = values.astype(np.float32)
        return torch.from_numpy(values).to(self.torch_dtype)


def checked_names(sparse: Any, elements: Any = None) -> tuple[list[str], list[str]]:
    """Returns the two lists of names of sparse tensors; ``InvalidArgumentError`` if they are none, or share a name."""
    elements = [] if elements is None else elements
    for what, names in (("sparse", sparse), ("elements", elements)):
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise sa.InvalidArgumentError(f"{what} must be a list of names of tensors, got {names!r}")
    both = sorted(set(sparse) & set(elements))
    if both:
        raise sa.InvalidArgumentError(
            f"{both[0]!r} is among sparse and among elements: keys are of rows, or of elements"
        )
    return list(sparse), list(elements)


@contextlib.contextmanager
def naming_tensor(name: str) -> Iterator[None]:
    """Turns any error of reading what a client has sent for a tensor into one that names the tensor."""
    try:
        yield
    except (sa.InvalidArgumentError, MemoryError):
        raise
    except Exception as error:  # any kind of error that the array's library raises
        raise sa.InvalidArgumentError(f"tensor {name!r}: {type(error).__name__}: {error}") from error


def to_array(value: Any) -> Any:
    """Returns a NumPy array or torch tensor; lazy references are read."""
    materialize = getattr(value, "materialize", None)
    value = materialize() if callable(materialize) else value
    if callable(getattr(value, "detach", None)):
        return value.detach()
    return np.asarray(value)


def numpy_of(array: Any) -> Any:
    """Returns an array or tensor as NumPy's; bfloat16 as float32."""
    if not isinstance(array, np.ndarray):
        array = array.cpu()
        return (array.float() if str(array.dtype) == "torch.bfloat16" else array).numpy()
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array  # of ml_dtypes


def copy_of(array: Any) -> Any:
    """Returns a copy whose values lie in the order of its axes."""
    return array.copy(order="C") if isinstance(array, np.ndarray) else array.clone().contiguous()


def changed_rows(name: str, delta: Any, by_element: bool, whole: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Returns keys and rows as params. Of a delta that is a corner of a tensor of shape ``whole``, keys are of that."""
    shape = tuple(delta.shape)
    if by_element:
        delta = delta.reshape(-1)
    if not delta.ndim:
        raise sa.InvalidArgumentError(f"tensor {name!r} is a scalar, which has no rows")
    changed = (delta != 0).reshape(len(delta), -1).any(1)
    keys = np.flatnonzero(numpy_of(changed))
    rows = delta[keys]
    if by_element and whole not in (None, shape):
        keys = np.ravel_multi_index(np.unravel_index(keys, shape), whole)
    return pair_of(name, keys, rows, like=delta)


def pair_of(name: str, keys: Any, rows: Any, like: Any) -> dict[str, Any]:
    """Returns NumPy's keys and rows as params; as torch tensors, if ``like`` is one."""
    if not isinstance(like, np.ndarray):
        import torch

        keys, rows = torch.from_numpy(keys), torch.as_tensor(rows, dtype=like.dtype)
    return {name + KEYS: keys, name + ROWS: rows}


def bits_of(array: Any, by_element: bool) -> Any:
    """Returns the bits of an array's values as unsigned integers, of shape (rows, values); each a row if by element."""
    array = to_array(array)
    array = array.reshape(-1, 1) if by_element else array.reshape(len(array), -1)
    if not isinstance(array, np.ndarray):
        import torch

        array = array.cpu().contiguous().view(torch.uint8).numpy()
    array = np.ascontiguousarray(array)
    return array.view(np.uint8 if array.dtype.itemsize == 1 else f"u{array.dtype.itemsize}")


def same_values(params: Mapping[str, Any], names: Iterable[str], others: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields a name and another name of arrays of the same shape and bits.

    Of arrays with one value throughout, only those of two axes and more.
    """
    by_form: dict[Any, list[str]] = {}
    for other in others:
        if other in params and math.prod(to_array(params[other]).shape):
            by_form.setdefault(_form_of(params[other]), []).append(other)
    for name in names:
        for other in by_form.get(_form_of(params[name]), []):
            bits, same = bits_of(params[name], False), bits_of(params[other], False)
            if np.array_equal(bits[0], same[0]) and np.array_equal(bits, same):
                if len(to_array(params[name]).shape) > 1 or (bits != bits.flat[0]).any():
                    yield name, other
                break


def _form_of(array: Any) -> tuple[Any, ...]:
    array = to_array(array)
    return str(array.dtype), tuple(array.shape)


def rows_that_differ(left: Any, right: Any) -> Any:
    """Returns the numbers of the rows in which two arrays differ. In blocks, which fit the cache."""
    block = max(1, (1 << 18) // max(1, left.shape[1]))
    found = [
        first + np.flatnonzero((left[first : first + block] != right[first : first + block]).any(axis=1))
        for first in range(0, len(left), block)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)
