"""Builds the engine (sparseagg._engine) with CMake where that can be done, and installs the client alone where not.

SPARSEAGG_EXTENSION: "auto" (the default) does what can be done and says which; "on" fails where the engine cannot be
built; "off" does not try. The engine's sources are those of the repository around this folder. A source distribution
has a copy of them, in the folder `repository`. This folder without either installs the client.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
# The engine's sources in a source distribution.
COPY = HERE / "repository"
REPOSITORY = COPY if COPY.is_dir() else HERE.parent
ENGINE_SOURCES = (
    "CMakeLists.txt",
    "LICENSE",
    "cmake",
    "host",
    "cuda",
    "js",
    "proto",
    "service",
    "python/engine",
    "scripts/static_libs.sh",
)
# What clients without this package need, and the package has, too: a file or a folder, and where it goes.
FOR_OTHER_LANGUAGES = (("proto/sparseagg/v1", "v1"), ("js/sparseagg.js", "js"), ("js/package.json", "js"))
# What the package reads to say why it has no engine.
REASON = pathlib.PurePath("sparseagg", "_no_engine.txt")
MODE = os.environ.get("SPARSEAGG_EXTENSION", "auto")


class CannotBuild(Exception):
    """Why the engine cannot be built here."""


def check_tools() -> None:
    """Raises CannotBuild for what is known to be missing without trying."""
    if MODE == "off":
        raise CannotBuild("it was installed with SPARSEAGG_EXTENSION=off")
    if not (REPOSITORY / "host" / "engine.h").is_file():
        raise CannotBuild(
            "it was installed from its folder alone, without the repository that has the engine's sources"
        )
    if shutil.which("cmake") is None:
        raise CannotBuild("CMake was not found when it was installed")
    compiler = os.environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler) is None:
        raise CannotBuild(f"no C++ compiler {compiler!r} was found when it was installed")


def say(text: str) -> None:
    """Prints what pip shows with -v, and on failure."""
    print(f"\nsparseagg: {text}\n", file=sys.stderr, flush=True)


def record(folder: pathlib.Path, reason: str | None) -> None:
    """Leaves the reason in a package folder, or removes an old one."""
    path = folder / REASON
    if reason is None:
        path.unlink(missing_ok=True)
    elif path.parent.is_dir():
        path.write_text(reason + "\n", encoding="utf-8")


def without_engine(reason: str, *folders: pathlib.Path) -> None:
    """Goes on with the client alone, or stops where the engine was asked for."""
    if MODE == "on":
        raise SystemExit(f"sparseagg: the engine cannot be built: {reason}")
    say(f"installing the client WITHOUT the engine: {reason}. sparseagg.aggregate and `sparseagg merge` need it.")
    for folder in folders:
        record(folder, reason)


class BuildModules(build_py):
    """Without modules that an earlier build left and that are gone since; with what other languages need."""

    def run(self) -> None:
        """Does it."""
        package = pathlib.Path(self.build_lib, "sparseagg")
        shutil.rmtree(package, ignore_errors=True)
        super().run()
        for name, folder in FOR_OTHER_LANGUAGES:
            source = REPOSITORY / name
            for file in [source] if source.is_file() else source.glob("*"):
                (package / folder).mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, package / folder)


class SourceDistribution(sdist):
    """With the engine's sources, which lie outside this folder."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copies them."""
        super().make_release_tree(base_dir, files)
        for name in ENGINE_SOURCES:
            source, target = REPOSITORY / name, pathlib.Path(base_dir, COPY.name, name)
            if source.is_dir():
                shutil.copytree(source, target)
            elif source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)


class BuildEngine(build_ext):
    """Lets CMake build the one extension."""

    def build_extension(self, ext: Extension) -> None:
        """Configures and builds; a failure is the end only with SPARSEAGG_EXTENSION=on."""
        output = pathlib.Path(self.get_ext_fullpath(ext.name)).resolve().parent
        output.mkdir(parents=True, exist_ok=True)
        build = pathlib.Path(self.build_temp).resolve()
        build.mkdir(parents=True, exist_ok=True)
        # What was found last time, with another Python's headers or another generator, may be gone.
        (build / "CMakeCache.txt").unlink(missing_ok=True)
        folders = [HERE / "src"] if self.inplace else [HERE / "src", pathlib.Path(self.build_lib)]
        # What an earlier build left would be installed.
        pathlib.Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        for folder in folders:
            record(folder, None)
        try:
            self._cmake(build, output)
        except (OSError, subprocess.CalledProcessError) as error:
            say(f"CMake's output above says what is missing ({error})")
            without_engine("CMake could not build it; `pip install -v ./python` shows why", *folders)
            self.extensions.remove(ext)
        else:
            say(f"built the engine into {output}")

    def _cmake(self, build: pathlib.Path, output: pathlib.Path) -> None:
        configure = [
            "cmake",
            *("-S", str(REPOSITORY), "-B", str(build)),
            *(["-G", "Ninja"] if shutil.which("ninja") else []),
            "-DCMAKE_BUILD_TYPE=Release",
            "-DSPARSEAGG_SERVICE=OFF",
            "-DSPARSEAGG_TESTS=OFF",
            "-DSPARSEAGG_BENCH=OFF",
            "-DSPARSEAGG_CUDA=OFF",
            "-DSPARSEAGG_PYTHON=ON",
            f"-DSPARSEAGG_PYTHON_OUTPUT={output}",
            f"-DPython_EXECUTABLE={sys.executable}",
        ]
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build), "--target", "sparseagg_python", "-j", jobs], check=True)


def extensions() -> list[Extension]:
    """The engine, or nothing."""
    record(HERE / "src", None)
    try:
        check_tools()
    except CannotBuild as reason:
        without_engine(str(reason), HERE / "src")
        return []
    return [Extension("sparseagg._engine", sources=[], optional=MODE != "on")]


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildEngine, "build_py": BuildModules, "sdist": SourceDistribution},
)
