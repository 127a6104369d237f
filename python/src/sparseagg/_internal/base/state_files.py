"""Files that outlive a process, and that several processes may change: one at a time, and never half."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import sys
from collections.abc import Iterator
from typing import IO, Union

if sys.platform != "win32":
    import fcntl

from sparseagg.errors import UnimplementedError

Path = Union[str, "os.PathLike[str]"]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock of a file: of all threads and processes, one at a time. To change the file, read it in here.

    The lock is on ``.NAME.lock`` beside the file, since ``replaced`` makes a new file. All links to a file share it.
    Blocks until the holder before is done or has ended. Raises ``UnimplementedError`` on Windows.
    """
    if sys.platform == "win32":
        raise UnimplementedError(f"{os.fspath(path)!r} needs a lock on a file, which there is not on Windows")
    target = pathlib.Path(os.path.realpath(path))
    with open(target.with_name(f".{target.name}.lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a process that was forked meanwhile has a copy of the descriptor


def is_stream(path: Path) -> bool:
    """Returns whether this is a pipe or a device, which ``replaced`` does not replace by a file."""
    return os.path.exists(path) and not os.path.isfile(path)


@contextlib.contextmanager
def replaced(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Opens a file that replaces ``path`` when it is complete and synced; it is removed if the caller raises.

    Readers find the file of before or the new one, even after a power failure. A file that is replaced keeps its mode,
    and a link to it stays; a new file has ``mode`` less the umask. A pipe or a device is written to.
    """
    if is_stream(path):
        with open(path, "wb") as file:  # not the resolved path: a pipe behind /dev/stdout has none
            yield file
        return
    target = pathlib.Path(os.path.realpath(path))
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    try:
        with open(new, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(new, target.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if sys.platform != "win32":  # where folders cannot be opened
        folder = os.open(target.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
