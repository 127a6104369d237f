"""A disk that loses the unsynced ends of files."""

from __future__ import annotations

import pathlib
import random


class TornFiles:
    """A folder whose files are torn at each end of the server.

    Of each file, the disk has what a sync has covered, and of the rest a part: the file is cut there, or zeros follow,
    as far as the file went. A library in the server's process (tests/service/support/recording_disk.cc) tells what was
    synced. Unlike a copy of a real disk (``Volume``), this tears chunks and records in the middle.
    """

    def __init__(self, folder: pathlib.Path, library: pathlib.Path, seed: int) -> None:
        self.path = folder / "torn"
        self.path.mkdir()
        self._record = folder / "torn.synced"
        self._rng = random.Random(seed)
        self._kept: dict[pathlib.Path, int] = {}  # bytes that the disk has, by file
        self._synced_file = self.path / "data/SYNCED"
        self._old_line = b""  # of SYNCED
        self.environment = {"LD_PRELOAD": str(library), "SPARSEAGG_RECORDED_DISK": str(self.path)}
        self.num_torn = 0

    def fail(self) -> None:
        """Tears the files. Requires: no process uses them."""
        self._read_record()
        files = [path for path in self.path.rglob("*") if path.is_file()]
        for path in files:
            size = path.stat().st_size
            synced = min(self._kept.get(path, 0), size)
            if size > synced and self._rng.random() < 0.8:
                self._tear(path, synced, size)
        self._kept = {path: path.stat().st_size for path in files}
        self._restore_old_line()

    def close(self) -> None:
        """There is nothing to do."""

    def _tear(self, path: pathlib.Path, synced: int, size: int) -> None:
        # Often near one of the ends, where boundaries of records are.
        part = self._rng.choice([0.0, self._rng.random() ** 4, self._rng.random(), 1 - self._rng.random() ** 4])
        kept = synced + int(part * (size - synced))
        with path.open("r+b") as file:
            file.truncate(kept)
            if self._rng.random() < 0.5:
                file.truncate(size)
        self.num_torn += 1

    def _restore_old_line(self) -> None:
        """Nothing syncs SYNCED, which is written in place: the disk may have an older line."""
        if not self._synced_file.exists():
            return
        if self._old_line and self._rng.random() < 0.3:
            self._synced_file.write_bytes(self._old_line)
        self._old_line = self._synced_file.read_bytes()

    def _read_record(self) -> None:
        if not self._record.exists():
            return
        for line in self._record.read_text(encoding="utf-8").splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "sync":
                size, _, path = rest.partition(" ")
                self._kept[pathlib.Path(path)] = int(size)
            else:
                old, _, new = rest.partition("\t")
                self._kept[pathlib.Path(new)] = self._kept.pop(pathlib.Path(old), 0)
        self._record.unlink()
