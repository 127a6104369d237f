"""What the tests of ``sparseagg.Server`` share: processes that own servers, and processes to wait for."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import select
import signal
import subprocess
import sys

import sparseagg as sa
from real_server import START_TIMEOUT_S


class Watched:
    """A process that need not be a child, to wait for its end."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def has_ended(self, timeout_s: float = 0) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def wait(self) -> None:
        assert self.has_ended(START_TIMEOUT_S), f"process {self.pid} goes on"

    def send_signal(self, number: int) -> None:
        """Sends a signal, also to a process that has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        os.close(self._descriptor)


class Python:
    """A process that evaluates expressions about ``server``, and prints values and errors' classes."""

    _PROGRAM = """
import sys
from sparseagg._internal.local.server import Server
server = eval(sys.argv[1])
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
"""

    def __init__(self, server: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._PROGRAM, server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, expression: str) -> str:
        self.send(expression)
        return self.answer()

    def send(self, expression: str) -> None:
        self.process.stdin.write(f"{expression}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        return self.process.stdout.readline().rstrip("\n")

    def end(self) -> int:
        """Ends the process in order."""
        self.process.stdin.close()
        return self.process.wait(START_TIMEOUT_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def serves(address: str) -> bool:
    with sa.Client(address) as client:
        return client.server_info().version == sa.__version__


def path_in(message: str) -> pathlib.Path:
    """The log that an error names, and whose end it quotes."""
    path = pathlib.Path(re.search(r"its log, (\S+), ends with:\n", message).group(1))
    assert message.endswith(path.read_text().strip().splitlines()[-1])
    return path


def others_hold(directory: pathlib.Path) -> bool:
    """Whether a process has a lock on the file of the server's owners; asks in a process that has none."""
    ask = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    done = subprocess.run([sys.executable, "-c", ask, directory / "owners"], capture_output=True, text=True)
    assert done.returncode == 0 or "BlockingIOError" in done.stderr
    return done.returncode != 0
