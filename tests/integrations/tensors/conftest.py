"""Libraries of tensors from PyPI, on the CPU. Their tests are skipped where a library is missing."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

# Loads the stand-ins of bench/peers/install.py, where torch was installed with them, before torch wants CUDA.
for library in pathlib.Path(sys.prefix, "torch-stand-ins").glob("*.so*"):
    ctypes.CDLL(str(library))
