#!/usr/bin/env python3
r"""How fast the HTTP gateway takes bulk uploads, next to gRPC, in turns on one machine.

    bench/service/http_upload.py --server build/dev/service/sparseagg-server \
      --loadgen build/dev/tools/loadgen/sparseagg-loadgen

Both send workload B of bench/ in chunks of 512 KiB over as many connections, three rounds a turn, of which the median
counts: from the first byte to the last commit. gRPC's turns are those of sparseagg-loadgen, with SubmitUpdate, the
fastest upload. HTTP's are `POST …/chunks` and a commit for each client, from processes that make their bytes before the
clock starts. Prints one JSON object: bytes of keys and values a second in each turn, and the medians.
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
from sparseagg._internal.wire.stub import make_stub
from sparseagg.v1 import aggregation_pb2 as pb

CLIENTS = 50
TUPLES = 250_000  # of a client
NUM_ROWS = 25_000_000
CHUNK = 65_536  # tuples
ROUNDS = 3


def chunks_of(client: int) -> list[tuple[int, bytes]]:
    """Returns the number of tuples and the body of each chunk of a client."""
    rng = np.random.default_rng(client)
    keys = np.unique(rng.integers(0, NUM_ROWS, TUPLES + TUPLES // 50, dtype=np.uint32))[:TUPLES]
    values = rng.standard_normal(len(keys)).astype("<f4")
    found = []
    for begin in range(0, len(keys), CHUNK):
        part = keys[begin : begin + CHUNK].astype("<u4")
        found.append((len(part), part.tobytes() + values[begin : begin + CHUNK].tobytes()))
    return found


def call(connection: http.client.HTTPConnection, path: str, body: bytes, content_type: str) -> None:
    """Sends a request and checks the status of the answer."""
    connection.request("POST", path, body, {"content-type": content_type})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise SystemExit(text.decode())


def send(address: str, rounds: list[str], clients: list[int], barrier: Any, times: Any) -> None:
    """Sends the updates of some clients to each round, one round after the other, and reports begin and end of each."""
    updates = {client: chunks_of(client) for client in clients}
    connection = http.client.HTTPConnection(address, timeout=600)
    connection.connect()
    for name in rounds:
        barrier.wait()
        begin = time.monotonic()
        for client, chunks in updates.items():
            for sequence, (tuples, body) in enumerate(chunks):
                query = f"client_id={client}&submission_id=s&sequence={sequence}&tensor=t&key_encoding=U32"
                last = "&last=true" if sequence == len(chunks) - 1 else ""
                path = f"/v1/{name}/chunks?{query}&key_bytes={4 * tuples}{last}"
                call(connection, path, body, "application/octet-stream")
            commit = json.dumps({"clientId": str(client), "submissionId": "s"}).encode()
            call(connection, f"/v1/{name}/submissions", commit, "application/json")
        times.put((name, begin, time.monotonic()))


def measure_http(address: str, stub: Any, streams: int) -> float:
    """Returns the bytes a second of one turn of HTTP."""
    tensor = pb.TensorSpec(name="t", dtype=pb.DTYPE_FLOAT32, num_rows=NUM_ROWS)
    request = pb.CreateRoundRequest(spec=pb.RoundSpec(tensors=[tensor]))
    rounds = [stub.CreateRound(request).name for _ in range(ROUNDS)]
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(streams)
    times: Any = context.Queue()
    shares = [list(range(i, CLIENTS, streams)) for i in range(streams)]
    processes = [context.Process(target=send, args=(address, rounds, share, barrier, times)) for share in shares]
    for process in processes:
        process.start()
    taken = [times.get(timeout=600) for _ in range(ROUNDS * streams)]
    for process in processes:
        process.join()
    rates = []
    for name in rounds:
        state = stub.CloseRound(pb.CloseRoundRequest(name=name))
        if state.num_submissions != CLIENTS:
            raise SystemExit(f"http_upload.py: {state.num_submissions} submissions instead of {CLIENTS}")
        spans = [(begin, end) for of, begin, end in taken if of == name]
        rates.append(state.num_bytes / (max(end for _, end in spans) - min(begin for begin, _ in spans)))
        stub.WaitRound(pb.WaitRoundRequest(name=name))
        stub.DeleteRound(pb.DeleteRoundRequest(name=name))
    return statistics.median(rates)


def measure_grpc(loadgen: pathlib.Path, address: str, streams: int) -> float:
    """Returns the bytes a second of one turn of sparseagg-loadgen."""
    command = [str(loadgen), "--target", address, "--workload", "B", "--repetitions", str(ROUNDS)]
    done = subprocess.run([*command, "--streams", str(streams)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"http_upload.py: {done.stderr.strip()}")
    return float(json.loads(done.stdout)["bytes_per_s"])


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=pathlib.Path, required=True)
    parser.add_argument("--loadgen", type=pathlib.Path, required=True)
    parser.add_argument("--streams", type=int, default=4)
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
                stub = make_stub(channel)
                turns: dict[str, list[float]] = {"grpc": [], "http": []}
                for _ in range(arguments.turns):
                    turns["grpc"].append(measure_grpc(arguments.loadgen, found.group(1), arguments.streams))
                    turns["http"].append(measure_http(found.group(2), stub, arguments.streams))
        finally:
            server.terminate()
    medians = {name: statistics.median(rates) for name, rates in turns.items()}
    share = medians["http"] / medians["grpc"]
    print(json.dumps({"bytes_per_second": turns, "medians": medians, "http_share_of_grpc": share}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
