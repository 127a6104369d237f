"""A server process that belongs to this process: it starts, has an address, and stops with its owner."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, SupportsIndex

import grpc

from sparseagg._internal.base.arguments import Timeout, checked_integer, checked_seconds, checked_text, shown
from sparseagg._internal.base.credentials import TLS
from sparseagg._internal.local import programs
from sparseagg._internal.local.server_directory import ServerDirectory, until
from sparseagg.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
)

# grpc.health.v1: HealthCheckResponse{status = SERVING}
_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"

# Guards the two below, also while the process forks.
_LOCK = threading.RLock()
# Servers that this process has started or shares. The end of the process stops them.
_RUNNING: set[Server] = set()
# Shared servers that go on after their stop here. They are waited for, so that no zombies remain.
_LEFT: list[subprocess.Popen[bytes]] = []


class Server:
    """A server process on this machine, for this process, and for its threads and children.

        with sa.Server() as server, sa.Client(server.address) as client:
            result = client.aggregate(updates, spec)

    Life cycle: ``start`` and ``stop``, or a ``with`` statement, any number of times. The server stops in order with
    ``stop`` and at the end of this process, even if the process is killed. SIGINT of a terminal does not reach the
    server. A forked child may use the address; its ``stop`` leaves the server to the parent, and a server that the
    child makes is its own.

    Args:
        data_dir: the server's directory, which has the log ``server.log`` and the server's rounds, and which stays;
            made where it is missing. A server that starts there again goes on with these rounds, also if the one before
            was killed. The option ``--durability`` says what else they survive; ``memory`` keeps nothing.
            By default a temporary directory that ``stop`` removes, and no round stays. It stays after an error, for
            the log.
        port: to listen on; 0: any free port.
        host: address to listen on. Others than the loopback's need ``tls`` with ca or ``tokens_file``, or the option
            ``--insecure``. "unix:": a Unix socket in the server's directory, which other users must not be allowed to
            enter, and whose path must be short; not with ``port`` or ``tls``.
        shared: uses the server that other processes of this user share on this machine, or starts it with these
            arguments. The server stops when the last of these processes stops it or ends. Its directory is
            ``data_dir``, by default one of the user in XDG_RUNTIME_DIR or the folder of temporary files.
        tls: the server's certificate, key and, where clients need certificates, their authorities. Not of a shared
            server.
        tokens_file: bearer tokens that the server takes, as ``sparseagg keys`` writes it; without ``tls`` and ca, the
            only credentials. None: the server does not authenticate callers.
        options: more flags of sparseagg-server, as ``["--threads", "2"]``. Metrics are off without
            ``--metrics-address``.
        start_timeout: seconds that ``start`` may take.
        stop_timeout: seconds that ``stop`` may take, longer than the options ``--drain-delay`` and
            ``--shutdown-deadline`` together. A server that is not shared is killed then.
        program: path of sparseagg-server. By default, what the environment's SPARSEAGG_SERVER names, or the program
            that this package brings, or the one on the PATH.

    Raises:
        InvalidArgumentError: an argument is wrong.

    Thread-safe.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: SupportsIndex = 0,
        host: str = "127.0.0.1",
        shared: bool = False,
        tls: TLS | None = None,
        tokens_file: str | os.PathLike[str] | None = None,
        options: Sequence[str] = (),
        start_timeout: Timeout = 30.0,
        stop_timeout: Timeout = 30.0,
        program: str | os.PathLike[str] | None = None,
    ) -> None:
        number = checked_integer("port must be a number from 0 to 65535", port, 0, 65535)
        name = checked_text("host", host)
        self._grpc_address = f"[{name}]:{number}" if ":" in name else f"{name}:{number}"
        self._has_socket = name == "unix:"
        if self._has_socket and (number != 0 or tls is not None):
            raise InvalidArgumentError('host="unix:" goes neither with port nor with tls')
        self._data_dir = _checked_path("data_dir", data_dir)
        self._program = _checked_path("program", program)
        self._shared = bool(shared)
        self._options = (*_credential_flags(tls, _checked_path("tokens_file", tokens_file)), *_checked_options(options))
        if self._shared and (tls is not None or tokens_file is not None):
            raise InvalidArgumentError(
                "a shared server takes neither tls nor tokens_file: start one that is not shared"
            )
        self._start_timeout = checked_seconds("start_timeout", start_timeout)
        self._stop_timeout = checked_seconds("stop_timeout", stop_timeout)
        self._lock = threading.Lock()
        self._address: str | None = None
        self._pid: int | None = None
        self._directory: ServerDirectory | None = None  # None if the server is the parent's, from before a fork
        self._process: subprocess.Popen[bytes] | None = None  # None if another process has started the server

    @property
    def address(self) -> str:
        """The server's address, "host:port" or "unix:path"; ``FailedPreconditionError`` without a running server."""
        address = self._address
        if address is None:
            raise FailedPreconditionError("the server has no address, for it is not running: start() it")
        return address

    @property
    def http_address(self) -> str | None:
        """The address of the server's HTTP gateway, "host:port"; None without one, or without a running server."""
        with self._lock:
            return None if self._directory is None else self._directory.read_http_address()

    def wait(self, timeout: Timeout = None) -> bool:
        """Waits until the process of a server that this object has started ends by itself, or is killed.

        Args:
            timeout: in seconds or as a timedelta; None for no limit.

        Returns:
            Whether there is no such process any more. ``stop`` is still to be called.
        """
        process = self._process
        if process is None:
            return True
        try:
            process.wait(checked_seconds("timeout", timeout))
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it is not running."""
        return self._pid

    def start(self) -> Server:
        """Starts the server, and returns this object when the server listens. A running server is left as it is.

        Raises:
            ProgramMissingError: there is no sparseagg-server; the message says what to install.
            UnavailableError: the server ends instead. The message has the end of its log.
            DeadlineExceededError: it does not listen within ``start_timeout``.
            FailedPreconditionError: another server, which is not shared, uses ``data_dir``.
            PermissionDeniedError: other users may enter the directory of a shared server, or of one with a Unix socket.
            InvalidArgumentError: the directory's path is too long for a Unix socket.
            OSError: the directory cannot be made, or the program cannot be run.
        """
        with self._lock:
            if self._address is None:
                _wait_for_left()
                self._start(_deadline(self._start_timeout))
                with _LOCK:
                    _RUNNING.add(self)
        return self

    def stop(self) -> None:
        """Stops the server, and returns when it has ended; a shared server if nobody else shares it.

        Calls in progress may finish until the server's ``--shutdown-deadline``. Without a running server, nothing
        happens.

        Raises:
            UnavailableError: the server had ended before.
            DeadlineExceededError: the server did not stop within ``stop_timeout``.
            InternalError: the server did not stop in order.

            In each case, the message has the end of the server's log, and the server is not running any more for this
            object.
        """
        with self._lock:
            with _LOCK:
                _RUNNING.discard(self)
            directory, process = self._directory, self._process
            self._address = self._pid = self._directory = self._process = None
            if directory is None:
                return
            try:
                if self._shared:
                    self._leave(directory, process)
                elif process is not None:
                    self._end(directory, process)
            finally:
                directory.release()
                if process is not None:
                    with _LOCK:
                        _LEFT.append(process)
                _wait_for_left()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._address is None:
            return "<sparseagg.Server, not running>"
        return f"<sparseagg.Server {self._address}, pid {self._pid}{', shared' if self._shared else ''}>"

    def _start(self, deadline: float) -> None:
        if self._program is None:
            program = programs.find(programs.SERVER)
        else:
            program = programs.checked_program(self._program, "program")
        directory = ServerDirectory.make(self._data_dir, shared=self._shared)
        try:
            with directory.start_lock(deadline):
                log = self._join(directory, deadline) if self._shared else self._occupy(directory, deadline)
                if log is not None:
                    self._launch(directory, program, log, deadline)
        except BaseException:
            directory.release()
            raise
        self._directory = directory

    def _occupy(self, directory: ServerDirectory, deadline: float) -> int:
        """Holds a directory without a server; returns the log's descriptor."""
        log = directory.claim_log()
        if log is None:
            # The server's owner may have been killed just now. Then the server stops, unless this process holds it.
            if directory.hold():
                alone = directory.is_sole_holder()
                directory.release()
                if not alone:
                    raise FailedPreconditionError(f"{directory.path} is in use: another server has its log there")
            log = until(deadline, directory.claim_log)
            if log is None:
                raise directory.failure(DeadlineExceededError, "of an earlier process does not stop")
        try:
            self._hold(directory, deadline)
        except BaseException:
            directory.close_log(log)
            raise
        return log

    def _join(self, directory: ServerDirectory, deadline: float) -> int | None:
        """Holds the directory of a shared server; returns the log's descriptor if a server has to be started."""
        self._hold(directory, deadline)
        log = directory.claim_log()
        if log is not None:
            return log
        address = until(deadline, lambda: directory.read_address() or ("" if directory.has_ended() else None))
        if address and _serves(address, deadline):
            self._address, self._pid = address, directory.read_pid()
            return None
        log = until(deadline, directory.claim_log)  # after SIGTERM, it serves no more but has not ended
        if log is None:
            raise directory.failure(DeadlineExceededError, "is running, but does not answer")
        return log

    @staticmethod
    def _hold(directory: ServerDirectory, deadline: float) -> None:
        if not until(deadline, lambda: directory.hold() or None):
            raise directory.failure(DeadlineExceededError, "of earlier processes does not stop")

    def _launch(self, directory: ServerDirectory, program: str, log: int, deadline: float) -> None:
        """Starts the server. Requires: this process holds the directory, and ``log`` is from ``claim_log``."""
        flags = ["--owners-file", str(directory.owners), *self._options]
        given = {option.split("=")[0] for option in self._options}
        for optional in ("--metrics-address", "--http-address"):
            if optional not in given:
                flags += [optional, ""]
        if self._data_dir is not None and "--data-dir" not in given:
            flags += ["--data-dir", str(directory.rounds)]
        try:
            directory.clear(log)
            listen = directory.socket_address() if self._has_socket else self._grpc_address
            command = [program, "--grpc-address", listen, *flags]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except BaseException:
            directory.close_log(log)
            directory.remove()
            raise
        directory.close_log(log)
        try:
            directory.write_pid(process.pid)
            address = until(deadline, lambda: directory.read_address() or ("" if process.poll() is not None else None))
            if address is None:
                raise directory.failure(DeadlineExceededError, f"did not start within {self._start_timeout:g} s")
            if not address:
                raise directory.failure(UnavailableError, f"did not start, but ended with status {process.returncode}")
            directory.write_address(address)
        except BaseException:
            process.kill()
            process.wait()
            raise
        self._address, self._pid, self._process = address, process.pid, process

    def _end(self, directory: ServerDirectory, process: subprocess.Popen[bytes]) -> None:
        """Stops a server that is not shared."""
        early = process.poll() is not None
        process.terminate()
        try:
            status = process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            what = f"did not stop within {self._stop_timeout:g} s, and was killed"
            raise directory.failure(DeadlineExceededError, what) from None
        if early:
            raise directory.failure(UnavailableError, f"ended before it was stopped, with status {status}")
        if status != 0:
            raise directory.failure(InternalError, f"did not stop in order, but ended with status {status}")
        with directory.start_lock(_deadline(self._stop_timeout)):
            if directory.has_ended():  # else another process has started a server there since
                directory.remove()

    def _leave(self, directory: ServerDirectory, process: subprocess.Popen[bytes] | None) -> None:
        """Leaves a shared server to the others, and waits for its end if there are none."""
        deadline = _deadline(self._stop_timeout)
        with directory.start_lock(deadline):
            if directory.has_ended():
                raise directory.failure(UnavailableError, "ended before it was stopped")
            alone = directory.is_sole_holder()
            directory.release()
            if alone:
                if not until(deadline, directory.has_ended):
                    raise directory.failure(DeadlineExceededError, f"did not stop within {self._stop_timeout:g} s")
                directory.remove()
                if process is not None:
                    process.wait()  # no time: the system has closed the files of the process, so that it has ended

    def _forget(self) -> None:
        """Makes this a forked child's object: the server is the parent's."""
        self._lock = threading.Lock()  # another thread of the parent may have it
        if self._process is not None:
            self._process.poll()  # no child of this process, so that the object does not warn of a running child
        self._directory = self._process = None


