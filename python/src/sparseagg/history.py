"""Which rows of a model have changed since a version: for coordinators that send clients only those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsIndex

import numpy as np

from sparseagg._internal.base.arguments import checked_integer, shown
from sparseagg._internal.base.foreign import Array, to_numpy
from sparseagg._internal.spec.options import outside_key_space
from sparseagg.errors import InvalidArgumentError

__all__ = ["RowHistory"]

_LARGEST = (1 << 63) - 1

_OBJECT_BYTES = 200  # of a version, and of each of its sets, besides the keys


class RowHistory:
    """The keys of the rows that changed with each version of a model, within a budget of bytes.

        history = RowHistory({"embedding": 50_000})
        history.record(1, {"embedding": merged.keys})
        keys = history.changed_since("embedding", client_version)
        rows = model if keys is None else model[keys]

    A version's keys are kept as a sorted array or as a bit set, whichever is smaller. Beyond the budget, the oldest
    versions are dropped: for clients that have not seen them, all rows have changed. Not thread-safe. Pickles.

    Args:
        rows: number of rows of each tensor; 0: all of uint64.
        since: version of the model before the first ``record``.
        budget_bytes: of all versions that are kept.

    Attributes:
        version: the newest version.
        oldest: the oldest version since which the changes are known.

    Raises:
        InvalidArgumentError: an argument has a wrong type or value.
    """

    def __init__(
        self, rows: Mapping[str, SupportsIndex], *, since: SupportsIndex = 0, budget_bytes: SupportsIndex = 64 << 20
    ) -> None:
        if not isinstance(rows, Mapping):
            raise InvalidArgumentError(
                f"rows must be a mapping from tensor names to numbers of rows, got {shown(rows)}"
            )
        what = "the number of rows of tensor {!r} must be from 0 to 2^64 - 1, 0 for all of uint64"
        self._rows = {name: checked_integer(what.format(name), n, 0, (1 << 64) - 1) for name, n in rows.items()}
        self._budget = checked_integer("budget_bytes must be a number from 0 on", budget_bytes, 0, _LARGEST)
        self.version = self.oldest = checked_integer("since must be a version", since, -_LARGEST, _LARGEST)
        # By version, oldest first. None: all rows of the tensor have changed.
        self._changes: dict[int, dict[str, _Keys | None]] = {}
        self._num_bytes = 0

    def record(self, version: SupportsIndex, changed: Mapping[str, Any]) -> None:
        """Adds a version.

        Args:
            version: greater than those before.
            changed: the keys of the rows that differ from the version before, in any order, by tensor. None: all rows.
                A tensor that is left out has not changed.

        Raises:
            InvalidArgumentError: an argument is wrong. Nothing is added.
        """
        version = checked_integer(
            f"a version must be an integer above {self.version}", version, self.version + 1, _LARGEST
        )
        if not isinstance(changed, Mapping):
            raise InvalidArgumentError(f"changed must be a mapping from tensor names to keys, got {shown(changed)}")
        kept = {name: None if keys is None else _Keys(self._checked(name, keys)) for name, keys in changed.items()}
        for name in kept:
            self._num_rows(name)
        self._changes[version] = kept
        self._num_bytes += _num_bytes(kept)
        self.version = version
        while self._num_bytes > self._budget:
            self.oldest = next(iter(self._changes))
            self._num_bytes -= _num_bytes(self._changes.pop(self.oldest))

    def changed_since(self, name: str, version: SupportsIndex) -> Array | None:
        """Returns the keys of the rows that changed after a version: int64, ascending; uint64 beyond its range.

        Returns:
            None if all rows have changed, or if ``version`` is older than ``oldest``.

        Raises:
            InvalidArgumentError: there is no such tensor, or ``version`` is no integer.
        """
        self._num_rows(name)
        version = checked_integer("a version must be an integer", version, -_LARGEST, _LARGEST)
        if version < self.oldest:
            return None
        sets = [kept[name] for at, kept in self._changes.items() if at > version and name in kept]
        if None in sets:
            return None
        return _union([each for each in sets if each is not None])

    @property
    def num_bytes(self) -> int:
        """Bytes of the versions that are kept."""
        return self._num_bytes

    def _num_rows(self, name: str) -> int:
        if name not in self._rows:
            known = ", ".join(map(repr, self._rows))
            raise InvalidArgumentError(f"unknown tensor {name!r}; this history has {known or 'none'}")
        return self._rows[name]

    def _checked(self, name: str, keys: Any) -> Array:
        """Returns distinct keys, ascending, as uint64."""
        num_rows = self._num_rows(name)
        array = to_numpy(keys)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise InvalidArgumentError(
                f"tensor {name!r}: keys are an array of integers with one axis, not of {array.dtype} and shape "
                f"{array.shape}"
            )
        if array.size == 0:
            return np.empty(0, np.uint64)
        if not (array[1:] > array[:-1]).all():  # keys of results are ascending
            array = np.unique(array)
        for key in (int(array[0]), int(array[-1])):
            if not 0 <= key < (num_rows or 1 << 64):
                raise InvalidArgumentError(f"tensor {name!r}: key {key} {outside_key_space(num_rows)}")
        return array.astype(np.uint64, copy=False)


class _Keys:
    """A set of keys: a sorted array, or bits from the least key on."""

    __slots__ = ("bits", "first", "keys", "num_keys")

    def __init__(self, keys: Array) -> None:
        self.first = int(keys[0]) if len(keys) else 0
        self.num_keys = len(keys)
        self.bits: Array | None = None
        self.keys: Array | None = None
        span = int(keys[-1]) - self.first + 1 if len(keys) else 0
        offsets = keys - np.uint64(self.first)
        dtype = np.dtype(np.uint32 if span <= 1 << 32 else np.uint64)
        if span / 8 < len(keys) * dtype.itemsize:
            mask = np.zeros(span, bool)
            mask[offsets] = True
            self.bits = np.packbits(mask)
        else:
            self.keys = offsets.astype(dtype)

    @property
    def num_bytes(self) -> int:
        kept = self.keys if self.bits is None else self.bits
        assert kept is not None
        return kept.nbytes

    def array(self) -> Array:
        """Returns the keys, ascending, as uint64."""
        if self.bits is None:
            assert self.keys is not None
            offsets = self.keys.astype(np.uint64)
        else:
            offsets = np.flatnonzero(np.unpackbits(self.bits)).astype(np.uint64)
        return offsets + np.uint64(self.first)


def _num_bytes(kept: Mapping[str, _Keys | None]) -> int:
    return _OBJECT_BYTES * (1 + len(kept)) + sum(keys.num_bytes for keys in kept.values() if keys is not None)


def _union(sets: list[_Keys]) -> Array:
    sets = [each for each in sets if each.num_keys]
    if not sets:
        return np.empty(0, np.int64)
    arrays = [each.array() for each in sets]
    begin = min(int(array[0]) for array in arrays)
    span = max(int(array[-1]) for array in arrays) - begin + 1
    if len(arrays) == 1:
        union = arrays[0]
    elif span <= 16 * sum(map(len, arrays)):  # a mask is faster than a sort, and not much larger than the keys
        mask = np.zeros(span, bool)
        for array in arrays:
            mask[array - np.uint64(begin)] = True
        union = np.flatnonzero(mask).astype(np.uint64) + np.uint64(begin)
    else:
        union = np.unique(np.concatenate(arrays))
    return union.view(np.int64) if int(union[-1]) <= _LARGEST else union
