"""NVFlare's FedAvg with its own aggregation, and with ours, on a large embedding: memory, time and bytes of the server.

50 dense results of 256 MB are too much for NVFlare's simulator on a small machine. So each case is a process of its
own, in which NVFlare's real FedAvg controller takes the clients' results one by one, as its callback gets them, and
applies the aggregate to the model. The messages of one client are serialised as NVFlare does (FOBS) to count their
bytes, after the real filters; those of the others have the same size. Nothing is sent over a network.

    .venv-integrations/nvflare/bin/python bench/coordinators/nvflare_side_by_side.py --out bench/results/nvflare.json
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

NAME = "embedding.weight"
MB = 1e6


@functools.lru_cache
def popularity(name: str, rows: int) -> Any:
    """Returns the probability of each row to be touched; None for equal ones."""
    if name == "uniform":
        return None
    weights = np.arange(1, rows + 1) ** -1.1
    return np.random.default_rng(0).permutation(weights / weights.sum())


def touched(args: argparse.Namespace, number: int, client: int) -> tuple[Any, Any]:
    """Returns the rows that a client touches in a round, ascending, and their changes."""
    rng = np.random.default_rng([args.seed, number, client])
    keys = np.sort(rng.choice(args.rows, args.touched, replace=False, p=popularity(args.popularity, args.rows)))
    return keys, rng.standard_normal((args.touched, args.width), np.float32) * np.float32(1e-3)


def peak_mb() -> float:
    """Returns the largest resident memory of this process since ``reset_peak``."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / MB


def reset_peak() -> float:
    """Sets the peak to what is resident now, and returns that."""
    pathlib.Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_mb()


def message_mb(dxo: Any) -> float:
    """Returns the size of a message in NVFlare's serialisation."""
    from nvflare.app_common.decomposers.numpy_decomposers import NumpyArrayDecomposer
    from nvflare.fuel.utils import fobs

    fobs.register(NumpyArrayDecomposer)
    return len(fobs.dumps(dxo.to_shareable())) / MB


def result_of(args: argparse.Namespace, number: int, client: int, model: Any) -> Any:
    """Returns a client's result as the server gets it."""
    from nvflare.app_common.abstract.fl_model import FLModel

    keys, rows = touched(args, number, client)
    meta = {"client_name": f"site-{client:03}", "NUM_STEPS_CURRENT_ROUND": 1 + client % 7}
    if args.case == "sparseagg":
        return FLModel("DIFF", {NAME + ":keys": keys, NAME + ":rows": rows}, current_round=number, meta=meta)
    weights = model.params[NAME].copy()
    weights[keys] += rows
    return FLModel("FULL", {NAME: weights}, current_round=number, meta=meta)


def start_round(controller: Any, number: int, model: Any) -> None:
    """Does what FedAvg.run does before it sends the model."""
    from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

    controller.current_round, controller._received_count, controller._params_type = number, 0, None
    if controller.aggregator:
        controller.aggregator.reset_stats()
        controller.aggregator.set_model(model.params)
    else:
        controller._aggr_helper, controller._aggr_metrics_helper = (WeightedAggregationHelper() for _ in range(2))
        controller._all_metrics = True


def down_mb(downlink: Any, task: Any, version: str) -> tuple[float, float, str]:
    """Returns the size of the task of a client with this version, the filter's seconds, and the new version."""
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from sparseagg.nvflare.filters import VERSION

    context, peer = FLContext(), FLContext()
    peer.set_prop(VERSION, version, private=False)
    context.set_peer_context(peer)
    start = time.perf_counter()
    sent = downlink.process_dxo(task, Shareable(), context)
    return message_mb(sent), time.perf_counter() - start, sent.meta[VERSION]


