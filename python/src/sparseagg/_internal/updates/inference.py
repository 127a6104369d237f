"""The spec of updates that come without one: names, dtypes, widths and shapes are those of the first update.

The others must have the same. Nothing here reads keys or values, but those of tables and lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sparseagg._internal.base.arguments import shown
from sparseagg._internal.base.foreign import is_table, to_numpy
from sparseagg._internal.base.tables import read_columns, read_table
from sparseagg._internal.spec.of_model import summed_dtype
from sparseagg._internal.spec.round_spec import RoundSpec, TensorSpec, checked_spec
from sparseagg._internal.updates.arrays import is_module, readable
from sparseagg._internal.updates.contributors import (
    checked_client_id,
    checked_updates,
    naming_client,
    split_weight,
)
from sparseagg._internal.updates.sparse import is_sparse
from sparseagg.errors import InvalidArgumentError

_WEIGHTED = ("sum", "mean", "coordinate_mean")
_SAY_SO = "a spec says what is meant"

# Arguments of a TensorSpec.
_Fields = dict[str, Any]


def with_spec(updates: Any, spec: Any, options: Mapping[str, Any]) -> tuple[Any, RoundSpec]:
    """Returns the updates and their spec: the given one, or that of the first update with the options of a round.

    Updates of a list or mapping are checked at once. Those of an iterator are checked when they are asked for. Raises
    ``InvalidArgumentError`` for options beside a spec, no update, one of another form than the first, or a client's id
    that comes twice.
    """
    if spec is not None:
        if options:
            raise InvalidArgumentError(f"{', '.join(options)}: the spec has such options; give either it or these")
        return updates, checked_spec(spec)
    updates = checked_updates(updates)
    named = _named(updates)
    first = next(named, None)
    if first is None:
        raise InvalidArgumentError(f"there are no updates, whose tensors would make a spec: {_SAY_SO}")
    client_id, update = first
    spec = spec_like(update, options, client_id)
    others = _checked(first, named)
    if isinstance(updates, (list, Mapping)):
        for _ in others:
            pass
        return updates, spec
    return others, spec


def spec_of(spec: RoundSpec | None, like: Any, options: Mapping[str, Any]) -> RoundSpec:
    """Returns the given spec, or that of rounds of updates such as ``like``; exactly one of the two is given."""
    if (spec is None) == (like is None) or (options and like is None):
        raise InvalidArgumentError("create_round takes either a spec, or like=update and options such as op")
    return spec_like(like, options) if spec is None else checked_spec(spec)


def spec_like(update: Any, options: Mapping[str, Any], client_id: str | None = None) -> RoundSpec:
    """Returns the spec of rounds of such updates. An update with a weight makes a sum or mean "by_weight"."""
    tensor_fields = _form(client_id, update)
    if split_weight(update)[1] is not None and options.get("op", "sum") in _WEIGHTED:
        options = {"weighting": "by_weight", **options}
    return RoundSpec([TensorSpec(name, **fields) for name, fields in tensor_fields.items()], **options)


def _named(updates: Any) -> Iterator[tuple[str, Any]]:
    """Yields the updates with their clients' ids; of updates without ids, with the ids of their positions."""
    if not isinstance(updates, Mapping):
        for position, update in enumerate(updates):
            yield f"{position:020}", update
        return
    seen: set[str] = set()
    for given, update in updates.items():
        client_id = checked_client_id(given)
        if client_id in seen:
            raise InvalidArgumentError(f"client {client_id!r} comes twice, once as {shown(given)}")
        seen.add(client_id)
        yield client_id, update


def _checked(first: tuple[str, Any], others: Iterator[tuple[str, Any]]) -> Iterator[Any]:
    """Yields all updates, the first one among them, and refuses those that have not its form."""
    known, expected = first[0], _form(*first)
    yield first[1]
    for client_id, update in others:
        found = _form(client_id, update)
        for name in expected.keys() - found.keys():
            raise InvalidArgumentError(
                f"client {client_id!r} has no tensor {name!r}, as client {known!r} has; {_SAY_SO}"
            )
        for name, fields in found.items():
            if name not in expected:
                raise InvalidArgumentError(
                    f"client {client_id!r}: tensor {name!r} is not among those of client {known!r}; {_SAY_SO}"
                )
            if fields != expected[name]:
                raise InvalidArgumentError(
                    f"client {client_id!r}: tensor {name!r} is {_said(fields)}, but that of client {known!r} is "
                    f"{_said(expected[name])}; {_SAY_SO}"
                )
        yield update


