"""Servers that others start, and that die at a fail point (service/base/fail_point.h)."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import shlex

__all__ = ["ArmedStarts"]

# In place of the server's program: the first start after `arm` takes the fail point.
_PROGRAM = """#!/bin/sh
if mv {folder}/next {folder}/armed.$$ 2>/dev/null; then
  export SPARSEAGG_FAIL_POINT="$(cat {folder}/armed.$$)"
fi
exec {server} "$@"
"""


class ArmedStarts:
    """Gives a fail point to one of the servers that are started as SPARSEAGG_SERVER.

    Args:
        folder: for files of this object.
        server: the program.

    Attributes:
        hits: how many servers have died at each fail point, as far as ``count`` has seen.
    """

    def __init__(self, folder: pathlib.Path, server: pathlib.Path) -> None:
        self._folder = folder
        self.hits: collections.Counter[str] = collections.Counter()
        program = folder / "server"
        text = _PROGRAM.format(folder=shlex.quote(str(folder)), server=shlex.quote(str(server)))
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
        os.environ["SPARSEAGG_SERVER"] = str(program)

    def arm(self, point: str, hit: int) -> None:
        """The server that starts next dies when it passes the point that often."""
        written = self._folder / "new"
        written.write_text(f"{point}:{hit}", encoding="utf-8")
        written.replace(self._folder / "next")

    def give_back(self, pid: int | None = None) -> None:
        """A server is about to be killed, with this process id or any: another one shall die at its fail point."""
        self.count()
        for armed in self._folder.glob("armed.*" if pid is None else f"armed.{pid}"):
            with contextlib.suppress(FileNotFoundError):
                armed.replace(self._folder / "next")

    def count(self) -> None:
        """Counts the servers that have died at their fail points."""
        for armed in self._folder.glob("armed.*"):
            if not pathlib.Path(f"/proc/{armed.suffix[1:]}").exists():
                self.hits[armed.read_text(encoding="utf-8").split(":")[0]] += 1
                armed.unlink()