def serve(args: argparse.Namespace) -> dict[str, Any]:
    """Runs the rounds of one case in this process, and returns the figures of the last one."""
    import sparseagg.nvflare as ours
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.abstract.fl_model import FLModel
    from nvflare.app_common.utils.fl_model_utils import FLModelUtils
    from nvflare.app_common.workflows.fedavg import FedAvg

    is_sparse = args.case == "sparseagg"
    aggregator = ours.SparseAggregator(sparse=[NAME]) if is_sparse else None
    controller = FedAvg(num_clients=args.clients, num_rounds=args.rounds, aggregator=aggregator)
    controller.fl_ctx = FLContext()
    if aggregator:
        aggregator.fl_ctx = controller.fl_ctx
    downlink, version = ours.SendChangedRows([NAME]), ""

    initial = np.random.default_rng(args.seed).standard_normal((args.rows, args.width), np.float32)
    model = FLModel(params={NAME: initial})
    figures: dict[str, Any] = {}
    before, peak = 0.0, 0.0
    for number in range(args.rounds):
        start_round(controller, number, model)
        task = DXO(DataKind.WEIGHTS, {NAME: model.params[NAME].copy()})  # NVFlare's, until the end of the round
        if is_sparse:
            down, filter_s, version = down_mb(downlink, task, version)
        else:
            down, filter_s = message_mb(task), 0.0
        result = result_of(args, number, 0, model)
        kind = DataKind.WEIGHT_DIFF if is_sparse else DataKind.WEIGHTS
        up = message_mb(DXO(kind, result.params, result.meta))
        del result

        resident, seconds = reset_peak(), 0.0
        before = before or resident  # later, freed memory of earlier rounds is resident, too
        for client in range(args.clients):
            result = result_of(args, number, client, model)
            start = time.perf_counter()
            accepted = controller._aggregate_one_result(result)
            seconds += time.perf_counter() - start
            if not accepted:
                raise RuntimeError(f"client {client} was not accepted")
            del result
        start = time.perf_counter()
        aggregate = controller._get_aggregated_result()
        model = FLModelUtils.update_model(model, aggregate)
        seconds += time.perf_counter() - start
        del aggregate
        peak = max(peak, peak_mb())
        figures = {
            "up_mb": round(up * args.clients, 1),
            "down_mb": round(down * args.clients, 1),
            "aggregation_s": round(seconds, 3),
            "downlink_filter_s": round(filter_s, 3),
            "peak_of_aggregation_mb": round(peak - before, 1),
            "peak_with_model_mb": round(peak, 1),
        }
    np.save(args.model, model.params[NAME])
    return figures


def run_case(args: argparse.Namespace, case: str, workload: str, model: pathlib.Path) -> dict[str, Any]:
    """Runs one case in a process of its own."""
    command = [sys.executable, __file__, "--case", case, "--popularity", workload, "--model", str(model)]
    for option in ("rows", "width", "clients", "touched", "rounds", "seed"):
        command += [f"--{option}", str(getattr(args, option))]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(workload, case, figures, flush=True)
    return figures


def verified(stock: pathlib.Path, ours: pathlib.Path) -> float:
    """Returns the largest difference of the two models; raises if it is more than float32 rounding of 50 clients."""
    left, right = np.load(stock, mmap_mode="r"), np.load(ours, mmap_mode="r")
    largest = max(float(np.abs(left[i : i + 65536] - right[i : i + 65536]).max()) for i in range(0, len(left), 65536))
    if largest > 1e-4:
        raise RuntimeError(f"the models differ by {largest}")
    return largest


def main() -> int:
    """Runs all cases and writes the JSON, or one case if there is a --case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for option, default in (("rows", 1_000_000), ("width", 64), ("clients", 50), ("touched", 5000), ("rounds", 2)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--case", choices=["nvflare", "sparseagg"], help="internal: run this case here")
    parser.add_argument("--popularity", choices=["uniform", "zipf"], default="uniform", help="internal")
    parser.add_argument("--model", help="internal: where the model goes")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(serve(args)))
        return 0

    report: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8")) if args.out and args.out.exists() else {}
    report |= {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cores": os.cpu_count(),
        "versions": {name: importlib.metadata.version(name) for name in ("nvflare", "numpy")},
        "workload": {name: getattr(args, name) for name in ("rows", "width", "clients", "touched", "rounds", "seed")},
        "measured": "FedAvg's controller, fed one result after another in a process of its own; memory of all rounds, "
        "time and bytes of the last; the peak with the model has NVFlare's copy of it, and with sparseagg the filter's",
    }
    for workload in ("uniform", "zipf"):
        with tempfile.TemporaryDirectory() as folder:
            models = {case: pathlib.Path(folder, f"{case}.npy") for case in ("nvflare", "sparseagg")}
            cases = {case: run_case(args, case, workload, path) for case, path in models.items()}
            largest = verified(*models.values())
        stock, ours = cases["nvflare"], cases["sparseagg"]
        ratios = {key: round(stock[key] / ours[key], 1) for key in stock if ours[key] and stock[key]}
        ratios["both_ways_mb"] = round((stock["up_mb"] + stock["down_mb"]) / (ours["up_mb"] + ours["down_mb"]), 1)
        report[workload] = [{"case": case, **figures} for case, figures in cases.items()]
        report[workload] += [{"case": "times less", "largest_difference_of_models": largest, **ratios}]
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "common"))
    import json_lines

    print(json_lines.dumps(report))
    if args.out:
        json_lines.write(args.out, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
