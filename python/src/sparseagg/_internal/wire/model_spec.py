"""The tensors of models on a server, as users write them, and the values that their rows begin with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, SupportsIndex

import numpy as np

from sparseagg._internal.base import extension
from sparseagg._internal.base.arguments import checked_integer, checked_text, shown
from sparseagg._internal.base.fields import write
from sparseagg._internal.base.foreign import Array, to_numpy
from sparseagg._internal.results.model_info import dtype_of
from sparseagg._internal.spec.options import checked_shape, dtype_name
from sparseagg.errors import InvalidArgumentError
from sparseagg.init import Init, zeros
from sparseagg.optimizers import RowOptimizer
from sparseagg.v1 import models_pb2 as pb

_MOST = (1 << 64) - 1
_MOST_UINT32 = (1 << 32) - 1
_EXPIRY = "expire_after must be a number of versions, 0 for never"
_ADDED = ("float32", "float64")  # dtypes whose optimizer adds, unless it is another one


@dataclasses.dataclass(frozen=True)
class Rows:
    """One tensor of a model whose rows begin with initial values, and take memory once a version has touched them.

    Args:
        width: values of a row.
        num_rows: keys are smaller; 0: any uint64, such as a hash, is a key.
        dtype: "float32" or "float64"; with ``optimizers.Assign`` also "float16", "bfloat16", "int32", "int64", "uint32"
            and "uint64".
        init: values of untouched rows.
        optimizer: of this tensor; None: the model's, and ``Assign()`` for dtypes other than float32 and float64.
        expire_after: a row that more than so many versions in turn have not touched becomes untouched again; None: the
            model's.
        max_rows: with more rows, those that were touched longest ago become untouched; 0: no limit.

    Raises:
        InvalidArgumentError: an argument has a wrong type or value; the message names it.
    """

    width: int
    num_rows: int = 0
    dtype: str = "float32"
    init: Init = dataclasses.field(default_factory=zeros)
    optimizer: RowOptimizer | None = None
    expire_after: int | None = None
    max_rows: int = 0

    def __post_init__(self) -> None:
        sizes = {
            "width": ("width must be a number of values from 1 on", 1, _MOST_UINT32),
            "num_rows": ("num_rows must be from 0 to 2^64 - 1, 0 for all of uint64", 0, _MOST),
            "max_rows": ("max_rows must be a number of rows, 0 for no limit", 0, _MOST),
        }
        checked: dict[str, Any] = {name: checked_integer(w, getattr(self, name), *b) for name, (w, *b) in sizes.items()}
        if self.expire_after is not None:
            checked["expire_after"] = checked_integer(_EXPIRY, self.expire_after, 0, _MOST_UINT32)
        checked["dtype"] = dtype_name(self.dtype)
        if not isinstance(self.init, Init):
            raise InvalidArgumentError(f"init must be one of sparseagg.init, such as zeros(), got {shown(self.init)}")
        checked_optimizer(self.optimizer)
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def checked_optimizer(optimizer: Any) -> RowOptimizer | None:
    """Returns an optimizer or None; ``InvalidArgumentError`` if this is neither."""
    if optimizer is not None and not isinstance(optimizer, RowOptimizer):
        raise InvalidArgumentError(f"optimizer must be one of sparseagg.optimizers, or None, got {shown(optimizer)}")
    return optimizer


def model_spec(
    tensors: Mapping[str, Any],
    optimizer: RowOptimizer | None,
    stream: str,
    keep_versions: SupportsIndex | None,
    expire_after: SupportsIndex,
    reads: str | None,
) -> tuple[pb.ModelSpec, dict[str, Any]]:
    """Returns the message, and the arrays among ``tensors`` by name, which are version 0.

    An array (NumPy, torch on the CPU) is a tensor with its dtype and shape, whose first axis counts the rows; one
    without axes has one row. ``expire_after`` is for ``Rows`` alone: an array's rows would become zeros.
    ``InvalidArgumentError``: no tensor, or one that is neither ``Rows`` nor an array of a dtype that models have.
    """
    if not isinstance(tensors, Mapping) or not tensors:
        raise InvalidArgumentError(f"tensors must be a mapping from names to Rows or arrays, got {shown(tensors)}")
    spec, expiry = pb.ModelSpec(stream=stream), checked_integer(_EXPIRY, expire_after, 0, _MOST_UINT32)
    if keep_versions is not None:
        spec.keep_versions = checked_integer("keep_versions must be from 1 to 65535", keep_versions, 1, 65535)
    write(spec, {"reads": reads})
    if (whole := checked_optimizer(optimizer)) is not None:
        spec.optimizer.CopyFrom(whole._to_proto())
    arrays = {}
    for name, given in tensors.items():
        checked_text("a tensor's name", name)
        try:
            if isinstance(given, Rows):
                message = _rows_message(given, expiry)
                own = given.optimizer
            else:
                message, own = _array_message(given), None
                arrays[name] = given
        except Exception as error:  # of any kind that the array's library raises
            raise InvalidArgumentError(f"tensor {shown(name)}: {error}") from error
        if own is not None:
            message.optimizer.CopyFrom(own._to_proto())
        elif spec.HasField("optimizer") and dtype_of(message) not in _ADDED:
            message.optimizer.kind = pb.OPTIMIZER_KIND_ASSIGN
        message.name = name
        spec.tensors.append(message)
    return spec, arrays


def _rows_message(rows: Rows, expire_after: int) -> pb.ModelTensor:
    message = pb.ModelTensor(
        num_rows=rows.num_rows,
        row_width=rows.width,
        expire_after=expire_after if rows.expire_after is None else rows.expire_after,
        max_rows=rows.max_rows,
    )
    write(message, {"dtype": rows.dtype})
    if rows.init != zeros():
        write(message.init, dataclasses.asdict(rows.init))
    return message


def _array_message(array: Any) -> pb.ModelTensor:
    known = array if hasattr(array, "shape") and hasattr(array, "dtype") else to_numpy(array)
    shape, dtype = checked_shape(known.shape), dtype_name(known.dtype)
    message = pb.ModelTensor(num_rows=shape[0] if shape else 1, row_width=math.prod(shape[1:]))
    write(message, {"dtype": dtype})
    message.shape.SetInParent()
    message.shape.sizes.extend(shape)
    return message


def assigns(spec: pb.ModelSpec, tensor: pb.ModelTensor) -> bool:
    """Returns whether the optimizer of a tensor assigns rows, and does not add to them."""
    given = tensor if tensor.HasField("optimizer") else spec
    if given.HasField("optimizer"):
        return bool(given.optimizer.kind == pb.OPTIMIZER_KIND_ASSIGN)
    return dtype_of(tensor) not in _ADDED


def initial_rows(spec: pb.ModelSpec, position: int, keys: Array) -> Array:
    """Returns the initial rows of uint64 keys, as the server would send them: shape (n, width), bfloat16 as its bits.

    Raises ``EngineMissingError`` for values other than zeros on an installation without the engine.
    """
    tensor = spec.tensors[position]
    dtype = wire_dtype(dtype_of(tensor))
    if has_zeros(tensor) or len(keys) == 0:
        return np.zeros((len(keys), tensor.row_width or 1), dtype)
    with extension.errors():
        octets: Array = extension.load().initial_rows(tensor.SerializeToString(), position, keys)
    return octets.view(dtype)


def has_zeros(tensor: pb.ModelTensor) -> bool:
    """Returns whether the rows of a tensor begin with zeros."""
    return tensor.init.kind in (pb.INIT_KIND_UNSPECIFIED, pb.INIT_KIND_ZEROS)


def wire_dtype(dtype: str) -> np.dtype[Any]:
    """Returns NumPy's type of the values of a tensor; uint16 for bfloat16."""
    return np.dtype("uint16" if dtype == "bfloat16" else dtype)
