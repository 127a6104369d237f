"""Arrays in the memory of a GPU, known by their attributes, so that no library is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sparseagg._internal.foreign.numpy_arrays import has_attribute

__all__ = ["ANY_DEVICE", "READ_ON_GPU", "cuda_device", "has_device_arrays", "is_torch_coo"]

# The device of an array that does not name its device: the CUDA Array Interface has no field for it.
ANY_DEVICE = -1

# Kinds of memory in DLPack that a CUDA device reads: its own, and managed memory.
_CUDA_KINDS = (2, 13)

# For errors of reading an array that is on a GPU.
READ_ON_GPU = (
    "; it is in the memory of a GPU: copy it to host memory, or merge it there with "
    "sparseagg.aggregate and the package sparseagg-cuda13, the wheel of `make cuda-wheel`"
)


def cuda_device(array: Any) -> int | None:
    """Returns the number of the CUDA device that an array is on, ``ANY_DEVICE`` if the array does not name it.

    None for arrays in host memory, and for things that are no arrays.
    """
    if isinstance(array, np.ndarray):
        return None
    try:
        if has_attribute(array, "__dlpack_device__"):
            kind, device = array.__dlpack_device__()
            return int(device) if int(kind) in _CUDA_KINDS else None
        # Libraries raise AttributeError where the array is in host memory.
        if has_attribute(array, "__cuda_array_interface__") and array.__cuda_array_interface__ is not None:
            return ANY_DEVICE
    except Exception:  # any kind of error that the array's library raises, such as of an array on several devices
        pass
    return None


def is_torch_coo(tensor: Any) -> bool:
    """Returns whether this is a sparse COO tensor of torch."""
    return str(getattr(tensor, "layout", "")) == "torch.sparse_coo"


def has_device_arrays(update: Any) -> bool:
    """Returns whether one of the arrays of an update is on a CUDA device.

    ``update``: as of ``Round.submit``, or with a weight. Numbers in lists are not looked at one by one.
    """
    if isinstance(update, np.ndarray):
        return False
    if isinstance(update, Mapping) and not hasattr(update, "tocoo"):  # SciPy's dok_matrix is a mapping
        return any(map(has_device_arrays, update.values()))
    if isinstance(update, tuple):
        return any(map(has_device_arrays, update))
    if isinstance(update, list):
        return bool(update) and hasattr(update[0], "shape") and any(map(has_device_arrays, update))
    if callable(getattr(update, "named_parameters", None)):
        return any(cuda_device(parameter.grad) is not None for _, parameter in update.named_parameters())
    return cuda_device(update) is not None
