"""One contestant of the benchmark of whole rounds: runs rounds as a coordinator in Python sees them, and prints JSON.

    contestant.py NAME CASE [--server PATH] [--repetitions N]

A round is created, the updates of its clients are submitted one after another by this process, and the result is read
into arrays. What an update needs before it is sent (its random numbers) is not timed. The result of each round is held
to the sums in float64, taken here in the order of the clients: bit for bit, where the contestant adds in that order.

The stages: "create", "submit" (the last update has been acknowledged), "merge" (the result is there) and "read". CPU
seconds and peak memory are those of this process and of the server that it has started.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import pickle
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

SEED = 20261127
Array = npt.NDArray[Any]
# Clients, tuples of each, rows of the tensor. A dense update has all rows.
CASES = {
    "10 clients": (10, 100_000, 10_000_000),
    "1000 clients": (1000, 10_000, 10_000_000),
    "100,000 clients": (100_000, 100, 10_000_000),
    "dense 1 GB": (2, 0, 250_000_000),
    "quick": (20, 1000, 100_000),
}


class Updates:
    """The updates of a case, in columns: client i has the tuples from ``offsets[i]`` to ``offsets[i + 1]``."""

    def __init__(self, case: str) -> None:
        self.num_clients, tuples, self.num_rows = CASES[case]
        self.is_dense = tuples == 0
        rng = np.random.default_rng(SEED)
        self.ids = [f"client-{number:06}" for number in range(self.num_clients)]
        if self.is_dense:
            self.arrays = [rng.standard_normal(self.num_rows, np.float32) for _ in self.ids]
            self.num_bytes = sum(array.nbytes for array in self.arrays)
            return
        self.offsets = np.arange(self.num_clients + 1) * tuples
        drawn = rng.zipf(1.3, (self.num_clients, tuples)) * np.int64(2_654_435_761)
        self.keys = np.sort(drawn % self.num_rows, axis=1).astype(np.uint32).reshape(-1)
        self.rows = rng.standard_normal(self.num_clients * tuples, np.float32)
        self.num_bytes = self.keys.nbytes + self.rows.nbytes

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for number, client_id in enumerate(self.ids):
            if self.is_dense:
                yield client_id, self.arrays[number]
            else:
                part = slice(self.offsets[number], self.offsets[number + 1])
                yield client_id, (self.keys[part], self.rows[part])

    def expected(self) -> tuple[Array | None, Array]:
        """The keys (None: all) and the sums."""
        sums = np.zeros(self.num_rows)
        if self.is_dense:
            for array in self.arrays:
                sums += array
            return None, sums.astype(np.float32)
        for part in range(0, len(self.keys), 1 << 20):
            # In the order of the tuples, which is that of the clients.
            np.add.at(sums, self.keys[part : part + (1 << 20)], self.rows[part : part + (1 << 20)])
        keys = np.unique(self.keys)
        return keys, sums[keys].astype(np.float32)


class Stages:
    """The seconds of the stages of a round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.perf_counter()

    def end(self, name: str) -> None:
        """A stage has ended, and the next one begins."""
        now = time.perf_counter()
        self.seconds[name] = now - self._begun
        self._begun = now


class Sparseagg:
    """Rounds of sparseagg at an address; without one those of a server that this starts."""

    is_exact = True

    def __init__(self, updates: Updates, options: argparse.Namespace, address: str | None = None) -> None:
        import sparseagg as sa

        self._updates = updates
        self._server: Any = None
        if address is None:
            flags = ["--memory-limit", "12GiB", "--max-bytes-per-submission", "0", "--max-tuples-per-submission", "0"]
            self._server = sa.Server(program=options.server, options=flags)
            self._server.start()
            address = self._server.address
        self.pid: int | None = None if self._server is None else self._server.pid
        self._client = sa.Client(address)
        layout = "dense" if updates.is_dense else "sparse"
        self._spec = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=updates.num_rows, layout=layout)])

    def round(self, stages: Stages) -> tuple[Array | None, Array]:
        updates = self._updates
        opened = self._client.create_round(self._spec)
        stages.end("create")
        if updates.num_clients > 1000:
            receipt = opened.submit_batch(updates.ids, {"t": (updates.offsets, updates.keys, updates.rows)})
            assert receipt.num_submissions == updates.num_clients
        else:
            for client_id, update in updates:
                opened.submit(client_id, {"t": update})
        stages.end("submit")
        opened.close()
        opened.wait()
        stages.end("merge")
        merged = opened.result()["t"]
        stages.end("read")
        opened.delete()
        return None if updates.is_dense else merged.keys, merged.values

    def close(self) -> None:
        self._client.close()
        if self._server is not None:
            self._server.stop()


