"""The CUDA engine of sparseagg: a library that the package sparseagg and its server load at run time."""

__version__ = "0.1.0"
