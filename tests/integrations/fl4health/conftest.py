"""FL4Health and torch from PyPI, on the CPU."""

from __future__ import annotations

import ctypes
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))

# Loads the stand-ins of bench/peers/torch_on_cpu.py, where torch was installed with them, before torch wants CUDA.
for library in pathlib.Path(sys.prefix, "torch-stand-ins").glob("*.so*"):
    ctypes.CDLL(str(library))
