"""sparseagg's Flower strategy beside Flower's own FedAvg: memory, time, bytes, and hashes of repeated runs.

    flower_side_by_side.py --out bench/results/flower.json [--part server hashes wire] [--clients 50]

Runs in an environment with flwr[simulation] and sparseagg (make test-integrations makes one). Three parts:

server  one aggregation of a table of 1 M × 64 float32, of which each of 50 clients changes 5000 rows. A strategy runs
        its own ``start`` in a process of its own (flower_contestant.py), with clients that are files. Stock needs
        14 GB for it: Flower keeps all replies until ``aggregate_train``. Stock runs one round, since in a second one
        ``Strategy.start`` would keep the replies of both. Bytes are those of the objects that Flower pushes, for
        all clients: of stock one message times clients, of sparseagg every message.
hashes  one job of two rounds in Flower's simulation with 50 clients, in ten processes: how many different models.
wire    the same bytes on a real connection: SuperNodes reach a SuperLink through a proxy that counts, a smaller table.
        Jobs of one and of three rounds; the difference is two rounds after the first, which sends the whole model.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import platform
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
SUPPORT = HERE.parents[1] / "tests" / "integrations" / "flower"
sys.path.insert(0, str(SUPPORT))
sys.path.insert(0, str(HERE.parent / "common"))
import json_lines  # noqa: E402

SERVER_RUNS = [
    ("stock", "uniform", "changed", 1),
    ("sparse", "uniform", "changed", 3),
    ("sparse", "zipf", "changed", 3),
    ("sparse", "uniform", "used", 3),
    ("sparse", "zipf", "used", 3),
]

HASH_JOB = """
import hashlib, sys
sys.path.insert(0, {support!r})
import jobs
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sparseagg.flower import SparseFedAvg, sparse_mod
own = dict(min_train_nodes={clients}, fraction_evaluate=0.0)
strategies = {{"sparseagg": SparseFedAvg(sparse=["embedding.weight"], **own), "stock": FedAvg(**own)}}
app = ServerApp()

@app.main()
def main(grid, context):
    for name, strategy in strategies.items():
        record = ArrayRecord({{name: Array(array) for name, array in jobs.initial_model().items()}})
        arrays = strategy.start(grid, record, num_rounds=2).arrays
        data = b"".join(arrays[each].numpy().tobytes() for each in sorted(arrays))
        print("HASH", name, hashlib.sha256(data).hexdigest(), flush=True)

client = jobs.make_client_app([sparse_mod])  # which does nothing for FedAvg
run_simulation(app, client, {clients}, backend_config={{"client_resources": {{"num_cpus": 1}}}})
"""

WIRE_SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sparseagg.flower import SparseFedAvg
app = ServerApp()

@app.main()
def main(grid, context):
    table = np.random.default_rng(1).standard_normal(({vocabulary}, 64), dtype=np.float32)
    own = dict(min_train_nodes={nodes}, min_available_nodes={nodes}, fraction_evaluate=0.0)
    strategy = {strategy}
    strategy.start(grid, ArrayRecord({{"embedding.weight": Array(table)}}), num_rounds={rounds}, timeout=200)
"""

WIRE_CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sparseagg.flower import sparse_mod
app = ClientApp(mods=[sparse_mod])

@app.train()
def train(message, context):
    table = message.content["arrays"]["embedding.weight"].numpy()
    rng = np.random.default_rng(context.node_config["partition-id"])
    rows = rng.choice(len(table), {count}, replace=False)
    table[rows] += rng.standard_normal((len(rows), 64), dtype=np.float32)
    arrays = ArrayRecord({{"embedding.weight": Array(table)}})
    return Message(RecordDict({{"arrays": arrays, "metrics": MetricRecord({{"num-examples": 1}})}}), reply_to=message)
"""


def server_part(clients: int) -> list[dict[str, Any]]:
    """Part server."""
    found = []
    for contestant, rows, rows_down, rounds in SERVER_RUNS:
        command = [sys.executable, str(HERE / "flower_contestant.py"), contestant, "--rows", rows]
        command += ["--clients", str(clients), "--rounds", str(rounds), "--rows-down", rows_down]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
    return found


def hashes_part(clients: int, runs: int) -> dict[str, Any]:
    """Part hashes."""
    seen: dict[str, set[str]] = {"sparseagg": set(), "stock": set()}
    code = HASH_JOB.format(support=str(SUPPORT), clients=clients)
    for _ in range(runs):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("HASH")]
        if [name for name, _ in found] != list(seen):
            raise RuntimeError(done.stderr[-3000:])
        for name, value in found:
            seen[name].add(value)
        print({name: len(values) for name, values in seen.items()}, flush=True)
    return {"clients": clients, "runs": runs, "distinct": {name: len(values) for name, values in seen.items()}}


class CountingProxy:
    """A TCP proxy on loopback that counts bytes up, to the target, and down."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self.up = self.down = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the SuperLink has ended before its SuperNodes
                near.close()
                continue
            for source, sink, is_up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._copy, args=(source, sink, is_up), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, is_up: bool) -> None:
        try:
            while data := source.recv(1 << 18):
                with self._lock:
                    if is_up:
                        self.up += len(data)
                    else:
                        self.down += len(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()


def bytes_of_job(server: str, client: str, nodes: int) -> tuple[int, int]:
    """Runs a job with a SuperLink and SuperNodes; returns the bytes up and down of all SuperNodes' connections."""
    from superlink import SuperLink

    proxies: list[CountingProxy] = []

    def through(address: str) -> str:
        proxies.append(CountingProxy(address))
        return proxies[-1].address

    with tempfile.TemporaryDirectory() as folder, SuperLink(pathlib.Path(folder), nodes, through) as link:
        link.run(server, client, timeout=450)
        return proxies[0].up, proxies[0].down


def wire_part(vocabulary: int, nodes: int, rounds: int, count: int) -> dict[str, Any]:
    """Part wire."""
    found: dict[str, Any] = {"vocabulary": vocabulary, "nodes": nodes, "rounds": rounds, "rows": count}
    for name, strategy in (
        ("sparseagg", 'SparseFedAvg(sparse=["embedding.weight"], **own)'),
        ("stock", "FedAvg(**own)"),
    ):
        totals = []
        for length in (1, rounds):
            server = WIRE_SERVER.format(vocabulary=vocabulary, nodes=nodes, rounds=length, strategy=strategy)
            totals.append(bytes_of_job(server, WIRE_CLIENT.format(count=count), nodes))
        (first_up, first_down), (up, down) = totals
        found[name] = {"up_bytes": up, "down_bytes": down, "first_up_bytes": first_up, "first_down_bytes": first_down}
        found[name]["later_round_bytes"] = round((up + down - first_up - first_down) / (rounds - 1))
        print(name, found[name], flush=True)
    return found


def main() -> int:
    """Runs the parts, and writes what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--part", nargs="+", choices=["server", "hashes", "wire"], default=["server", "hashes", "wire"])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--runs", type=int, default=10, help="of each strategy in part hashes")
    options = parser.parse_args()
    found = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    if "server" in options.part:
        found["server"] = server_part(options.clients)
    if "hashes" in options.part:
        found["hashes"] = hashes_part(options.clients, options.runs)
    if "wire" in options.part:
        found["wire"] = wire_part(100_000, 2, 3, 500)
    packages = ("flwr", "ray", "numpy", "sparseagg")
    found["versions"] = {name: importlib.metadata.version(name) for name in packages}
    found["versions"]["python"] = platform.python_version()
    found["date"] = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    json_lines.write(options.out, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
