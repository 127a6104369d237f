"""The CUDA engine for this process: a library that the package sparseagg-cuda13 installs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import pathlib
import re

from sparseagg._internal.base import extension
from sparseagg.errors import EngineMissingError, InvalidArgumentError, SparseaggError, UnavailableError

_VARIABLE = "SPARSEAGG_CUDA_PLUGIN"
_MODULE = "sparseagg_cuda13"
_FILE = "libsparseagg_cuda.so"
_DRIVER_MODULE = pathlib.Path("/proc/driver/nvidia/version")
_DRIVER_LIBRARY = "libcuda.so.1"
CURE = (
    "the wheel that `make cuda-wheel` builds (`pip install build/cuda-wheels/sparseagg_cuda13-*.whl`), on Linux with "
    "an NVIDIA driver R580 or later"
)


def find() -> str | None:
    """Returns the path of the library: what the environment names, else that of the installed package, if there is one.

    Does not import the package, and does not look whether the file can be loaded.
    """
    return os.environ.get(_VARIABLE) or _installed()


@functools.cache  # every merge asks, and a search takes as long as a small merge
def _installed() -> str | None:
    spec = importlib.util.find_spec(_MODULE)
    folders = spec.submodule_search_locations if spec is not None else None
    return str(pathlib.Path(next(iter(folders)), _FILE)) if folders else None


def load() -> str:
    """Loads the engine, once per process, and returns its name and description; errors as of ``Aggregator``."""
    module = extension.load()
    path = find()
    if path is None:
        raise EngineMissingError(f"no CUDA engine is installed: {CURE}; or leave out device='cuda' to merge on the CPU")
    try:
        with extension.errors():
            return str(module.load_cuda(path))
    except UnavailableError as error:
        raise UnavailableError(f"{error} (device='cuda' needs {CURE})") from None


def works() -> bool:
    """Returns whether the engine is there and works. Loads it."""
    try:
        load()
    except SparseaggError:
        return False
    return True


def driver() -> str | None:
    """Returns the NVIDIA driver's version, such as "580.65.06", or its CUDA's, "for CUDA 13.0"; None: no driver."""
    with contextlib.suppress(OSError):
        match = re.search(r"\s(\d+\.[\d.]+)\s", _DRIVER_MODULE.read_text(encoding="utf-8", errors="replace"))
        if match is not None:
            return match.group(1)
    version = ctypes.c_int(0)
    try:
        status = ctypes.CDLL(_DRIVER_LIBRARY).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}" if status == 0 else None


def uses_gpu(device: str | None) -> bool:
    """Returns whether an argument ``device`` asks for the GPU, whose engine is loaded then. Raises as ``load`` does."""
    if device not in (None, "cpu", "cuda"):
        raise InvalidArgumentError(
            f"device must be 'cpu', 'cuda' or None, got {device!r}; 'cuda' is the first GPU that CUDA_VISIBLE_DEVICES "
            "leaves"
        )
    if device != "cuda":
        return False
    load()
    return True