def _checked_path(what: str, path: Any) -> str | None:
    try:
        text = None if path is None else os.fsdecode(path)
    except TypeError:
        text = ""
    if text == "":
        raise InvalidArgumentError(f"{what} must be a path or None, got {shown(path)}")
    return text


def _checked_options(options: Any) -> tuple[str, ...]:
    if isinstance(options, (list, tuple)) and all(isinstance(option, str) for option in options):
        return tuple(options)
    raise InvalidArgumentError(f'options must be a list of flags, as ["--threads", "2"], got {shown(options)}')


def _credential_flags(tls: Any, tokens_file: str | None) -> list[str]:
    """Returns the flags of sparseagg-server for credentials."""
    flags = [] if tokens_file is None else ["--tokens-file", tokens_file]
    if tls is None:
        return flags
    if not isinstance(tls, TLS) or tls.certificate is None or tls.key is None:
        raise InvalidArgumentError(f"tls must be a TLS with certificate and key, or None, got {shown(tls)}")
    flags += ["--tls-certificate", os.fspath(tls.certificate), "--tls-key", os.fspath(tls.key)]
    return flags if tls.ca is None else [*flags, "--tls-client-ca", os.fspath(tls.ca)]


def _deadline(timeout_s: float | None) -> float:
    return math.inf if timeout_s is None else time.monotonic() + timeout_s


def _serves(address: str, deadline: float) -> bool:
    """Returns whether the server at an address serves; False for one that refuses calls because it stops."""
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    timeout_s = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
    with grpc.insecure_channel(address, options=options) as channel:
        try:
            return bool(channel.unary_unary(_HEALTH)(b"", timeout=timeout_s) == _SERVING)
        except grpc.RpcError:
            return False


def _wait_for_left() -> None:
    """Collects the status of those servers in _LEFT that have ended."""
    with _LOCK:
        _LEFT[:] = [process for process in _LEFT if process.poll() is None]


def _stop_all() -> None:
    with contextlib.ExitStack() as stack:  # calls all, also after an error
        for server in list(_RUNNING):
            stack.callback(server.stop)


def _forget_in_child() -> None:
    for server in _RUNNING:
        server._forget()
    _RUNNING.clear()
    _wait_for_left()
    _LOCK.release()


atexit.register(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_forget_in_child)
