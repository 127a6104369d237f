"""The merged tensors of a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sparseagg._internal.base.arguments import did_you_mean
from sparseagg._internal.base.foreign import Array
from sparseagg._internal.base.text import html_table, plain
from sparseagg._internal.results.add_rows import Addition
from sparseagg._internal.results.forms import Forms, draw
from sparseagg._internal.results.info import RoundInfo
from sparseagg._internal.spec.of_model import model_arrays, overlapping_arrays, tied_arrays
from sparseagg._internal.spec.options import key_bytes, shape_of_rows
from sparseagg.errors import FailedPreconditionError, InvalidArgumentError


@dataclasses.dataclass(frozen=True, eq=False, repr=False)  # arrays have no single answer to ==
class TensorResult(Forms):
    """One tensor's result, or the part of it within the range of keys that the caller asked for.

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
        fixed_point_shift: s, if the sums are exact multiples of 2^-s; else None.
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
    fixed_point_shift: int | None
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

    def __repr__(self) -> str:
        rows = f"{len(self)} keys" if self.values is None else f"{len(self)} rows of {self.row_width}"
        return f"TensorResult({self.name!r}, {self.layout}, {self.dtype}, {rows}, num_rows {self.num_rows})"

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
    return f"{len(tensor) / tensor.num_rows:.3g}" if tensor.num_rows else ""


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

        One line of pictures for each sparse tensor: the share of the rows that the result has, over the range of keys
        in 64 parts; and, with ``return_counts``, a histogram of the counts. Needs ``pip install matplotlib``.

        Raises:
            ModuleNotFoundError: there is no matplotlib.
            FailedPreconditionError: no tensor is sparse and has rows.
        """
        tensors = [tensor for tensor in self.values() if tensor.layout == "sparse" and len(tensor)]
        if not tensors:
            raise FailedPreconditionError("no tensor of the result is sparse and has rows: there is nothing to draw")
        return draw(tensors)

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
        """Returns the names of tied arrays whose tensors are added by another name already.

        Raises:
            InvalidArgumentError: the results of tied arrays differ, or arrays overlap in another way.
        """
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
        overlap = overlapping_arrays({name: array for name, array in arrays.items() if name not in repeated})
        if overlap is not None:
            raise InvalidArgumentError(
                f"tensors {overlap[0]!r} and {overlap[1]!r} have elements in common in the model's memory, to which "
                "both would be added: add the right one with result[name].add_to(array)"
            )
        return repeated
