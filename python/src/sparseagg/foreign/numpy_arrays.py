"""Dense arrays of other libraries as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparseagg.foreign.parts import Array

__all__ = ["to_numpy"]


def to_numpy(array: Any) -> Array:
    """Returns a NumPy array, which shares memory with ``array`` where its library can."""
    if isinstance(array, np.ndarray):
        if np.ma.is_masked(array):
            raise ValueError("some of its entries are masked")
        return array
    if hasattr(array, "detach") and hasattr(array, "cpu"):  # torch
        array = array.detach().cpu()
        if hasattr(array, "resolve_neg"):
            array = array.resolve_neg()  # NumPy has no negated views
        if str(array.dtype) == "torch.bfloat16":
            array = array.float()  # exact; NumPy has no bfloat16
        return np.asarray(array.numpy())
    if callable(getattr(array, "numpy", None)):  # TensorFlow
        return np.asarray(array.numpy())
    if not hasattr(array, "__array__") and hasattr(array, "__dlpack__"):
        return np.asarray(np.from_dlpack(array))
    return np.asarray(array)
