"""Updates and results as .npz files: arrays ``TENSOR.keys`` and ``TENSOR.values``, or ``TENSOR`` for a dense one."""

from __future__ import annotations

import os
from typing import Any, Union

import numpy as np

from sparseagg.errors import InvalidArgument
from sparseagg.result import Result
from sparseagg.spec import RoundSpec

__all__ = ["read_update", "write_result"]

Path = Union[str, "os.PathLike[str]"]


def read_update(path: Path, spec: RoundSpec) -> dict[str, Any]:
    """Returns the update in a file, as ``Round.submit`` takes it. Keys without values are those of a union.

    Raises:
        InvalidArgument: an array that belongs to no tensor of the round, or values without keys.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    update: dict[str, Any] = {}
    for tensor in spec.tensors:
        dense = arrays.pop(tensor.name, None)
        keys, values = arrays.pop(f"{tensor.name}.keys", None), arrays.pop(f"{tensor.name}.values", None)
        if dense is not None:
            update[tensor.name] = dense
        elif keys is not None:
            update[tensor.name] = (keys, values)
        elif values is not None:
            raise InvalidArgument(f"{os.fspath(path)} has {tensor.name}.values, but no {tensor.name}.keys")
    if arrays:
        known = ", ".join(tensor.name for tensor in spec.tensors)
        raise InvalidArgument(f"{os.fspath(path)} has arrays of no tensor: {', '.join(arrays)}; the round has {known}")
    return update


def write_result(path: Path, result: Result) -> None:
    """Writes ``TENSOR.keys``, ``.values``, ``.counts`` and ``.weights``, those that there are."""
    arrays = {}
    for name, tensor in result.items():
        columns = {
            "keys": tensor.keys,
            "values": tensor.values,
            "counts": tensor.counts,
            "weights": tensor.weights,
        }
        arrays.update({f"{name}.{column}": array for column, array in columns.items() if array is not None})
    with open(path, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
