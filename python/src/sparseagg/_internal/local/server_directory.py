"""The directory of a server process: its log and address, and the locks that tell who uses the server."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from sparseagg.errors import DeadlineExceededError, InvalidArgumentError, PermissionDeniedError, SparseaggError

if sys.platform != "win32":  # where the client runs, but no server
    import fcntl

_T = TypeVar("_T")

_POLL_S = 0.01
_LISTENING = re.compile(rb"^listening grpc=(\S+).*\n", re.MULTILINE)
_LAST_LINES = 20
_LAST_BYTES = 8192
_PREFIX = "sparseagg-"
_SOCKET = "socket"
# Bytes of a Unix socket's path, without the zero byte at its end.
_MAX_SOCKET_PATH = 107
# Characters of a path that stand for themselves in gRPC's addresses, which are URIs.
_PLAIN_PATH = re.compile(rb"[\w./+~-]+")


def until(deadline: float, look: Callable[[], _T | None]) -> _T | None:
    """Calls ``look`` until it returns something, which is returned, too; None when ``time.monotonic()`` is past."""
    while True:
        found = look()
        if found is not None or time.monotonic() >= deadline:
            return found
        time.sleep(_POLL_S)


@dataclasses.dataclass
class _Owned:
    """This process's lock on an ``owners`` file, which several servers may share."""

    descriptor: int
    count: int


# A process's POSIX lock on a file ends with the first descriptor of the file that the process closes. So a process
# opens each ``owners`` file once.
_OWNED: dict[pathlib.Path, _Owned] = {}
# Descriptors that hold a flock, which ends when all copies of the descriptor are closed. A forked child has copies.
_FLOCKED: set[int] = set()
# Guards both, also while the process forks.
_LOCK = threading.RLock()


def _forget_in_child() -> None:
    for descriptor in [*_FLOCKED, *(owned.descriptor for owned in _OWNED.values())]:
        os.close(descriptor)
    _FLOCKED.clear()
    _OWNED.clear()
    _LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_forget_in_child)


