"""The programs sparseagg-server and sparseagg-loadgen: where they are, and the commands that run them."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from sparseagg._internal.base.extension import missing
from sparseagg.errors import ProgramMissingError

SERVER = "sparseagg-server"
_LOADGEN = "sparseagg-loadgen"
# Variables of the environment that name a program in place of the bundled one.
_VARIABLES = {SERVER: "SPARSEAGG_SERVER", _LOADGEN: "SPARSEAGG_LOADGEN"}
_PACKAGE = pathlib.Path(__file__).resolve().parents[2]
# Wheels with the programs have them here.
_BUNDLED = _PACKAGE / "bin"
# Where `make` builds the programs, below the repository of a package that is installed in place (pip install -e).
_BUILT = {SERVER: "build/dev/service/sparseagg-server", _LOADGEN: "build/dev/tools/loadgen/sparseagg-loadgen"}


def find(name: str, *, on_path: bool = True) -> str:
    """Returns the path of a program: of the environment's variable, else the bundled one, else the one on the PATH.

    Where the package is installed in place, the bundled one is the one in the repository's ``build/dev``. Raises
    ``ProgramMissingError``, which says what to install or to set.
    """
    variable = _VARIABLES[name]
    named = os.environ.get(variable)
    if named:
        return checked_program(named, f"the environment's {variable}")
    repository = _repository()
    candidates = [str(_BUNDLED / name if repository is None else repository / _BUILT[name])]
    if on_path:
        candidates += [os.path.join(folder, name) for folder in os.get_exec_path()]
    for path in candidates:
        if _is_program(path) and not _is_our_command(path):
            return path
    here = "install a wheel of sparseagg for this platform, which brings the program"
    if repository is not None:
        here = f"`make build` in {repository} builds it"
    raise ProgramMissingError(missing(name, f"{here}, or set the environment's {variable} to the path of one"))


def _repository() -> pathlib.Path | None:
    """Returns the repository in which the package is installed in place; None for any other installation."""
    if _PACKAGE.parts[-3:] != ("python", "src", "sparseagg"):
        return None
    root = _PACKAGE.parents[2]
    return root if (root / "CMakeLists.txt").is_file() else None


def checked_program(path: str, what: str) -> str:
    """Returns ``path``; ``ProgramMissingError``, which names ``what``, if there is no executable file."""
    if not _is_program(path):
        raise ProgramMissingError(f"{what} names {path!r}, which is no executable file")
    return path


def run(path: str, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process by a program with these flags; ``OSError`` if the system cannot run it."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two signals, and a program inherits that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execv(path, [path, *arguments])


def server_main() -> None:
    """Runs the command sparseagg-server."""
    _main(SERVER)


def loadgen_main() -> None:
    """Runs the command sparseagg-loadgen."""
    _main(_LOADGEN)


def _main(name: str) -> None:
    try:
        run(find(name, on_path=False), sys.argv[1:])  # the PATH has this command itself
    except OSError as error:
        sys.exit(f"{name}: {error}")


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_our_command(path: str) -> bool:
    """Returns whether the file is a script that pip has made for ``server_main`` or ``loadgen_main``."""
    try:
        with open(path, "rb") as file:
            return __name__.encode() in file.read(4096)
    except OSError:  # executable but not readable
        return False
