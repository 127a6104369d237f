"""The server process of the demo."""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
from collections.abc import Iterator

__all__ = ["running_server"]

_LISTENING = re.compile(r"\blistening grpc=(\S+)")
_STOP_TIMEOUT_S = 30


@contextlib.contextmanager
def running_server(path: str, log: pathlib.Path) -> Iterator[str]:
    """Starts the server at ``path`` on a free port of the loopback, yields its address, and stops it.

    Args:
        path: the server's binary.
        log: file for the server's log.

    Raises:
        RuntimeError: the server does not start, or does not stop in order.
    """
    with log.open("w") as log_file:
        process = subprocess.Popen(
            [path, "--grpc-address", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=log_file, text=True
        )
        try:
            yield _address(process, log)
            process.terminate()
            try:
                code = process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"the server did not stop within {_STOP_TIMEOUT_S} s; its log is {log}") from None
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
    if code != 0:
        raise RuntimeError(f"the server ended with status {code}; its log is {log}")


def _address(process: subprocess.Popen[str], log: pathlib.Path) -> str:
    if process.stdout is not None:
        for line in process.stdout:
            match = _LISTENING.search(line)
            if match:
                return match.group(1)
    raise RuntimeError(f"the server did not start; its log, {log}:\n{log.read_text()}")
