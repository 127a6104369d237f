"""Types of what callers give: updates, their tensors, and dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Optional, Protocol, SupportsFloat, Union

import numpy as np


class HasName(Protocol):
    """A dtype of TensorFlow."""

    @property
    def name(self) -> str:
        """Such as "float32"."""


class HasItemSize(Protocol):
    """A dtype of torch."""

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""


class HasShape(Protocol):
    """An array, sparse tensor or table of any library; also a ``TensorResult``."""

    @property
    def shape(self) -> Any:
        """The sizes of its axes."""


class HasParameters(Protocol):
    """A torch module."""

    def named_parameters(self) -> Any:
        """Yields names and parameters."""


# The dtype of a tensor: its name, or a dtype of NumPy, torch, TensorFlow or JAX of that name.
DTypeLike = Union[str, type[Any], "np.dtype[Any]", HasName, HasItemSize]

# An array or table of any library, a list of numbers or of lists, or a number.
ArrayLike = Union[HasShape, Sequence[Any], SupportsFloat]

# One tensor of an update: a pair (keys, rows), a sparse tensor, or a dense array. Rows of None: no values (union).
TensorLike = Union[ArrayLike, tuple[ArrayLike, Optional[ArrayLike]]]

# One client's update: its tensors by name, the tensor itself in a round of one, or a module for its gradients.
Update = Union[Mapping[str, TensorLike], TensorLike, HasParameters]

# An update and its weight.
Weighted = Union[Update, tuple[Update, SupportsFloat]]

# Many clients' updates: by client id, or without ids.
Updates = Union[Mapping[str, Weighted], Mapping[int, Weighted], Iterable[Weighted]]

# The options of a spec that are words; "aggregation.proto" says what each means.
Op = Literal["sum", "mean", "coordinate_mean", "union", "min", "max", "median", "trimmed_mean", "quantile"]
Weighting = Literal["uniform", "by_weight"]
Layout = Literal["sparse", "dense"]
ResultLayout = Literal["sparse", "dense", "auto"]
Numerics = Literal["canonical", "binned"]
OnNonfinite = Literal["reject", "propagate"]
OnClip = Literal["clip", "reject"]
OnEmpty = Literal["fail", "keep"]
MeanDivisor = Literal["weights", "submissions", "fixed"]
Absent = Literal["skip", "zero"]
KeySelection = Literal["public", "weighted_gaussian", "count_gaussian"]
KeyEncoding = Literal["auto", "plain"]
NarrowEncoding = Literal["float32", "float16", "bfloat16", "int8_scaled"]
