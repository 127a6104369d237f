"""The shape of a caller's array, and how its axes make keys and columns."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from sparseagg._internal.base.arguments import shown
from sparseagg.errors import InvalidArgumentError

__all__ = ["MOST_AXES", "checked_shape", "is_like", "key_axes", "shape_of_rows", "sizes_of"]

# As NumPy 1 and the server allow.
MOST_AXES = 32


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Returns a shape as a tuple of Python's integers; () is a scalar's.

    Args:
        shape: an iterable of sizes, such as the ``shape`` of an array or tensor of any library.

    Raises:
        InvalidArgumentError: ``shape`` is none, has a size below 1, or more axes or values than an array can have.
    """
    try:
        sizes = tuple(-1 if isinstance(size, bool) else operator.index(size) for size in shape)
    except TypeError:
        raise InvalidArgumentError(f"shape must be a tuple of integers, got {shown(shape)}") from None
    if len(sizes) > MOST_AXES:
        raise InvalidArgumentError(f"shape must have {MOST_AXES} axes at most, got {len(sizes)}")
    if any(size < 0 for size in sizes):
        raise InvalidArgumentError(f"shape must be a tuple of integers from 1 on, got {shown(shape)}")
    if 0 in sizes:
        raise InvalidArgumentError(f"shape {sizes} has no values, and a tensor has one at least")
    if math.prod(sizes) >= 1 << 64:
        raise InvalidArgumentError(f"shape {sizes} has more values than there are keys")
    return sizes


def sizes_of(shape: tuple[int, ...], layout: str, num_rows: int | None, row_width: int | None) -> tuple[int, int]:
    """Returns num_rows and row_width of a tensor of that shape.

    Args:
        shape: a checked shape.
        layout: of the tensor. It decides where both sizes are None: keys are along the first axis of a sparse tensor,
            and at each value of a dense one.
        num_rows: None for what the shape and ``row_width`` leave.
        row_width: None for what the shape and ``num_rows`` leave.

    Raises:
        InvalidArgumentError: no two such sizes multiply to the number of values.
    """
    size = math.prod(shape)
    sizes = {"num_rows": num_rows, "row_width": row_width}
    given = " × ".join(f"{what} {n}" for what, n in sizes.items() if n is not None)
    if not given:
        num_rows = size if layout == "dense" else shape[0] if shape else 1
    if num_rows is None and row_width:
        num_rows = size // row_width
    elif row_width is None and num_rows:
        row_width = size // num_rows
    if num_rows and row_width and num_rows * row_width == size:
        return num_rows, row_width
    raise InvalidArgumentError(f"shape {shape} has {size} values, which {given} does not make")


def key_axes(shape: Sequence[int], num_rows: int) -> int | None:
    """Returns how many first axes make the keys, one if there is a choice; None if no number of axes does."""
    counts = (*range(1, len(shape) + 1), 0)
    return next((num_axes for num_axes in counts if math.prod(shape[:num_axes]) == num_rows), None)


def shape_of_rows(num_rows: int, row_width: int) -> tuple[int, ...] | None:
    """Returns the shape of all rows as an array; None if num_rows is 0, which sets no limit."""
    if num_rows == 0:
        return None
    return (num_rows,) if row_width == 1 else (num_rows, row_width)


def is_like(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Returns whether two shapes differ in axes of length 1 alone, which libraries add and drop, as of a scalar."""
    return [size for size in shape if size != 1] == [size for size in other if size != 1]