def _said(fields: _Fields) -> str:
    """Returns what a tensor is, for people."""
    if fields.get("shape") is not None:
        return f"a {fields['layout']} array of {fields['dtype']} and shape {fields['shape']}"
    return f"keys with rows of {fields['row_width']} {fields['dtype']}"


def _form(client_id: str | None, update: Any) -> dict[str, _Fields]:
    """Returns the arguments of a ``TensorSpec`` for each tensor of an update, which may have a weight."""
    update = split_weight(update)[0]
    if is_module(update):
        update = {name: each.grad for name, each in update.named_parameters() if each.grad is not None}
    elif (
        isinstance(update, list)
        and update
        and all(hasattr(each, "shape") or isinstance(each, tuple) for each in update)
    ):
        update = {str(position): each for position, each in enumerate(update)}  # as RoundSpec.like names them
    elif not isinstance(update, Mapping) or hasattr(update, "tocoo"):  # SciPy's dok_matrix is a mapping
        update = {"0": update}
    if client_id is None:
        return _fields_of(update)
    with naming_client(client_id):
        return _fields_of(update)


def _fields_of(update: Mapping[str, Any]) -> dict[str, _Fields]:
    if not update:
        raise InvalidArgumentError(f"the update has no tensors; {_SAY_SO}")
    fields = {}
    for name, tensor in update.items():
        with readable(name, tensor):
            fields[name] = _tensor_fields(name, tensor)
    return fields


def _tensor_fields(name: str, tensor: Any) -> _Fields:
    if callable(getattr(tensor, "as_update", None)):  # a TensorResult
        layout = "sparse" if isinstance(tensor.as_update(), tuple) else "dense"
        sizes = {"shape": tensor.shape, "num_rows": tensor.num_rows, "row_width": tensor.row_width}
        return {"dtype": summed_dtype(name, tensor.dtype), "layout": layout, **sizes}
    if isinstance(tensor, tuple):
        if len(tensor) != 2:
            raise InvalidArgumentError(f"tensor {name!r}: a tuple is (keys, rows), not one of {len(tensor)}")
        rows = tensor[1]
        return _keyed(name, read_columns(rows, _in_order) if is_table(rows) else rows)
    if is_table(tensor):
        return _keyed(name, read_table(tensor, _in_order).rows)
    if is_sparse(tensor):
        if hasattr(tensor, "dense_shape") and tensor.dense_shape is None:  # tf.IndexedSlices
            return _keyed(name, tensor.values)
        shape = tuple(int(size) for size in (tensor.dense_shape if hasattr(tensor, "dense_shape") else tensor.shape))
        # A sparse row is a vector: its keys are the columns.
        width = {"row_width": 1} if len(shape) == 2 and shape[0] == 1 else {}
        return {"dtype": summed_dtype(name, tensor.dtype), "shape": shape, "layout": "sparse", **width}
    shape, dtype = _shape_and_dtype(name, tensor)
    return {"dtype": dtype, "shape": shape, "layout": "dense"}


def _keyed(name: str, rows: Any) -> _Fields:
    """Returns the fields of a tensor of keys without a bound, and these rows; columns are a list of arrays."""
    if rows is None:  # of a union, which has no values of any type
        return {"dtype": "float32", "num_rows": 0, "row_width": 1}
    if isinstance(rows, list) and rows and all(isinstance(each, np.ndarray) for each in rows):
        return {"dtype": summed_dtype(name, np.result_type(*rows)), "num_rows": 0, "row_width": len(rows)}
    shape, dtype = _shape_and_dtype(name, rows)
    return {"dtype": dtype, "num_rows": 0, "row_width": math.prod(shape[1:])}


def _shape_and_dtype(name: str, array: Any) -> tuple[tuple[int, ...], str]:
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        array = to_numpy(array)
        if not array.size:
            raise InvalidArgumentError(
                f"tensor {name!r}: an empty list has no dtype and no width; give an array, as np.empty((0, 16), "
                f'"float32"), or {_SAY_SO.replace("a spec says", "a spec that says")}'
            )
    return tuple(int(size) for size in array.shape), summed_dtype(name, array.dtype)


def _in_order(names: list[Any]) -> list[int]:
    return list(range(len(names)))
