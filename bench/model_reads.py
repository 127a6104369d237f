"""Reads of some rows of a model: a server's ReadRows by gRPC and HTTP, beside Redis with MGET and HMGET.

    model_reads.py --server build/dev/service/sparseagg-server --rows 1000000 10000000 --out FILE.json

Every contestant answers the same requests, 5,000 random keys of rows of 64 float32 values, alone and to 16 processes at
once, in turns. A read is timed until the rows are in the process, in an array; each read is verified once before. The
client of Redis is a socket that knows how many bytes come: no client of Redis is faster in Python.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import multiprocessing
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import machine
import numpy as np
import sparseagg as sa
from sparseagg.v1 import aggregation_pb2, models_pb2

WIDTH, NUM_KEYS = 64, 5000
FILL = 250_000  # rows that are written at a time
REDIS_PORT = 16_379
Array = np.ndarray[Any, Any]
Read = Callable[[Array], Array]


def rows_of(keys: Array) -> Array:
    """The rows of the model and of Redis."""
    return (keys[:, None] * 64 + np.arange(WIDTH, dtype=np.uint64)).astype(np.float32)


def by_grpc(address: str) -> Read:
    """Reads by one gRPC channel."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    call = grpc.insecure_channel(address, options).unary_unary(
        "/sparseagg.v1.Models/ReadRows", models_pb2.ReadRowsRequest.SerializeToString, models_pb2.RowsPage.FromString
    )

    def read(keys: Array) -> Array:
        slice_ = aggregation_pb2.TensorSlice(key_encoding="KEY_ENCODING_U64", keys=keys.tobytes())
        page = call(models_pb2.ReadRowsRequest(model="models/bench", tensor="emb", keys=slice_))
        return np.frombuffer(page.slice.values, np.float32).reshape(-1, WIDTH)

    return read


def by_http(address: str) -> Read:
    """Reads by one connection of HTTP, in bulk."""
    connection = http.client.HTTPConnection(address)
    headers = {"Content-Type": "application/x-protobuf", "Accept": "application/octet-stream"}

    def read(keys: Array) -> Array:
        slice_ = aggregation_pb2.TensorSlice(key_encoding="KEY_ENCODING_U64", keys=keys.tobytes())
        request = models_pb2.ReadRowsRequest(tensor="emb", keys=slice_).SerializeToString()
        connection.request("POST", "/v1/models/bench/rows", request, headers)
        body = connection.getresponse().read()
        return np.frombuffer(body[len(body) - len(keys) * WIDTH * 4 :], np.float32).reshape(-1, WIDTH)

    return read


def by_redis(command: bytes, argument: bytes = b"") -> Read:
    """Reads by one connection of Redis, with MGET, or with HMGET of one hash."""
    connection = socket.create_connection(("127.0.0.1", REDIS_PORT))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    row = 4 * WIDTH
    prefix = b"$%d\r\n" % row

    def read(keys: Array) -> Array:
        parts = [command, *([argument] if argument else []), *(b"%d" % key for key in keys.tolist())]
        connection.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in parts))
        head = b"*%d\r\n" % len(keys)
        answer = bytearray(len(head) + len(keys) * (len(prefix) + row + 2))
        view = memoryview(answer)
        while view:
            view = view[connection.recv_into(view) :]
        table = np.frombuffer(answer, np.uint8, offset=len(head)).reshape(len(keys), -1)
        return np.ascontiguousarray(table[:, len(prefix) : -2]).view(np.float32)

    return read


def client(make: tuple[str, tuple[Any, ...]], num_rows: int, seconds: float, seed: int) -> list[float]:
    """Reads for some seconds; returns the seconds of each read."""
    rng = np.random.default_rng(seed)
    read: Read = globals()[make[0]](*make[1])
    keys = rng.integers(0, num_rows, NUM_KEYS, np.uint64)
    assert np.array_equal(read(keys), rows_of(keys)), "other rows than were written"
    taken, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken) < 5:
        keys = rng.integers(0, num_rows, NUM_KEYS, np.uint64)
        begin = time.perf_counter()
        read(keys)
        taken.append(time.perf_counter() - begin)
    return taken


