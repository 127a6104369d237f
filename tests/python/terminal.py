"""A command in a pseudo-terminal, as a person would see it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

TIMEOUT_S = 30
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """The command `sparseagg` in a pseudo-terminal."""

    def __init__(self, *words: str, lines: int = 40, columns: int = 120, term: str = "xterm-256color") -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.modes_before = self.modes()
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            # For Ctrl-C. Not by a preexec_fn: gRPC's handlers of fork() may abort the child of a process that uses it.
            ["setsid", "--ctty", sys.executable, "-m", "sparseagg", *words],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env={**environment, "TERM": term},
        )
        self.written = b""
        self._seen = 0

    def modes(self) -> list:
        """Returns how the terminal takes lines and keys."""
        return termios.tcgetattr(self._theirs)

    def wait_for(self, pattern: str) -> None:
        """Waits until the text without its escapes has a match, after the last one; fails if none comes."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            text = ESCAPES.sub("", self.written.decode(errors="replace"))
            match = re.compile(pattern).search(text, self._seen)
            if match:
                self._seen = match.end()
                return
            assert self._read(deadline), f"no {pattern!r} in {' '.join(text[self._seen :].split())[-2000:]!r}"

    def screen(self) -> str:
        """Returns the lines of the last view."""
        return ESCAPES.sub("", self.written.decode(errors="replace")).rpartition("sparseagg top")[2]

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def end(self) -> int:
        """Reads until the process has ended; returns its status."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            self._read(min(deadline, time.monotonic() + 0.05))
            assert time.monotonic() < deadline, f"no end; {self.written[-1000:]!r}"
        while self._read(time.monotonic() + 0.05):
            pass
        return self.process.returncode

    def _read(self, deadline: float) -> bool:
        """Reads what comes until then; returns whether there was anything."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
        if ready:
            self.written += os.read(self._ours, 1 << 16)
        return bool(ready)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)
