"""The server under test."""

from __future__ import annotations

import os
import pathlib
import select
import signal
import subprocess
import threading

from crash.failure import Failure
from crash.torn_files import TornFiles
from crash.volume import Volume

START_TIMEOUT_S = 60


class Server:
    """The server, which is started again with the same address and directory after each kill."""

    def __init__(self, binary: str, folder: pathlib.Path, flags: list[str], disk: Volume | TornFiles | None) -> None:
        self._binary = binary
        self._folder = folder
        self._flags = flags
        self._disk = disk
        self._data = (folder if disk is None else disk.path) / "data"
        self._key = folder / "certificate.key"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", str(self._key)], check=True)
        public = ["openssl", "pkey", "-in", str(self._key), "-pubout"]
        self.public_key = subprocess.run(public, check=True, capture_output=True).stdout
        self._log = (folder / "server.log").open("w")  # open for all starts
        self._address = f"unix:{folder}/socket"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self.num_starts = 0

    @property
    def address(self) -> str:
        return self._address

    def start(self, fail_point: str = "", hit: int = 1) -> bool:
        """Starts the server. Returns False if it was killed before it listened, as a fail point of the restart does."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARSEAGG_")}
        if self._disk is not None:
            environment.update(self._disk.environment)
        if fail_point:
            environment["SPARSEAGG_FAIL_POINT"] = f"{fail_point}:{hit}"
        command = [self._binary, "--grpc-address", self._address, "--metrics-address", "none", *self._flags]
        command += ["--http-address", "none", "--certificate-key", str(self._key)]
        command += ["--data-dir", str(self._data), "--threads", "2", "--memory-limit", "256MiB"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment)
        self._process = process
        self.num_starts += 1
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        line = process.stdout.readline() if ready else ""
        if line.startswith("listening"):
            return True
        status = self._end()
        if status != -signal.SIGKILL:
            raise Failure(f"the server did not start, but ended with status {status}")
        return False

    def wait_killed(self, timeout_s: float) -> bool:
        """Waits for the fail point; returns whether it was hit. A server that ends otherwise is a failure."""
        assert self._process is not None
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._end()
        if status != -signal.SIGKILL:
            raise Failure(f"the server ended with status {status}")
        return True

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._end()

    def _end(self) -> int:
        assert self._process is not None
        assert self._process.stdout is not None
        status = self._process.wait()
        self._process.stdout.close()
        if self._disk is not None:
            self._disk.fail()
        return status

    def close(self) -> None:
        """Kills the server, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