def measure(make: tuple[str, tuple[Any, ...]], clients: int, num_rows: int, seconds: float) -> dict[str, float]:
    """Returns the median of a read, and reads a second of all clients."""
    spawn = multiprocessing.get_context("spawn")  # gRPC does not outlive a fork
    with concurrent.futures.ProcessPoolExecutor(clients, mp_context=spawn) as pool:
        futures = [pool.submit(client, make, num_rows, seconds, seed) for seed in range(clients)]
        taken = [future.result() for future in futures]
    rate = sum(len(times) / sum(times) for times in taken)
    return {"median_ms": statistics.median(second for times in taken for second in times) * 1e3, "reads_per_s": rate}


@contextlib.contextmanager
def redis(num_rows: int) -> Iterator[dict[str, tuple[str, tuple[Any, ...]]]]:
    """A Redis with the rows, as strings and in one hash; nothing if this machine has none."""
    program = shutil.which("redis-server")
    if program is None:
        yield {}
        return
    options = ("--port", REDIS_PORT, "--save", "", "--appendonly", "no", "--bind", "127.0.0.1")
    process = subprocess.Popen([program, *map(str, options)], stdout=subprocess.DEVNULL)
    try:
        connection = None
        while connection is None:
            with contextlib.suppress(ConnectionRefusedError):
                connection = socket.create_connection(("127.0.0.1", REDIS_PORT))
        for begin in range(0, num_rows, 10_000):
            keys = np.arange(begin, begin + 10_000, dtype=np.uint64)
            for command in (b"MSET", b"HSET"):
                parts = [command] if command == b"MSET" else [command, b"emb"]
                for key, row in zip(keys.tolist(), rows_of(keys)):
                    parts += [b"%d" % key, row.tobytes()]
                connection.sendall(
                    b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
                )
                while not connection.recv(100).endswith(b"\r\n"):
                    pass
        yield {"redis MGET": ("by_redis", (b"MGET",)), "redis HMGET": ("by_redis", (b"HMGET", b"emb"))}
    finally:
        process.terminate()
        process.wait()


def fill(server: sa.Server, num_rows: int) -> None:
    """Makes a model whose rows are the results of rounds."""
    with sa.Client(server.address) as coordinator:
        model = coordinator.model("bench", tensors={"emb": sa.Rows(WIDTH, num_rows)})
        for version, begin in enumerate(range(0, num_rows, FILL)):
            keys = np.arange(begin, min(num_rows, begin + FILL), dtype=np.uint64)
            round_ = model.create_round("sum")
            round_.submit("fill", {"emb": (keys, rows_of(keys))})
            round_.finish()
            model.apply(round_, base_version=version)
            round_.delete()


def main() -> None:
    """Measures, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each contestant's turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    found = []
    for num_rows in options.rows:
        with (
            sa.Server(
                program=options.server, options=["--log-level", "error", "--http-address", "127.0.0.1:0"]
            ) as server,
            redis(num_rows) as others,
        ):
            fill(server, num_rows)
            ours = {"gRPC": ("by_grpc", (server.address,)), "HTTP": ("by_http", (server.http_address,))}
            for clients in options.clients:
                runs: dict[str, list[dict[str, float]]] = {name: [] for name in {**ours, **others}}
                for _ in range(options.turns):
                    for name, make in {**ours, **others}.items():
                        runs[name].append(measure(make, clients, num_rows, options.seconds))
                for name, each in runs.items():
                    median = {key: statistics.median(run[key] for run in each) for key in each[0]}
                    found.append({"rows": num_rows, "clients": clients, "contestant": name, **median, "all": each})
                    print(f"{num_rows:>9} rows, {clients:>2} clients, {name:<11}: {median}", file=sys.stderr)
    facts = {"machine": machine.cpu_name(), "keys": NUM_KEYS, "row_width": WIDTH}
    options.out.write_text(json.dumps({**facts, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
