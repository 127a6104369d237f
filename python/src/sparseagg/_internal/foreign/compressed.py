"""Sparse arrays whose rows or columns are compressed, as coordinates. Pointers are checked before they are followed.

The libraries' own conversions follow them unchecked: SciPy and torch read and write beyond their arrays, JAX drops
entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sparseagg._internal.foreign.parts import Array

__all__ = ["expand_blocks", "expand_pointers"]


def expand_pointers(
    pointers: Array, indices: Array, num_lines: int, line_length: int, what: str, *, padded: bool = False
) -> tuple[Array, Array, Array]:
    """Returns the batch, the line and the place in the line of each entry, int64, in the order of the entries.

    Args:
        pointers: where each line's entries begin, and where the last one's end; shape (batches, num_lines + 1).
        indices: places in the lines; shape (batches, n).
        num_lines: rows, if rows are compressed; else columns. Of blocks, if there are blocks.
        line_length: places are below it.
        what: the pointers' name in their library, for errors.
        padded: entries behind the last pointer are there; their line is ``num_lines``. Otherwise there must be none.

    Raises:
        ValueError: pointers do not begin at 0, descend, or do not end with the entries; or a place is outside.
    """
    if pointers.shape[-1] != num_lines + 1:
        raise ValueError(f"{what} has {pointers.shape[-1]} entries, but {num_lines} lines need {num_lines + 1}")
    if len(pointers) != len(indices):
        raise ValueError(f"{what} is of {len(pointers)} batches, and there are indices of {len(indices)}")
    for name, array in ((what, pointers), ("indices", indices)):
        if array.size and array.dtype.kind not in "iu":
            raise ValueError(f"{name} must be integers, got {array.dtype}")
    pointers, indices = pointers.astype(np.int64), indices.astype(np.int64)
    num_batches, num_entries = indices.shape
    lengths = np.diff(pointers, axis=1)
    _refuse(pointers[:, :1] != 0, pointers, f"{what} must begin with 0")
    _refuse(lengths < 0, lengths, f"{what} must not descend, but a line has a negative length")
    ends = pointers[:, -1:]
    _refuse(ends > num_entries if padded else ends != num_entries, ends, f"{what} must end at {num_entries} entries")
    if padded:
        lengths = np.concatenate([lengths, num_entries - ends], axis=1)
    else:
        _refuse((indices < 0) | (indices >= line_length), indices, f"indices must be in [0, {line_length})")
    lines = np.repeat(np.tile(np.arange(lengths.shape[1]), num_batches), lengths.reshape(-1))
    batches = np.repeat(np.arange(num_batches), num_entries)
    return batches, lines, indices.reshape(-1)


def expand_blocks(rows: Array, columns: Array, block: Sequence[int]) -> tuple[Array, Array]:
    """Returns the row and the column of each element of blocks, block after block, from the blocks' own."""
    in_row, in_column = np.indices(tuple(block)).reshape(2, math.prod(block))
    return (
        (rows[:, np.newaxis] * block[0] + in_row).reshape(-1),
        (columns[:, np.newaxis] * block[1] + in_column).reshape(-1),
    )


def _refuse(bad: Array, values: Array, rule: str) -> None:
    if bad.any():
        batch, at = (int(axis[0]) for axis in np.nonzero(bad))
        where = f" of batch {batch}" if len(values) > 1 else ""
        raise ValueError(f"{rule}; got {values[batch, at]} at position {at}{where}")
