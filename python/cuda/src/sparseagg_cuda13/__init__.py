"""The CUDA engine of sparseagg: a library that the package sparseagg and its server load at run time."""

import pathlib

__version__ = "0.1.0"
PATH = str(pathlib.Path(__file__).resolve().parent / "libsparseagg_cuda.so")
