"""A disk whose power can fail."""

from __future__ import annotations

import pathlib
import subprocess


class Volume:
    """A file system in a file, whose power can fail: what was not synced is lost, as on a disk. Needs root.

    The kernel keeps what the server has written until a sync, or for some seconds, in its cache of this file system. A
    copy of the file is what a disk would have.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._image = folder / "disk"
        self._copy = folder / "disk.copy"
        self.path = folder / "mounted"
        self.path.mkdir()
        self.environment: dict[str, str] = {}
        with self._image.open("wb") as file:
            file.truncate(256 << 20)
        self._run("mkfs.ext4", "-q", "-F", self._image)
        self._mount()

    def fail(self) -> None:
        """Takes the power away, and gives it back. Requires: no process uses the file system."""
        self._run("cp", "--sparse=always", self._image, self._copy)
        self.close()
        self._copy.replace(self._image)
        self._mount()

    def close(self) -> None:
        """Gives the disk back."""
        self._run("umount", self.path)

    def _mount(self) -> None:
        # Without its own syncs in between, which would save what the server has not synced.
        self._run("mount", "-o", "loop,commit=600", self._image, self.path)

    @staticmethod
    def _run(*command: str | pathlib.Path) -> None:
        subprocess.run(command, check=True)
