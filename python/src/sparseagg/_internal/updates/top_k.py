"""The choice of the largest parts of a dense change, with error feedback."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np

from sparseagg._internal.base.arguments import checked_integer, checked_text, is_number, shown
from sparseagg._internal.base.foreign import (
    Array,
    bits_from_float,
    default_float_environment,
    float_from_bits,
    is_bfloat16,
    to_numpy,
)
from sparseagg.errors import InvalidArgumentError


class TopK:
    """Chooses the largest elements or rows of a client's changes, and adds the rest to the next ones.

        spec = RoundSpec.like(model, elements=["*.weight"])
        top_k = TopK(fraction=0.01)
        rnd.submit("client-7", {name: top_k.select(name, after[name] - before[name]) for name in names})

    What is not sent stays in a residual for each name, which the next change of that name begins with (error feedback).
    Without it, small changes that always point the same way are lost.

    A client owns one, and keeps it from round to round: it can be pickled. Not thread-safe. Deterministic: of equals,
    the smaller key is chosen.

    Args:
        fraction: of the elements or rows, in (0, 1]; rounded to the nearest number, and 1 at least.
        k: number of elements or rows. Either this or ``fraction`` is given.
        by: "element": keys are positions in the array, row after row, for a ``TensorSpec`` with ``shape`` and
            ``row_width=1``. "row": keys are positions on the first axis, by the rows' L2 norm.

    Raises:
        InvalidArgumentError: an argument has a wrong type or value.
    """

    def __init__(
        self, *, fraction: SupportsFloat | None = None, k: SupportsIndex | None = None, by: str = "element"
    ) -> None:
        if (fraction is None) == (k is None):
            raise InvalidArgumentError("TopK takes either fraction or k, as in TopK(fraction=0.01)")
        if fraction is not None and not (is_number(fraction) and 0 < float(fraction) <= 1):
            raise InvalidArgumentError(f"fraction must be a number from 0 to 1, without 0, got {shown(fraction)}")
        if by not in ("element", "row"):
            raise InvalidArgumentError(f"unknown by {by!r}; known: element, row")
        self._fraction = None if fraction is None else float(fraction)
        self._k = None if k is None else checked_integer("k must be a number from 1 on", k, 1, (1 << 63) - 1)
        self._by = by
        self._residuals: dict[str, Array] = {}

    @property
    def residuals(self) -> Mapping[str, Array]:
        """What has not been sent, by name, in float32 or float64 and the shape of the changes."""
        return dict(self._residuals)

    @default_float_environment()
    def select(self, name: str, delta: Any) -> tuple[Array, Array]:
        """Returns the keys and rows to send, and keeps the rest. Zeros are not sent, so that there may be fewer than k.

        Args:
            name: of the tensor.
            delta: a NumPy array or a torch tensor of floats, of the same shape each time.

        Returns:
            Keys: int64, ascending. Rows: of the delta's dtype; shape (n,) by element, else (n, …) with its other axes.

        Raises:
            InvalidArgumentError: the delta has another shape than before or no floats, or a sum with the residual is
                not finite. The residual stays as it was.
        """
        total, was_bfloat16, dtype = self._total(name, delta)
        rows = self._rows(total)
        with np.errstate(over="ignore"):
            sizes = np.abs(rows) if rows.ndim == 1 else np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
        if not np.isfinite(sizes).all():
            at = np.argmin(np.isfinite(sizes))
            raise InvalidArgumentError(f"tensor {name!r}: {self._by} {at} is not finite, or too large")
        keys = _largest(sizes, self._number(len(sizes)))
        chosen = rows[keys]
        if was_bfloat16:
            sent = float_from_bits(bits_from_float(chosen))
        else:
            with np.errstate(over="ignore"):
                sent = chosen.astype(dtype)
        if not np.isfinite(sent.astype(np.float64)).all():
            raise InvalidArgumentError(f"tensor {name!r}: a sum with the residual does not fit {sent.dtype}")
        rows[keys] = chosen - sent.astype(total.dtype)  # what rounding to 16 bits loses stays, too
        self._residuals[name] = total
        return keys.astype(np.int64), sent.reshape(len(keys), *(total.shape[1:] if rows.ndim > 1 else ()))

    @default_float_environment()
    def put_back(self, name: str, keys: Any, rows: Any) -> None:
        """Adds what ``select`` returned to the residual again, for an update that did not count."""
        if name not in self._residuals:
            raise InvalidArgumentError(f"nothing of tensor {name!r} has been selected")
        residual, at = self._residuals[name].copy(), to_numpy(keys)
        kept = self._rows(residual)
        kept[at] = kept[at] + to_numpy(rows).reshape(len(at), *kept.shape[1:])
        self._residuals[name] = residual

    def _rows(self, array: Array) -> Array:
        """Returns a view with an element or a row for each key."""
        if self._by == "element" or array.ndim < 2:
            return array.reshape(-1)
        return array.reshape(len(array), math.prod(array.shape[1:]))

    def _total(self, name: str, delta: Any) -> tuple[Array, bool, np.dtype[Any]]:
        """Returns delta + residual in a new array, whether the delta is bfloat16, and its dtype."""
        checked_text("a tensor's name", name)
        array = to_numpy(delta)
        was_bfloat16 = is_bfloat16(array.dtype) or str(getattr(delta, "dtype", "")) == "torch.bfloat16"
        if array.dtype.kind != "f" and not was_bfloat16:
            raise InvalidArgumentError(f"tensor {name!r}: a change must be of floats, got {array.dtype}")
        total = np.array(array, np.float64 if array.dtype == np.float64 else np.float32, order="C")
        residual = self._residuals.get(name)
        if residual is not None:
            if residual.shape != total.shape:
                raise InvalidArgumentError(
                    f"tensor {name!r} had changes of shape {residual.shape}, and now {total.shape}"
                )
            with np.errstate(over="ignore", invalid="ignore"):
                np.add(total, residual, out=total)
        return total, was_bfloat16, array.dtype

    def _number(self, size: int) -> int:
        if self._k is not None:
            return min(self._k, size)
        return min(size, max(1, round((self._fraction or 0.0) * size)))


def _largest(sizes: Array, k: int) -> Array:
    """Returns the positions of the k largest sizes above 0, ascending; of equals the first ones."""
    if k == 0:
        return np.empty(0, np.int64)
    least = np.partition(sizes, len(sizes) - k)[len(sizes) - k]
    is_chosen = sizes > least
    if least > 0:
        equal = np.flatnonzero(sizes == least)
        is_chosen[equal[: k - np.count_nonzero(is_chosen)]] = True
    return np.flatnonzero(is_chosen)
