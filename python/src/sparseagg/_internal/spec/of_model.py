"""The tensors of a round, from a model: a torch module, a state dict, or a list of arrays."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Union

from sparseagg._internal.base.arguments import checked_text, shown
from sparseagg._internal.foreign.numpy_arrays import to_numpy
from sparseagg._internal.spec.options import dtype_name
from sparseagg._internal.spec.shapes import checked_shape
from sparseagg._internal.spec.tied import every_name, tied_arrays
from sparseagg.errors import InvalidArgumentError

__all__ = ["Names", "model_arrays", "tensor_fields"]

# Which tensors: a name or a pattern such as "layers.*.weight", several of them, or a function of name and array.
Names = Union[str, Iterable[str], Callable[[str, Any], bool], None]


def model_arrays(model: Any, *, frozen: bool, buffers: bool, tied: bool = False) -> dict[str, Any]:
    """Returns the arrays of a model by name.

    Args:
        model: a torch module, a mapping from names to arrays, or a list of arrays, whose names are "0", "1", ….
        frozen: take the parameters of a module that are not trained, too.
        buffers: take the buffers of a module, too.
        tied: take a parameter or buffer of a module by every name that it has, not by the first one only.

    Raises:
        InvalidArgumentError: ``model`` is none of these.
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
    if dtype.startswith("uint"):
        raise InvalidArgumentError(
            f"tensor {name!r} is {dtype}, whose sums wrap: name it in a TensorSpec with modular=True; {way_out}"
        )
    return shape, dtype
