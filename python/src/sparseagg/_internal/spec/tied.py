"""Arrays of a model that are the same memory, such as tied weights: an embedding that is the output layer, too."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["every_name", "overlapping_arrays", "tied_arrays"]

# Steps of the search for a common element of two arrays whose ranges overlap.
_MOST_WORK: Any = 10_000  # NumPy's stubs know 0 and −1 alone


@dataclasses.dataclass(frozen=True)
class _Memory:
    """Where the elements of an array lie. Nothing reads them."""

    device: str
    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    item_bytes: int

    @property
    def bounds(self) -> tuple[str, int, int]:
        """The device, the first byte, and the byte behind the last one."""
        reach = [(size - 1) * stride for size, stride in zip(self.shape, self.strides)]
        below, above = (sum(step for step in reach if (step > 0) == is_up) for is_up in (False, True))
        return self.device, self.pointer + below, self.pointer + above + self.item_bytes

    @property
    def __array_interface__(self) -> dict[str, Any]:
        typestr = f"|V{self.item_bytes}"
        data = {"data": (self.pointer, True), "shape": self.shape, "strides": self.strides, "typestr": typestr}
        return {**data, "version": 3}


def every_name(named: Callable[..., Iterable[tuple[str, Any]]]) -> Iterable[tuple[str, Any]]:
    """Returns the names and arrays of a module's ``named_parameters`` or ``named_buffers``, with every name of each."""
    try:
        return named(remove_duplicate=False)
    except TypeError:  # torch before 2.0
        return named()


def tied_arrays(arrays: Mapping[str, Any]) -> list[list[str]]:
    """Returns the names of arrays that are one and the same, in groups of two and more, in the order of ``arrays``.

    NumPy arrays and torch tensors are the same if shape and memory are; other arrays if they are one object.
    """
    groups: dict[Hashable, list[str]] = {}
    for name, array in arrays.items():
        groups.setdefault(_memory_of(array) or id(array), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def overlapping_arrays(arrays: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the names of two arrays with elements in common, such as a matrix and its transpose; None if none have.

    Cost: O(n log n) for n arrays whose ranges of addresses do not overlap.
    """
    known = {name: memory for name, array in arrays.items() if (memory := _memory_of(array)) is not None}
    ordered = sorted(known, key=lambda name: known[name].bounds)
    for at, name in enumerate(ordered):
        device, _, end = known[name].bounds
        for other in ordered[at + 1 :]:
            other_device, begin, _ = known[other].bounds
            if other_device != device or begin >= end:
                break
            if _have_common_elements(known[name], known[other]):
                return name, other
    return None


def _have_common_elements(one: _Memory, other: _Memory) -> bool:
    try:
        return bool(np.shares_memory(np.asarray(one), np.asarray(other), max_work=_MOST_WORK))
    except RuntimeError:  # numpy.TooHardError, whose module depends on the version: not known
        return False


def _memory_of(array: Any) -> _Memory | None:
    """Returns the memory of a NumPy array or torch tensor; None if it has none, or its elements coincide."""
    try:
        found = _find_memory(array)
    except Exception:  # any kind of error that the array's library raises
        return None
    if found is None or not math.prod(found.shape):
        return None
    if any(size > 1 and stride == 0 for size, stride in zip(found.shape, found.strides)):
        return None  # a form without content, as of np.broadcast_to
    return found


def _find_memory(array: Any) -> _Memory | None:
    if isinstance(array, np.ndarray):
        pointer, shape, strides = array.__array_interface__["data"][0], array.shape, array.strides
        return _Memory("cpu", pointer, tuple(shape), tuple(strides), array.itemsize)
    if str(getattr(array, "layout", "")) != "torch.strided" or not array.data_ptr():
        return None
    item_bytes = array.element_size()
    strides = tuple(stride * item_bytes for stride in array.stride())
    return _Memory(str(array.device), array.data_ptr(), tuple(array.shape), strides, item_bytes)
