"""The merged tensors of a round."""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sparseagg._internal.base.arguments import did_you_mean, is_number, shown
from sparseagg._internal.base.foreign import Array, bits_from_float, default_float_environment
from sparseagg._internal.base.text import html_table, plain
from sparseagg._internal.results.forms import Forms, draw
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.spec.of_model import model_arrays, tied_arrays
from sparseagg._internal.spec.options import dtype_name, key_bytes, shape_of_rows
from sparseagg._internal.spec.round_spec import RoundSpec
from sparseagg._internal.updates.arrays import kind_of
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError

# Values that are added at a time, so that their float64 sums stay in the cache.
_BLOCK_VALUES = 1 << 15

# Of the table that a notebook shows.
_ROWS_SHOWN, _VALUES_SHOWN = 10, 8


class Addition:
    """target += alpha · rows, checked when it is made, and done by ``run``. Rows that are not there change nothing.

    ``shape``: of the tensor; a row at key k is at the flat positions from k · width on. ``keys``: ascending and unique;
    None for all. ``values``: shape (n, width). ``target``: a NumPy array, or a torch tensor or parameter on any device,
    of that shape. Raises ``InvalidArgumentError`` for another target, one that is read-only, or an alpha that is not
    finite or no integer where the target has integers.
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
                f"tensor {name!r}: {alpha} × {values.dtype} does not add to {self._target.dtype}; give one of floats"
            )
        self._view, self._is_flat = self._target.rows(values.shape[1])

    @default_float_environment()
    def run(self) -> None:
        """Adds the rows: each sum is computed in float64 and rounded once to the target's dtype; integers are exact.

        Raises ``OutOfRangeError`` for an integer that does not fit. Rows at smaller keys are added.
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
            return bits_from_float(sums) if dtype == "bfloat16" else sums.astype(dtype)

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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)  # arrays have no single answer to ==
class TensorResult(Forms):
    """One tensor's result, or the part of it within the range of keys that the caller asked for.

        for key, row in tensor: ...  # in the order of keys; the row of a union is None
        tensor[:10]                  # rows by position, as a TensorResult; their arrays are views
        np.asarray(tensor)           # the same as tensor.dense()

    Attributes:
        name: the tensor's name.
        layout: "sparse" or "dense".
        dtype: name of the values' dtype.
        num_rows: number of rows of the tensor; 0: all of uint64.
        row_width: values per key.
        keys: shape (n,), ascending and unique; uint32 where num_rows allows, else uint64. A dense result has all
            keys of the range. Given as None, all keys of the tensor, which are made at their first use.
        values: shape (n,) if ``row_width`` is 1, else (n, row_width). bfloat16 values have the type of ml_dtypes, if
            that package is installed; otherwise they are widened to float32, exactly. None for a union.
        counts: number of contributors of each key, uint32, shape (n,); None without ``return_counts``.
        weights: sum of the contributors' weights, float64, shape (n,); None without ``return_weights``.
        fill: the spec's value at keys of a dense result that no submission lists.
        shape: of the tensor's array, as in the spec; without one there (num_rows,) if ``row_width`` is 1, else
            (num_rows, row_width). None if num_rows is 0.
        moments: Σ w_k·v_k² over the contributors of each key, for each column, float64, of the shape of ``values``;
            zeros at keys of a dense result that no submission lists. Divided by ``weights``, the second moment of the
            contributors' values. None without ``return_moments``.
    """

    name: str
    layout: str
    dtype: str
    num_rows: int
    row_width: int
    keys: Array
    values: Array | None
    counts: Array | None
    weights: Array | None
    fill: float = 0.0
    shape: tuple[int, ...] | None = None
    moments: Array | None = None

    def __post_init__(self) -> None:
        if self.shape is None:
            object.__setattr__(self, "shape", shape_of_rows(self.num_rows, self.row_width))
        if self.keys is None:  # all keys: __getattr__ makes them
            object.__delattr__(self, "keys")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "keys":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            keys = np.arange(self.num_rows, dtype=f"u{key_bytes(self.num_rows)}")
            object.__setattr__(self, name, keys)
            return keys

    def __len__(self) -> int:
        return len(self.keys) if "keys" in vars(self) else self.num_rows

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return zip(self.keys, itertools.repeat(None) if self.values is None else self.values)

    def __getitem__(self, rows: slice) -> TensorResult:
        if not isinstance(rows, slice):
            raise TypeError(
                f"tensor {self.name!r}: rows are taken by position with a slice, as [:10], got {shown(rows)}; the row "
                "of a key k is tensor.values[tensor.keys == k]"
            )
        if "keys" in vars(self):
            keys = self.keys[rows]
        else:
            keys = np.arange(*rows.indices(self.num_rows), dtype=f"u{key_bytes(self.num_rows)}")
        cut: dict[str, Any] = {}
        for name in ("values", "counts", "weights", "moments"):
            column = getattr(self, name)
            cut[name] = None if column is None else column[rows]
        return dataclasses.replace(self, keys=keys, **cut)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.dense()
        if copy is False and array is not self.values:
            raise ValueError(f"tensor {self.name!r} has no array of all its rows to share: copy=False cannot be")
        return np.array(array, dtype) if copy else np.asarray(array, dtype)

    def __repr__(self) -> str:
        rows = f"{len(self)} keys" if self.values is None else f"{len(self)} rows of {self.row_width}"
        return f"TensorResult({self.name!r}, {self.layout}, {self.dtype}, {rows}, num_rows {self.num_rows})"

    def _repr_html_(self) -> str:
        """The first rows with their keys, which notebooks show."""
        first = self[:_ROWS_SHOWN]
        extra = {"clients": first.counts, "weight": first.weights}
        columns: dict[str, Iterable[Any]] = {"key": first.keys}
        columns.update({head: column for head, column in extra.items() if column is not None})
        if first.values is not None:
            values = first.values.reshape(len(first), self.row_width)[:, :_VALUES_SHOWN]
            heads = ["value"] if self.row_width == 1 else map(str, range(values.shape[1]))
            columns.update(zip(heads, values.T))
        rows = [list(row) for row in zip(*columns.values())]
        more = f"; the first {len(first)}" if len(first) < len(self) else ""
        if self.values is not None and self.row_width > _VALUES_SHOWN:
            more += f", {_VALUES_SHOWN} of {self.row_width} values of each"
        return f"<p>{html.escape(plain(repr(self)))}{more}</p>" + html_table(list(columns), rows)

    def add_to(self, target: Any, alpha: float = 1.0) -> None:
        """Adds alpha × the rows to an array, in place. Keys that this result does not have keep their values.

        Each value becomes target + alpha · row, computed in float64 and rounded once to the target's dtype. Integers
        are added exactly. With merged gradients, alpha is minus the learning rate.

        Args:
            target: a NumPy array, or a torch tensor or parameter on any device, of the result's ``shape``.
            alpha: factor of the rows.

        Raises:
            InvalidArgumentError: the target is another thing, is read-only, or has another shape or an unfit dtype; or
                alpha is no finite number. Nothing is added.
            FailedPreconditionError: there are no values (union), or no bound on the keys (num_rows 0).
            OutOfRangeError: an integer sum does not fit the target's dtype. Rows at smaller keys are added.
        """
        self._addition(target, alpha).run()

    def as_update(self) -> Any:
        """Returns the tensor of an update: all rows if the result is dense and whole, else (keys, values).

        Methods that take updates, such as ``Round.submit``, call this. Counts and weights are no part of an update.
        """
        if self._is_whole() and self.values is not None:
            return self.values
        return self.keys, self.values

    def _addition(self, target: Any, alpha: Any) -> Addition:
        values = self._values().reshape(len(self), self.row_width)
        if self.shape is None:
            raise FailedPreconditionError(f"tensor {self.name!r} of num_rows 0 is no part of an array")
        return Addition(self.name, self.shape, None if self._is_whole() else self.keys, values, target, alpha)

    def _changes(self) -> bool:
        """Returns whether adding this changes anything."""
        return bool(self._values().any())

    def _equals(self, other: TensorResult) -> bool:
        """Returns whether another result of an array of the same shape has the same bits."""
        if (self.layout, self.row_width, len(self)) != (other.layout, other.row_width, len(other)):
            return _have_same_bits(self.dense(), other.dense())
        return np.array_equal(self.keys, other.keys) and _have_same_bits(self._values(), other._values())