class Pickles:
    """What people write first: updates pickled over a socket to a process that adds them up with NumPy.

    It keeps the updates and merges them at the end: by argsort and reduceat, or by adding dense arrays.
    """

    is_exact = False  # adds in float32

    def __init__(self, updates: Updates, options: argparse.Namespace) -> None:
        self._updates = updates
        command = [sys.executable, __file__, "--serve-pickles"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._socket = socket.create_connection(("127.0.0.1", int(self._process.stdout.readline())))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def round(self, stages: Stages) -> tuple[Array | None, Array]:
        stages.end("create")
        for update in self._updates:
            send(self._socket, update)
            receive(self._socket)  # the acknowledgement
        stages.end("submit")
        send(self._socket, None)
        receive(self._socket)
        stages.end("merge")
        send(self._socket, None)
        keys, values = receive(self._socket)
        stages.end("read")
        return keys, values

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def send(peer: socket.socket, thing: Any) -> None:
    """Sends a pickle, after its length."""
    data = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
    peer.sendall(struct.pack("<Q", len(data)))
    peer.sendall(data)


def receive(peer: socket.socket) -> Any:
    """Returns the next pickle; ``EOFError`` if the other side has closed."""

    def read(size: int) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            count = peer.recv_into(view[at:])
            if count == 0:
                raise EOFError
            at += count
        return data

    return pickle.loads(read(struct.unpack("<Q", read(8))[0]))


def serve_pickles() -> None:
    """The other side of ``Pickles``, until it closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        updates: list[Any] = []
        try:
            while (message := receive(peer)) is not None:
                updates.append(message[1])
                send(peer, True)
        except EOFError:
            return
        keys: Array | None = None
        if isinstance(updates[0], tuple):
            every_key = np.concatenate([update[0] for update in updates])
            order = np.argsort(every_key, kind="stable")
            every_key = every_key[order]
            starts = np.flatnonzero(np.concatenate([[True], every_key[1:] != every_key[:-1]]))
            keys = every_key[starts]
            values = np.add.reduceat(np.concatenate([update[1] for update in updates])[order], starts)
        else:
            values = updates[0].copy()
            for update in updates[1:]:
                values += update
        send(peer, True)
        receive(peer)
        send(peer, (keys, values))


CONTESTANTS = {
    "sparseagg server": Sparseagg,
    "sparseagg memory": lambda updates, options: Sparseagg(updates, options, ":memory:"),
    "numpy pickles": Pickles,
}


def cpu_seconds(pid: int | str) -> float:
    """The CPU time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_bytes(pid: int | str) -> int:
    """The highest resident size of a process."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def check(found: tuple[Array | None, Array], expected: tuple[Array | None, Array], is_exact: bool) -> None:
    """Ends the program unless the result is right."""
    keys, values = found
    if (keys is None) != (expected[0] is None) or (keys is not None and not np.array_equal(keys, expected[0])):
        raise SystemExit("other keys than expected")
    if is_exact and values.tobytes() != expected[1].tobytes():
        raise SystemExit("other bits than expected")
    if not np.allclose(values, expected[1], rtol=1e-3, atol=1e-2):
        raise SystemExit("other sums than expected")


def main() -> int:
    """Runs the command; returns its exit status."""
    if sys.argv[1:] == ["--serve-pickles"]:
        serve_pickles()
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONTESTANTS)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--server", type=pathlib.Path)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    updates = Updates(options.case)
    expected = updates.expected()
    contestant = CONTESTANTS[options.name](updates, options)
    before = peak_bytes("self")
    rounds = []
    for repetition in range(options.repetitions + 1):
        used = [cpu_seconds(pid) for pid in ("self", contestant.pid) if pid is not None]
        stages = Stages()
        found = contestant.round(stages)
        cpu = sum(cpu_seconds(pid) for pid in ("self", contestant.pid) if pid is not None) - sum(used)
        check(found, expected, contestant.is_exact)
        del found
        if repetition > 0:  # the first one is warm-up
            rounds.append({**stages.seconds, "total": sum(stages.seconds.values()), "cpu": cpu})
    peaks = {"client_peak_bytes": peak_bytes("self") - before}
    peaks["server_peak_bytes"] = 0 if contestant.pid is None else peak_bytes(contestant.pid)
    contestant.close()
    print(
        json.dumps({"name": options.name, "case": options.case, "bytes": updates.num_bytes, "rounds": rounds, **peaks})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
