"""Copies of models on a client's machine, from one message to the next.

A SuperNode starts a process for each message, and a simulation runs many nodes in few processes. So copies are files,
which the nodes of a machine share. A copy is a cache: where there is none, the whole model is sent.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["Copies"]

_KEPT_VERSIONS = 2  # of a model; a slow client's message may be one version behind the newest
_KEPT_S = 7 * 24 * 3600  # models without a new version for so long are removed
_ATTEMPTS = 5


class Copies:
    """A folder of models: FOLDER/MODEL/VERSION/TENSOR.npy. Safe for several processes.

    Args:
        folder: None: a folder of this user among the temporary files.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        # Not made by mkdtemp: the next process has to find it.
        own = pathlib.Path(tempfile.gettempdir(), f"sparseagg-flower-{os.getuid()}")
        self._folder = own if folder is None else pathlib.Path(folder)

    def load(self, model: str, since: int, version: int) -> tuple[int, list[Any]] | None:
        """Returns the newest copy from ``since`` to ``version``: its version, and its arrays; None if there is none."""
        for _ in range(_ATTEMPTS):  # a copy may go while it is read, for a newer one has come
            versions = [found for found in self._versions(model) if since <= found <= version]
            if not versions:
                return None
            newest = max(versions)
            with contextlib.suppress(OSError, ValueError):
                folder = self._folder / model / str(newest)
                return newest, [np.load(folder / f"{i}.npy") for i in range(len(list(folder.iterdir())))]
        return None

    def save(self, model: str, version: int, arrays: Mapping[int, bytes], *, replace: bool) -> bool:
        """Keeps a copy, given as npy files by position, in the place of another one of this version if ``replace``.

        Returns whether it is there. Then nodes do not share copies, or all copies of a version are equal.
        """
        try:
            self._make_folder(model)
            target = self._folder / model / str(version)
            if replace or not target.is_dir():
                written = pathlib.Path(tempfile.mkdtemp(prefix="new-", dir=self._folder / model))
                try:
                    for position, data in arrays.items():
                        (written / f"{position}.npy").write_bytes(data)
                    if replace:
                        shutil.rmtree(target, ignore_errors=True)
                    with contextlib.suppress(OSError):  # another node of this machine was faster
                        written.rename(target)
                finally:
                    shutil.rmtree(written, ignore_errors=True)
            for old in sorted(self._versions(model))[:-_KEPT_VERSIONS]:
                shutil.rmtree(self._folder / model / str(old), ignore_errors=True)
            return target.is_dir()
        except OSError:  # such as a full disk
            return False

    def _versions(self, model: str) -> list[int]:
        with contextlib.suppress(OSError):
            return [int(path.name) for path in (self._folder / model).iterdir() if path.name.isdigit()]
        return []

    def _make_folder(self, model: str) -> None:
        if (self._folder / model).is_dir():
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self._folder} is another user's")
        for other in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if time.time() - other.stat().st_mtime > _KEPT_S:
                    shutil.rmtree(other, ignore_errors=True)
        (self._folder / model).mkdir(exist_ok=True)
