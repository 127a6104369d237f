"""Puts a built library into the package; scripts/wheels.py names it in SPARSEAGG_CUDA_LIBRARY, and the platform."""

from __future__ import annotations

import os
import pathlib
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution


class BuildWithLibrary(build_py):
    """The package's files, and the library."""

    def run(self) -> None:
        """Copies them."""
        super().run()
        folder = pathlib.Path(self.build_lib, "sparseagg_cuda13")
        shutil.copy2(os.environ["SPARSEAGG_CUDA_LIBRARY"], folder / "libsparseagg_cuda.so")


class WheelOfAnyPython(bdist_wheel):
    """A wheel for every Python 3 of one platform: Python never imports the library."""

    def get_tag(self) -> tuple[str, str, str]:
        """Returns that tag."""
        return "py3", "none", os.environ["SPARSEAGG_CUDA_PLATFORM"]


class BinaryDistribution(Distribution):
    """A distribution with a library."""

    def has_ext_modules(self) -> bool:
        """Returns True, so that the package goes where libraries go."""
        return True


setup(distclass=BinaryDistribution, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfAnyPython})
