"""Bytes on the wire of NVFlare jobs in the simulator, with NVFlare's aggregation and with ours, sparse both ways.

Each job runs in a network namespace of its own (needs root), whose loopback counts every byte that server and sites
send. Adds its figures to the file that nvflare_side_by_side.py has written.

    .venv-integrations/nvflare/bin/python bench/coordinators/nvflare_wire.py --out bench/results/nvflare.json
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import time
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def start_loopback() -> None:
    """Brings up the loopback of a new network namespace."""
    request = struct.pack("16sh14s", b"lo", _IFF_UP | _IFF_RUNNING, b"")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def loopback_bytes() -> int:
    """Returns the bytes that the namespace's processes have sent, with TCP's and IP's headers."""
    lines = pathlib.Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    (loopback,) = (line.partition(":")[2].split() for line in lines if line.strip().startswith("lo:"))
    return int(loopback[8])


def run_job(args: argparse.Namespace) -> dict[str, Any]:
    """Runs one job in this process's namespace."""
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.client.config import TransferType
    from nvflare.recipe.sim_env import SimEnv
    from nvflare_wire_model import NAME, Table
    from sparseagg.nvflare import SparseAggregator, add_sparse_filters

    options: dict[str, Any] = {}
    if args.case == "sparseagg":
        options = {"aggregator": SparseAggregator(sparse=[NAME]), "params_transfer_type": TransferType.DIFF}
    recipe = FedAvgRecipe(
        name="wire",
        model=Table(args.rows, args.width),
        min_clients=args.sites,
        num_rounds=args.rounds,
        train_script=str(HERE / "nvflare_wire_client.py"),
        train_args=str(args.touched),
        **options,
    )
    if args.case == "sparseagg":
        add_sparse_filters(recipe, sparse=[NAME])
    start_loopback()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        start = time.perf_counter()
        recipe.execute(SimEnv(num_clients=args.sites, workspace_root=folder))
        seconds = time.perf_counter() - start
        (log,) = pathlib.Path(folder).glob("**/server/log.txt")
        if f"Aggregated {args.sites}/{args.sites} results" not in log.read_text(encoding="utf-8"):
            raise RuntimeError("not all sites were aggregated")
    return {"wire_mb": round(loopback_bytes() / 1e6, 2), "seconds": round(seconds, 1)}


def run_case(args: argparse.Namespace, case: str, rounds: int) -> dict[str, Any]:
    """Runs one job in a namespace and process of its own."""
    command = ["unshare", "-n", sys.executable, __file__, "--case", case, "--rounds", str(rounds)]
    for option in ("rows", "width", "sites", "touched"):
        command += [f"--{option}", str(getattr(args, option))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures = {"case": case, "rounds": rounds, **json.loads(done.stdout.splitlines()[-1])}
    print(figures, flush=True)
    return figures


def main() -> int:
    """Runs both cases with few and with more rounds, and adds them to the JSON; or one job, if there is a --case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for option, default in (("rows", 200_000), ("width", 64), ("sites", 8), ("touched", 1000), ("rounds", 3)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--case", choices=["nvflare", "sparseagg"], help="internal: run this job here")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run_job(args)))
        return 0
    runs = [run_case(args, case, rounds) for case in ("nvflare", "sparseagg") for rounds in (1, args.rounds)]
    rounds = args.rounds - 1
    stock_mb, sparse_mb = ((more["wire_mb"] - one["wire_mb"]) / rounds for one, more in (runs[:2], runs[2:]))
    summary = {
        "case": "times less",
        "whole_job": round(runs[1]["wire_mb"] / runs[3]["wire_mb"], 1),
        "a_round_after_the_first": round(stock_mb / sparse_mb, 1),
    }
    report = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    report["wire"] = [{name: getattr(args, name) for name in ("rows", "width", "sites", "touched")}, *runs, summary]
    sys.path.insert(0, str(HERE.parent / "common"))
    import json_lines

    print(json_lines.dumps(report))
    if args.out:
        json_lines.write(args.out, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
