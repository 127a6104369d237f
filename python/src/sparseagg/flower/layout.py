"""Which tensors of a model are sparse, and what clients need to know about them."""

from __future__ import annotations

from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.supercore import log

import sparseagg as sa
from sparseagg._internal.base.types import Op
from sparseagg._internal.spec.of_model import Names
from sparseagg.flower.records import is_constant, tied_names

__all__ = ["sparse_layout"]


def sparse_layout(
    arrays: ArrayRecord, sparse: Names, elements: Names, op: Op, arrays_key: str, weight_key: str
) -> tuple[dict[str, int], dict[str, Any]]:
    """Returns the sparse tensors with the widths of their rows, and what clients need to know.

    Args:
        arrays: the model.
        sparse, elements, op: as of ``SparseMixin``.
        arrays_key, weight_key: what the records of the model and of a client's weight are called.
    """
    shapes = {name: np.broadcast_to(np.float32(0), array.shape) for name, array in arrays.items()}
    shapes = {name: array for name, array in shapes.items() if array.size}
    spec = sa.RoundSpec.like(shapes, sparse, elements=elements)
    widths = {tensor.name: tensor.row_width for tensor in spec.tensors if tensor.layout == "sparse"}
    by_element = {tensor.name for tensor in sa.RoundSpec.like(shapes, sparse).tensors if tensor.layout == "dense"}
    for name, first in tied_names(arrays, widths).items():
        if is_constant(arrays[name]) and op != "mean":
            log(
                WARNING,
                "tensor %r has the one value of %r throughout, and is merged as a whole: if the two are tied weights, "
                "add it to sparse or elements",
                name,
                first,
            )
            continue
        widths[name] = widths[first]
        if first not in by_element:
            by_element.discard(name)
    lists = {
        "names": list(arrays),
        "rows": [name for name in widths if name not in by_element],
        "elements": [name for name in widths if name in by_element],
    }
    # Without empty lists, of which Flower's ConfigRecord cannot count the bytes (1.42).
    settings = {name: value for name, value in lists.items() if value}
    return widths, {**settings, "arrays": arrays_key, "weight": weight_key}