def _have_same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _share(tensor: TensorResult) -> str:
    return f"{100 * len(tensor) / tensor.num_rows:.3g}%" if tensor.num_rows else ""


def _clients(tensor: TensorResult) -> str:
    if tensor.counts is None or not len(tensor.counts):
        return ""
    return f"{tensor.counts.min()} to {tensor.counts.max()}, median {np.median(tensor.counts):g}"


class Result(Mapping[str, TensorResult]):
    """The merged tensors of a round by name, in the order of the spec.

    Attributes:
        info: the round.
    """

    def __init__(self, tensors: Mapping[str, TensorResult], info: RoundInfo) -> None:
        self._tensors = dict(tensors)
        self.info = info

    @property
    def spec(self) -> RoundSpec:
        """What was computed; of ``aggregate`` without a spec, what it took the updates for."""
        return self.info.spec

    def __getitem__(self, name: str) -> TensorResult:
        try:
            return self._tensors[name]
        except KeyError:
            known = ", ".join(map(repr, self._tensors))
            meant = did_you_mean(name, self._tensors)
            raise KeyError(f"no tensor {name!r}; the result has {known or 'none'}{meant}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return "Result({})".format(", ".join(f"{plain(name)}: {len(tensor)} rows" for name, tensor in self.items()))

    def _repr_html_(self) -> str:
        """The tensors as a table, which notebooks show."""
        rows = [
            (tensor.name, tensor.layout, tensor.dtype, len(tensor), tensor.row_width, _share(tensor), _clients(tensor))
            for tensor in self.values()
        ]
        heads = ("tensor", "layout", "dtype", "rows", "values of a row", "share of all rows", "clients of a row")
        return html_table(heads, rows)

    def plot(self) -> Any:
        """Draws where rows are, and how many clients stand behind a row; returns a figure of matplotlib.

        One line of pictures for each of the first 100 tensors: the share of the rows that the result has, over the
        range of keys in 64 parts; and, with ``return_counts``, a histogram of the counts. Needs
        ``pip install matplotlib``.

        Raises:
            ModuleNotFoundError: there is no matplotlib.
        """
        return draw(list(self.values())[:100])

    def add_to(self, model: Any, alpha: float = 1.0) -> None:
        """Adds alpha × the rows of every tensor to the arrays of a model, in place; see ``TensorResult.add_to``.

        An array that has several names (tied weights) is added to once.

        Args:
            model: a torch module, a state dict or another mapping from names to arrays, or a list of arrays, as for
                ``RoundSpec.like``. Arrays of no tensor stay.
            alpha: factor of the rows.

        Raises:
            InvalidArgumentError: the model has no array of a tensor's name, or not a fit one; or arrays of several
                tensors are one memory (tied weights), and the results differ. Nothing is added.
            FailedPreconditionError: a tensor has no values (union), or no bound on the keys (num_rows 0).
            OutOfRangeError: an integer sum does not fit its array's dtype. Tensors before it are added.
        """
        arrays = model_arrays(model, frozen=True, buffers=True, tied=True)
        for name in self:
            if name not in arrays:
                known = ", ".join(map(repr, arrays))
                raise InvalidArgumentError(f"the model has no array {name!r}; it has {known or 'none'}")
        additions = {name: tensor._addition(arrays[name], alpha) for name, tensor in self.items()}
        for repeated in self._repeated({name: arrays[name] for name in self}):
            del additions[repeated]
        for addition in additions.values():
            addition.run()

    def _repeated(self, arrays: Mapping[str, Any]) -> set[str]:
        """Returns the names of tied arrays whose tensors are added by another name already; they must not differ."""
        repeated: set[str] = set()
        for names in tied_arrays(arrays):
            # A tensor that no client has sent, as the second name of a module's gradient, adds nothing.
            first, *others = [name for name in names if self[name]._changes()] or names[:1]
            different = next((name for name in others if not self[first]._equals(self[name])), None)
            if different is not None:
                raise InvalidArgumentError(
                    f"tensors {first!r} and {different!r} are one array of the model (tied weights), and their results "
                    f"differ: add the right one with result[name].add_to(array)"
                )
            repeated.update(set(names) - {first})
        return repeated
