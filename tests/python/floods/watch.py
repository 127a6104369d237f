"""The memory of a process that is under attack."""

from __future__ import annotations

import contextlib
import pathlib
import re
import threading


def resident(pid: int) -> int:
    """The resident memory in bytes."""
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE).group(1)) * 1024


class Watch(threading.Thread):
    """Looks at a process's resident memory until it is stopped; `most` is the highest that it has seen."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._pid = pid
        self._stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._stopped.wait(0.01):
            with contextlib.suppress(FileNotFoundError, AttributeError):
                self.most = max(self.most, resident(self._pid))

    def stop(self) -> None:
        self._stopped.set()
        self.join()
