#!/usr/bin/env python3
r"""How fast the HTTP gateway takes bulk uploads, next to gRPC, in turns on one machine.

    bench/service/http_upload.py --server build/release/service/sparseagg-server \
      --loadgen build/release/bench/service/loadgen/sparseagg-loadgen

A turn of HTTP sends chunks of uint32 keys and float32 rows from several processes, each a client with a connection of its
own. A turn of gRPC is sparseagg-loadgen's: SubmitUpdate, the fastest upload, with as many streams. Prints one JSON object:
bytes of keys and values a second in each turn, and the medians.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import pathlib
import re
import statistics
import subprocess
import sys
import time
from typing import Any

import grpc
import numpy as np
from sparseagg.v1 import aggregation_pb2 as pb
from sparseagg.v1 import aggregation_pb2_grpc as rpc

WIDTH = 15
ROWS = 16_384  # of a chunk: 1 MiB with the keys
CHUNKS = 256
DIMENSION = ROWS * CHUNKS


def chunk_bytes(chunk: int) -> tuple[bytes, bytes]:
    """Returns the keys and the values of a chunk."""
    keys = np.arange(chunk * ROWS, (chunk + 1) * ROWS, dtype="<u4")
    rng = np.random.default_rng(chunk)
    return keys.tobytes(), rng.standard_normal((ROWS, WIDTH)).astype("<f4").tobytes()


def send_http(address: str, name: str, client: int, start: Any) -> None:
    """Sends all chunks of one client as requests on one connection, and commits."""
    same = [b"".join(chunk_bytes(chunk)) for chunk in range(8)]  # in turns, with other keys
    heads = [chunk_bytes(chunk)[0] for chunk in range(CHUNKS)]
    connection = http.client.HTTPConnection(address, timeout=600)
    connection.connect()
    bodies = [bytearray(body) for body in same]
    start.wait()
    for chunk in range(CHUNKS):
        body = bodies[chunk % len(bodies)]
        body[: len(heads[chunk])] = heads[chunk]
        query = f"client_id={client}&submission_id=s&sequence={chunk}&tensor=t&key_encoding=U32&key_bytes={4 * ROWS}"
        last = "&last=true" if chunk == CHUNKS - 1 else ""
        connection.request(
            "POST", f"/v1/{name}/chunks?{query}{last}", body, {"content-type": "application/octet-stream"}
        )
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(text.decode())
    commit = json.dumps({"clientId": str(client), "submissionId": "s"})
    connection.request("POST", f"/v1/{name}/submissions", commit, {"content-type": "application/json"})
    if connection.getresponse().status != 200:
        raise SystemExit("the commit failed")


def measure_grpc(loadgen: pathlib.Path, address: str, clients: int) -> float:
    """Returns the bytes a second of one turn of sparseagg-loadgen."""
    command = [str(loadgen), "--target", address, "--workload", "B", "--streams", str(clients), "--repetitions", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"http_upload.py: {done.stderr.strip()}")
    return float(json.loads(done.stdout)["bytes_per_s"])


def measure_http(address: str, stub: rpc.AggregationStub, clients: int) -> float:
    """Returns the bytes a second of one turn of HTTP."""
    tensor = pb.TensorSpec(name="t", dtype=pb.DTYPE_FLOAT32, dimension=DIMENSION, width=WIDTH)
    name = stub.CreateRound(pb.CreateRoundRequest(spec=pb.RoundSpec(tensors=[tensor]))).name
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(clients + 1)
    processes = [context.Process(target=send_http, args=(address, name, i, start)) for i in range(clients)]
    for process in processes:
        process.start()
    start.wait(600)
    begin = time.perf_counter()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - begin
    if any(process.exitcode != 0 for process in processes):
        raise SystemExit("http_upload.py: a client failed")
    round_ = stub.GetRound(pb.GetRoundRequest(name=name))
    stub.DeleteRound(pb.DeleteRoundRequest(name=name))
    if round_.num_submissions != clients:
        raise SystemExit(f"http_upload.py: {round_.num_submissions} submissions instead of {clients}")
    return float(round_.num_bytes / seconds)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=pathlib.Path, required=True)
    parser.add_argument("--loadgen", type=pathlib.Path, required=True)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    command = [arguments.server, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    command += ["--metrics-address", "none", "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"grpc=(\S+) http=(\S+)", server.stdout.readline())
        assert found is not None
        try:
            with grpc.insecure_channel(found.group(1)) as channel:
                stub = rpc.AggregationStub(channel)
                turns: dict[str, list[float]] = {"grpc": [], "http": []}
                for _ in range(arguments.turns):
                    turns["grpc"].append(measure_grpc(arguments.loadgen, found.group(1), arguments.clients))
                    turns["http"].append(measure_http(found.group(2), stub, arguments.clients))
        finally:
            server.terminate()
    medians = {name: statistics.median(rates) for name, rates in turns.items()}
    share = medians["http"] / medians["grpc"]
    print(json.dumps({"bytes_per_second": turns, "medians": medians, "http_share_of_grpc": share}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
