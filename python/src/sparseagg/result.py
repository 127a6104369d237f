"""The merged tensors of a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sparseagg.arrays import Array
from sparseagg.errors import FailedPrecondition
from sparseagg.info import RoundInfo
from sparseagg.spec import key_bytes

__all__ = ["Result", "TensorResult"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)  # arrays have no single answer to ==
class TensorResult:
    """One tensor's result, or the part of it within the range of keys that the caller asked for.

    Attributes:
        name: the tensor's name.
        layout: "sparse" or "dense".
        dtype: name of the values' dtype.
        dimension: number of rows of the tensor; 0: all of uint64.
        width: values per key.
        keys: shape (n,), ascending and unique; uint32 where the dimension allows, else uint64. A dense result has all
            keys of the range. Given as None, all keys of the tensor, which are made at their first use.
        values: shape (n,) if ``width`` is 1, else (n, width). bfloat16 values have the type of ml_dtypes, if that
            package is installed; otherwise they are widened to float32, exactly. None for a union.
        counts: number of contributors of each key, uint32, shape (n,); None without ``return_counts``.
        weights: sum of the contributors' weights, float64, shape (n,); None without ``return_weights``.
        fixed_point_shift: s, if the sums are exact multiples of 2^-s; else None.
        fill: the spec's value at keys of a dense result that no submission lists.
    """

    name: str
    layout: str
    dtype: str
    dimension: int
    width: int
    keys: Array
    values: Array | None
    counts: Array | None
    weights: Array | None
    fixed_point_shift: int | None
    fill: float = 0.0

    def __post_init__(self) -> None:
        if self.keys is None:  # all keys: __getattr__ makes them
            object.__delattr__(self, "keys")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name != "keys":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            keys = np.arange(self.dimension, dtype=f"u{key_bytes(self.dimension)}")
            object.__setattr__(self, name, keys)
            return keys

    def __len__(self) -> int:
        return len(self.keys) if "keys" in vars(self) else self.dimension

    def __repr__(self) -> str:
        rows = f"{len(self)} keys" if self.values is None else f"{len(self)} rows of {self.width}"
        return f"TensorResult({self.name!r}, {self.layout}, {self.dtype}, {rows}, dimension {self.dimension})"

    def dense(self, fill: float | None = None) -> Array:
        """Returns all rows: shape (dimension,) if ``width`` is 1, else (dimension, width).

        Args:
            fill: value at keys that this result does not have; None: the spec's fill if the result is dense, else 0.
                A dense result of the whole tensor has all keys.

        Raises:
            FailedPrecondition: there are no values (union), no bound on the keys (dimension 0), or too many rows for
                the memory.
        """
        values = self._values()
        if self.dimension == 0:
            raise FailedPrecondition(f"tensor {self.name!r} of dimension 0 cannot be made dense")
        if self.layout == "dense" and len(self) == self.dimension:
            return values
        if fill is None:
            fill = self.fill if self.layout == "dense" else 0.0
        rows = self._array((self.dimension, *values.shape[1:]), values.dtype)
        rows[...] = fill
        rows[self.keys] = values
        return rows

    def as_update(self) -> Any:
        """Returns the tensor of an update: all rows if the result is dense and whole, else (keys, values).

        Methods that take updates, such as ``Round.submit``, call this. Counts and weights are no part of an update.
        """
        if self.layout == "dense" and len(self) == self.dimension and self.values is not None:
            return self.values
        return self.keys, self.values

    def to_scipy(self) -> Any:
        """Returns a ``scipy.sparse.csr_matrix`` of shape (dimension, width), with one stored row per key.

        16-bit floats, with which SciPy does not compute, are widened to float32, exactly.

        Raises:
            FailedPrecondition: there are no values (union), no bound on the keys (dimension 0), or too many rows for
                the memory.
        """
        import scipy.sparse

        values = self._values()
        if self.dimension == 0:
            raise FailedPrecondition(f"tensor {self.name!r} of dimension 0 has no SciPy shape")
        present = self._array((self.dimension + 1,), np.dtype(np.int64))
        present[...] = 0
        present[self.keys.astype(np.int64) + 1] = self.width
        columns = np.tile(np.arange(self.width), len(self))
        flat = values.reshape(-1)
        if self.dtype in ("float16", "bfloat16"):
            flat = flat.astype(np.float32)
        return scipy.sparse.csr_matrix((flat, columns, np.cumsum(present)), shape=(self.dimension, self.width))

    def to_torch(self) -> Any:
        """Returns a torch tensor: ``dense()`` if the result is dense, else a coalesced COO tensor with dense rows.

        Raises:
            FailedPrecondition: there are no values (union), or the dimension is 0 or does not fit int64.
        """
        import torch

        values = self.dense() if self.layout == "dense" else self._values()
        if self.dtype == "bfloat16":
            rows = torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16)  # exact both ways
        else:
            rows = torch.from_numpy(values)
        if self.layout == "dense":
            return rows
        if self.dimension == 0:
            raise FailedPrecondition(f"tensor {self.name!r} of dimension 0 has no torch shape")
        self._check_int64("torch shape")
        keys = torch.from_numpy(self.keys.astype(np.int64).reshape(1, -1))
        return torch.sparse_coo_tensor(keys, rows, (self.dimension, *values.shape[1:])).coalesce()

    def to_tf(self) -> Any:
        """Returns a ``tf.Tensor`` of ``dense()`` if the result is dense, else a ``tf.IndexedSlices``.

        Raises:
            FailedPrecondition: there are no values (union), or the dimension or a key does not fit int64.
        """
        import tensorflow as tf

        if self.layout == "dense":
            return tf.convert_to_tensor(self.dense())
        values, keys = self._values(), self.keys
        if self.dimension == 0:
            if len(keys) and int(keys[-1]) >= 1 << 63:
                raise FailedPrecondition(f"tensor {self.name!r} has key {keys[-1]}, which does not fit int64")
            return tf.IndexedSlices(tf.convert_to_tensor(values), tf.convert_to_tensor(keys.astype(np.int64)))
        self._check_int64("TensorFlow shape")
        shape = tf.convert_to_tensor([self.dimension, *values.shape[1:]], dtype=tf.int64)
        return tf.IndexedSlices(tf.convert_to_tensor(values), tf.convert_to_tensor(keys.astype(np.int64)), shape)

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        try:
            return np.empty(shape, dtype)
        except (MemoryError, OverflowError, ValueError) as error:  # also for more entries than there are addresses
            raise FailedPrecondition(
                f"tensor {self.name!r} of dimension {self.dimension} is too large for an array of all keys: {error}"
            ) from error

    def _check_int64(self, what: str) -> None:
        if self.dimension >= 1 << 63:
            raise FailedPrecondition(
                f"tensor {self.name!r} of dimension {self.dimension}, which does not fit int64, has no {what}"
            )

    def _values(self) -> Array:
        if self.values is None:
            raise FailedPrecondition(f"tensor {self.name!r} is a union, which has keys and counts but no values")
        return self.values


class Result(Mapping[str, TensorResult]):
    """The merged tensors of a round by name, in the order of the spec.

    Attributes:
        info: the round.
    """

    def __init__(self, tensors: Mapping[str, TensorResult], info: RoundInfo) -> None:
        self._tensors = dict(tensors)
        self.info = info

    def __getitem__(self, name: str) -> TensorResult:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return "Result({})".format(", ".join(f"{name}: {len(tensor)} rows" for name, tensor in self.items()))
