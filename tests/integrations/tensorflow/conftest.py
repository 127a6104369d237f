"""TensorFlow, Keras and torch from PyPI, on the CPU."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(REPOSITORY / "examples"))

# Loads the stand-ins of bench/peers/torch_on_cpu.py, where torch was installed with them, before torch wants CUDA.
for library in pathlib.Path(sys.prefix, "torch-stand-ins").glob("*.so*"):
    ctypes.CDLL(str(library))