class ServerDirectory:
    """The files of one server. A ``Server`` owns the object; processes may share the directory.

    - ``owners``: every process that needs the server has a shared POSIX lock on the file, which ends with the process.
      The server stops when it gets an exclusive lock, which it keeps until it ends.
    - ``start.lock``: a process that starts or stops the server has a flock.
    - ``server.log``: the server's standard output and standard error. The server inherits the descriptor with a flock,
      so that the flock lasts exactly as long as the server.
    - ``address``, ``pid``: of the server.
    - ``socket``: where the server listens, if it is asked for a Unix socket. The server removes it at its end, and
      replaces one that a killed server has left.
    - ``rounds``: the server's ``--data-dir``, if the directory is not temporary.

    Thread-safe, but for ``hold`` and ``release`` of one object.
    """

    def __init__(self, path: pathlib.Path, *, temporary: bool = False) -> None:
        # The resolved path is the key of _OWNED.
        self.path = pathlib.Path(os.path.realpath(path))
        self.owners = self.path / "owners"
        self.log = self.path / "server.log"
        self.rounds = self.path / "rounds"
        self._address = self.path / "address"
        self._pid = self.path / "pid"
        self._temporary = temporary
        self._held = False

    @staticmethod
    def temporary_fits_socket() -> bool:
        """Returns whether a server in a temporary directory can listen at a Unix socket there."""
        return _fits_socket(pathlib.Path(os.path.realpath(tempfile.gettempdir())) / f"{_PREFIX}12345678")

    @classmethod
    def make(cls, path: str | None, *, shared: bool) -> ServerDirectory:
        """Makes the directory where it is not there. ``path`` of None: a temporary one, or the user's if it is shared.

        Other processes may use the server of a shared directory. ``PermissionDeniedError``: it belongs to another user,
        or other users may enter it.
        """
        if path is None and not shared:
            return cls(pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX)), temporary=True)
        folder = _path_of_user() if path is None else pathlib.Path(path)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
        if shared:
            _check_private(folder)
        return cls(folder)

    def socket_address(self) -> str:
        """Returns the address of the directory's Unix socket, which only this user can connect to.

        Raises ``InvalidArgumentError`` if the path is too long, or has characters that addresses do not take,
        ``PermissionDeniedError`` if other users may enter the directory.
        """
        _check_private(self.path)
        socket = self.path / _SOCKET
        if not _fits_socket(self.path):
            raise InvalidArgumentError(
                f"no Unix socket can have the path {socket}: it must have at most {_MAX_SOCKET_PATH} bytes, and plain "
                'characters; use a directory with a shorter path, or host="127.0.0.1"'
            )
        return f"unix:{socket}"

    @contextlib.contextmanager
    def start_lock(self, deadline: float) -> Iterator[None]:
        """Excludes all others who start or stop the server; ``DeadlineExceededError`` if they take too long."""
        descriptor = _open_to_flock(self.path / "start.lock")
        try:
            if not until(deadline, lambda: _flock(descriptor) or None):
                raise DeadlineExceededError(
                    f"another process starts or stops the server of {self.path}, and does not end"
                )
            yield
        finally:
            _close_flocked(descriptor)

    def hold(self) -> bool:
        """Holds the server for this process, until ``release``; returns False while the server stops."""
        with _LOCK:
            owned = _OWNED.get(self.path)
            if owned is None:
                descriptor = os.open(self.owners, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if not _lockf(descriptor, fcntl.LOCK_SH):
                    os.close(descriptor)
                    return False
                owned = _OWNED[self.path] = _Owned(descriptor, 0)
            owned.count += 1
            self._held = True
            return True

    def release(self) -> None:
        """Ends ``hold``; without one, nothing happens. If nobody else holds the server, it stops."""
        with _LOCK:
            owned = _OWNED.get(self.path)
            if owned is None or not self._held:  # or this is a forked child
                return
            self._held = False
            owned.count -= 1
            if owned.count == 0:
                del _OWNED[self.path]
                os.close(owned.descriptor)

    def is_sole_holder(self) -> bool:
        """Returns whether nobody else holds the server, neither in this process nor in another.

        Requires: ``hold`` and ``start_lock``.
        """
        with _LOCK:
            owned = _OWNED[self.path]
            if owned.count > 1 or not _lockf(owned.descriptor, fcntl.LOCK_EX):
                return False
            fcntl.lockf(owned.descriptor, fcntl.LOCK_SH)  # weaker, so that it does not wait
            return True

    def claim_log(self) -> int | None:
        """Returns a descriptor for the log of a server to start, to be closed with ``close_log``; None while one runs.

        Requires: ``start_lock``.
        """
        descriptor = _open_to_flock(self.log)
        if _flock(descriptor):
            return descriptor
        _close_flocked(descriptor)
        return None

    def close_log(self, descriptor: int) -> None:
        """Closes this process's descriptor of the log; a server that has inherited it goes on."""
        _close_flocked(descriptor)

    def has_ended(self) -> bool | None:
        """Returns True if no server runs, None if one does. Requires: ``start_lock``."""
        descriptor = self.claim_log()
        if descriptor is None:
            return None
        self.close_log(descriptor)
        return True

    def clear(self, log: int) -> None:
        """Removes what an earlier server has left. Requires: ``log`` is from ``claim_log``."""
        os.ftruncate(log, 0)
        self._address.unlink(missing_ok=True)
        self._pid.unlink(missing_ok=True)

    def read_address(self) -> str | None:
        """Returns the address of a server that listens; None before."""
        with contextlib.suppress(FileNotFoundError):
            return self._address.read_text(encoding="utf-8").strip()
        match = _LISTENING.search(self.log.read_bytes())
        return match.group(1).decode() if match else None

    def read_http_address(self) -> str | None:
        """Returns the address of the HTTP gateway of a server that listens; None if it has none."""
        with contextlib.suppress(FileNotFoundError):
            match = _LISTENING.search(self.log.read_bytes())
            found = match and re.search(rb" http=(\S+)", match.group())
            return found.group(1).decode() if found else None
        return None

    def write_address(self, address: str) -> None:
        """Writes the file ``address``. Readers find all of it or no file."""
        new = self.path / "address.new"
        new.write_text(f"{address}\n", encoding="utf-8")
        new.replace(self._address)

    def read_pid(self) -> int | None:
        """Returns the process id of the server; None if who started the server was killed before it was written."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._pid.read_text(encoding="utf-8"))
        return None

    def write_pid(self, pid: int) -> None:
        """Writes the file ``pid``."""
        self._pid.write_text(f"{pid}\n", encoding="utf-8")

    def failure(self, kind: type[SparseaggError], what: str) -> SparseaggError:
        """Returns the error that the server did ``what``; its message names the log and quotes the last lines."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _LAST_BYTES))
                text = file.read().decode(errors="replace").strip()
        except OSError as error:
            return kind(f"sparseagg-server {what}; its log is {self.log}: {error.strerror}")
        lines = "\n".join(text.splitlines()[-_LAST_LINES:])
        return kind(f"sparseagg-server {what}; its log, {self.log}, ends with:\n{lines or '(nothing)'}")

    def remove(self) -> None:
        """Removes what is of no use without a server: all of a temporary directory, else the address."""
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self._address.unlink(missing_ok=True)
            self._pid.unlink(missing_ok=True)


def _fits_socket(directory: pathlib.Path) -> bool:
    path = os.fsencode(directory / _SOCKET)
    return len(path) <= _MAX_SOCKET_PATH and _PLAIN_PATH.fullmatch(path) is not None


def _path_of_user() -> pathlib.Path:
    """Returns the directory of the server that the user's processes share."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return pathlib.Path(runtime if os.path.isdir(runtime) else tempfile.gettempdir(), f"{_PREFIX}{os.geteuid()}")


def _check_private(folder: pathlib.Path) -> None:
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionDeniedError(
            f"{folder} is no directory that this user (id {os.geteuid()}) owns and nobody else may enter: "
            f"its owner has id {found.st_uid}, its mode is {stat.filemode(found.st_mode)}"
        )


def _open_to_flock(path: pathlib.Path) -> int:
    with _LOCK:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _FLOCKED.add(descriptor)
        return descriptor


def _close_flocked(descriptor: int) -> None:
    with _LOCK:
        _FLOCKED.discard(descriptor)
        os.close(descriptor)


def _flock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lockf(descriptor: int, kind: int) -> bool:
    try:
        fcntl.lockf(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX has both
        return False
    return True
