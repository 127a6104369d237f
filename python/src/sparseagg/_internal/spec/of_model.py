"""The tensors of a round, from a model, and arrays of a model that are the same memory: tied weights."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Union

import numpy as np

from sparseagg._internal.base.arguments import checked_text, shown
from sparseagg._internal.base.foreign import to_numpy
from sparseagg._internal.base.types import DTypeLike
from sparseagg._internal.spec.options import checked_shape, dtype_name
from sparseagg.errors import InvalidArgumentError


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


def _memory_of(array: Any) -> Hashable:
    """Returns what arrays of one memory have in common; None for no NumPy array or torch tensor, or no elements."""
    try:
        if isinstance(array, np.ndarray):
            pointer, strides, device = array.__array_interface__["data"][0], tuple(array.strides), "cpu"
            item_bytes = array.itemsize
        elif str(getattr(array, "layout", "")) == "torch.strided" and array.data_ptr():
            item_bytes, pointer, device = array.element_size(), array.data_ptr(), str(array.device)
            strides = tuple(stride * item_bytes for stride in array.stride())
        else:
            return None
        shape = tuple(array.shape)
    except Exception:  # any kind of error that the array's library raises
        return None
    if not math.prod(shape) or any(size > 1 and stride == 0 for size, stride in zip(shape, strides)):
        return None  # the latter: a form without content, as of np.broadcast_to
    return device, pointer, shape, strides, item_bytes


# Which tensors: a name or a pattern such as "layers.*.weight", several of them, or a function of name and array.
Names = Union[str, Iterable[str], Callable[[str, Any], bool], None]


def model_arrays(model: Any, *, frozen: bool, buffers: bool, tied: bool = False) -> dict[str, Any]:
    """Returns the arrays of a model by name: of a torch module, of a mapping, or of a list, whose names are "0", "1",
    ….

    ``frozen``, ``buffers``: take a module's parameters that are not trained, and its buffers, too. ``tied``: take each
    by every name that it has, not by the first one only.
    """
    if callable(getattr(model, "named_parameters", None)):
        named = dict(every_name(model.named_parameters) if tied else model.named_parameters())
        arrays = {name: value for name, value in named.items() if frozen or value.requires_grad}
        return (
            {**arrays, **dict(every_name(model.named_buffers) if tied else model.named_buffers())}
            if buffers
            else arrays
        )
    if isinstance(model, Mapping) and not hasattr(model, "tocoo"):
        return {checked_text("a tensor's name", name): array for name, array in model.items()}
    if isinstance(model, (list, tuple)):
        return {str(position): array for position, array in enumerate(model)}
    raise InvalidArgumentError(
        f"a model must be a torch module, a mapping of arrays, or a list of arrays, got {shown(model)}"
    )


def tensor_fields(model: Any, sparse: Names, elements: Names, skip: Names, buffers: bool) -> Iterator[dict[str, Any]]:
    """Yields the arguments of a ``TensorSpec`` for each array of a model; see ``RoundSpec.like``."""
    arrays = model_arrays(model, frozen=False, buffers=buffers)
    if not arrays:
        raise InvalidArgumentError(f"the model has no arrays: {shown(model)}")
    if sparse is None:
        sparse = list(_sparse_weights(model) & set(arrays))
    given = {"sparse": sparse, "elements": elements, "skip": skip}
    aliases = _aliases(model, arrays, buffers)
    chosen = {what: _chosen(what, names, arrays, aliases) for what, names in given.items()}
    taken = set().union(*chosen.values())
    for names in tied_arrays(arrays):  # an array of several names is sparse by each of them
        for what in ("sparse", "elements"):
            if chosen[what].intersection(names):
                chosen[what].update(set(names) - taken)
                taken.update(names)
    for name in arrays:
        if name in chosen["skip"]:
            continue
        if name in chosen["sparse"] and name in chosen["elements"]:
            raise InvalidArgumentError(f"tensor {name!r} is among sparse, whose keys are rows, and among elements")
        layout = "sparse" if name in chosen["sparse"] or name in chosen["elements"] else "dense"
        row_width = 1 if name in chosen["elements"] else None
        shape, dtype = _shape_and_dtype(name, arrays[name])
        yield {"name": name, "dtype": dtype, "shape": shape, "layout": layout, "row_width": row_width}


def _sparse_weights(model: Any) -> set[str]:
    """Returns the names of weights whose gradients torch makes sparse: those of Embedding(sparse=True)."""
    if not callable(getattr(model, "named_modules", None)):
        return set()
    names = {name for name, module in model.named_modules() if getattr(module, "sparse", None) is True}
    return {f"{name}.weight" if name else "weight" for name in names}


def _aliases(model: Any, arrays: Mapping[str, Any], buffers: bool) -> dict[str, str]:
    """Returns the other names of a module's tied arrays, with the first name of each, which ``arrays`` has."""
    if not callable(getattr(model, "named_modules", None)):
        return {}
    first = {id(array): name for name, array in arrays.items()}
    named = model_arrays(model, frozen=False, buffers=buffers, tied=True)
    return {name: first[id(array)] for name, array in named.items() if name not in arrays and id(array) in first}


def _chosen(what: str, names: Names, arrays: Mapping[str, Any], aliases: Mapping[str, str]) -> set[str]:
    """Returns the names of arrays that an argument names; ``InvalidArgumentError`` if a name is no array's."""
    if names is None:
        return set()
    if callable(names):
        return {name for name, array in arrays.items() if names(name, array)}
    chosen: set[str] = set()
    known = dict.fromkeys([*arrays, *aliases])
    for pattern in [names] if isinstance(names, str) else names:
        found = [pattern] if pattern in known else fnmatch.filter(known, checked_text(f"a name in {what}", pattern))
        if not found:
            listed = ", ".join(map(repr, arrays))
            raise InvalidArgumentError(f"{what} has {pattern!r}, which is no tensor of the model; it has {listed}")
        chosen.update(aliases.get(name, name) for name in found)
    return chosen


def _shape_and_dtype(name: str, array: Any) -> tuple[tuple[int, ...], str]:
    way_out = f"skip=[{name!r}] leaves it out"
    try:
        if not hasattr(array, "dtype") or not hasattr(array, "shape"):
            array = to_numpy(array)  # numbers, and lists of numbers
        shape, dtype = checked_shape(array.shape), dtype_name(array.dtype)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"tensor {name!r}: {error}; {way_out}") from error
    except Exception as error:  # any kind of error that the array's library raises
        raise InvalidArgumentError(f"tensor {name!r} is no array but {shown(array)}: {error}; {way_out}") from error
    try:
        return shape, summed_dtype(name, dtype)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error}; {way_out}") from None


def summed_dtype(name: str, dtype: DTypeLike) -> str:
    """Returns the name of the dtype of a tensor of that name; ``InvalidArgumentError`` if its sums wrap."""
    try:
        found = dtype_name(dtype)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"tensor {name!r}: {error}") from error
    if found.startswith("uint"):
        raise InvalidArgumentError(
            f"tensor {name!r} is {found}, whose sums wrap: name it in a TensorSpec with modular=True"
        )
    return found
