"""The device to merge updates on, if the caller leaves it open."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from sparseagg._internal.foreign.device_arrays import has_device_arrays
from sparseagg._internal.local import cuda_plugin

__all__ = ["placed"]


def placed(updates: Any) -> tuple[Any, str]:
    """Returns the updates, and the device to merge on: the GPU, if its engine works here and updates have arrays there.

    Looks at all updates in a list or dictionary, and at the first one otherwise.
    """
    seen = updates
    if isinstance(updates, Mapping):
        seen = updates.values() if isinstance(updates, dict) else itertools.islice(updates.values(), 1)
    elif not isinstance(updates, list):
        updates = iter(updates)
        seen = list(itertools.islice(updates, 1))
        updates = itertools.chain(seen, updates)
    on_gpu = any(map(has_device_arrays, seen)) and cuda_plugin.works()
    return updates, "cuda" if on_gpu else "cpu"
