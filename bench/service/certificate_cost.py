#!/usr/bin/env python3
r"""What a certificate costs: the server's time to prepare and to merge rounds with and without one, in turns.

    bench/service/certificate_cost.py --server build/dev/service/sparseagg-server -o bench/results/certificates.json

The server's own timeline gives the times, so that neither the client nor the network is in them. Each round's result is
the same with a certificate and without. Wants the package `sparseagg`, and openssl for a key.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import sparseagg as sa
from server_process import Server

CLIENTS = 8
KEYS = 2_000_000  # of each submission, sparse
# Name, spec of the tensor.
WORKLOADS = {
    "sparse, width 1": sa.TensorSpec("t", "float32", num_rows=10_000_000),
    "sparse, width 16": sa.TensorSpec("t", "float32", num_rows=1_000_000, row_width=16),
    "dense": sa.TensorSpec("t", "float32", num_rows=8_000_000, layout="dense"),
}


def make_update(rng: np.random.Generator, tensor: sa.TensorSpec) -> Any:
    """Returns an update of some tens of MB."""
    if tensor.layout == "dense":
        return rng.random(tensor.num_rows, np.float32)
    count = KEYS // tensor.row_width
    keys = np.sort(rng.choice(tensor.num_rows, count, replace=False)).astype(np.uint32)
    return keys, rng.random((count, tensor.row_width) if tensor.row_width > 1 else count, np.float32)


def run(client: sa.Client, tensor: sa.TensorSpec, updates: list[Any], certificate: bool) -> dict[str, Any]:
    """Runs a round; returns seconds of its stages, and the digest of its result."""
    rnd = client.create_round(sa.RoundSpec([tensor], op="sum", certificate=certificate))
    for number, update in enumerate(updates):
        rnd.submit(f"c{number}", {"t": update}, key_encoding="plain")
    result = rnd.finish()["t"]
    timeline = rnd.refresh().timeline
    prepare = next(stage.busy for stage in timeline.stages if stage.stage == "prepare")
    rnd.delete()
    digest = hashlib.sha256(result.values.tobytes()).hexdigest()
    return {"prepare": prepare, "finish": timeline.finish, "result": digest, "result_bytes": result.values.nbytes}


def measure(client: sa.Client, tensor: sa.TensorSpec, repetitions: int) -> dict[str, Any]:
    """Returns the figures of one workload."""
    rng = np.random.default_rng(1)
    updates = [make_update(rng, tensor) for _ in range(CLIENTS)]
    keys = CLIENTS * (tensor.num_rows if tensor.layout == "dense" else KEYS // tensor.row_width)
    hashed = keys * (8 + 4 * tensor.row_width)
    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for each in range(repetitions + 1):  # the first is not counted
        for certificate in (False, True):
            found = run(client, tensor, updates, certificate)
            if each:
                runs[certificate].append(found)
    if len({found["result"] for each in runs.values() for found in each}) != 1:
        raise SystemExit("certificate_cost.py: the results differ")
    medians = {
        name: {certificate: statistics.median(found[name] for found in runs[certificate]) for certificate in runs}
        for name in ("prepare", "finish")
    }
    return {
        "clients": CLIENTS,
        "hashed_bytes": hashed,
        "result_bytes": runs[True][0]["result_bytes"],
        "prepare_s": {"without": round(medians["prepare"][False], 4), "with": round(medians["prepare"][True], 4)},
        "finish_s": {"without": round(medians["finish"][False], 4), "with": round(medians["finish"][True], 4)},
        "leaf_ns_per_hashed_byte": round((medians["prepare"][True] - medians["prepare"][False]) / hashed * 1e9, 3),
        "all_prepare_s": {
            name: [round(found["prepare"], 4) for found in runs[certificate]]
            for name, certificate in (("without", False), ("with", True))
        },
    }


def sha256_ns_per_byte() -> float:
    """Returns what SHA-256 alone takes on one core."""
    data = bytes(1 << 26)
    begin = time.perf_counter()
    hashlib.sha256(data)
    return round((time.perf_counter() - begin) / len(data) * 1e9, 3)


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=pathlib.Path, required=True, help="the sparseagg-server to measure")
    parser.add_argument("--repetitions", type=int, default=5, help="timed rounds of each kind")
    parser.add_argument("--conditions", default="", help="of the machine, for the file")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="the JSON file to write")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        key = f"{folder}/key.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
        with Server(options.server, "--certificate-key", key) as server, sa.Client(server.address) as client:
            found = {name: measure(client, tensor, options.repetitions) for name, tensor in WORKLOADS.items()}
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "conditions": options.conditions,
        "sha256_ns_per_byte": sha256_ns_per_byte(),
        "workloads": found,
    }
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
