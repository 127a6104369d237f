"""One contestant of the dense benchmark: averages dense arrays of several clients, and prints a line of JSON.

    dense_contestant.py NAME --elements N --clients K [--server PATH]

Clients come one after another, as on a coordinator that adds updates as they arrive; making their random arrays is not
timed. Every 997th element of the mean is checked against a sum in float64, in the order of the clients, before
anything is printed. Memory is the highest resident size of this process (and of the server that it started), less what
was resident before the first client.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

SEED = 20261124
CHECKED = slice(0, None, 997)
NAME = "weight"

Clients = Iterator[tuple[int, np.ndarray[Any, Any], float]]
Timed = Callable[[Callable[[], Any]], Any]


class Watch:
    """Sums up the seconds of the calls that it makes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, call: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        try:
            return call()
        finally:
            self.seconds += time.perf_counter() - begun


def array_of(client: int, elements: int) -> np.ndarray[Any, Any]:
    """The client's array of normal random values, float32."""
    return np.random.default_rng([SEED, client]).standard_normal(elements, dtype=np.float32)


def numpy_float32(clients: Clients, timed: Timed, sizes: argparse.Namespace) -> np.ndarray[Any, Any]:
    """A running sum in float32, in order of arrival: what a trainer's own aggregation does at its fastest."""
    total = np.zeros(sizes.elements, np.float32)
    scaled = np.empty_like(total)
    weights = 0.0
    for _, array, weight in clients:

        def add(array: Any = array, weight: float = weight) -> None:
            np.multiply(array, np.float32(weight), out=scaled)
            np.add(total, scaled, out=total)

        timed(add)
        weights += weight
    timed(lambda: np.divide(total, np.float32(weights), out=total))
    return total


def numpy_float64(clients: Clients, timed: Timed, sizes: argparse.Namespace) -> np.ndarray[Any, Any]:
    """The same sum in float64."""
    total = np.zeros(sizes.elements)
    scaled = np.empty_like(total)
    weights = 0.0
    for _, array, weight in clients:

        def add(array: Any = array, weight: float = weight) -> None:
            np.multiply(array, weight, out=scaled)
            np.add(total, scaled, out=total)

        timed(add)
        weights += weight
    return timed(lambda: (total / weights).astype(np.float32))


def torch_float32(clients: Clients, timed: Timed, sizes: argparse.Namespace) -> np.ndarray[Any, Any]:
    """torch's add_ with alpha, float32."""
    import torch

    torch.set_num_threads(sizes.threads)
    total = torch.zeros(sizes.elements)
    weights = 0.0
    for _, array, weight in clients:
        tensor = torch.from_numpy(array)
        timed(lambda tensor=tensor, weight=weight: total.add_(tensor, alpha=weight))
        weights += weight
    timed(lambda: total.div_(weights))
    return total.numpy()


def flower(clients: Clients, timed: Timed, sizes: argparse.Namespace) -> np.ndarray[Any, Any]:
    """What FedAvg of flwr.serverapp calls: all replies are kept until the last one is there."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    replies = []
    for _, array, weight in clients:

        def keep(array: Any = array, weight: float = weight) -> None:
            arrays = ArrayRecord({NAME: Array(array)})
            replies.append(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": weight})}))

        timed(keep)
    merged = timed(lambda: aggregate_arrayrecords(replies, "num-examples"))
    return timed(lambda: merged[NAME].numpy())


def nvflare(clients: Clients, timed: Timed, sizes: argparse.Namespace) -> np.ndarray[Any, Any]:
    """What FedAvg of NVFlare adds with, in order of arrival."""
    from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

    helper = WeightedAggregationHelper()
    for client, array, weight in clients:
        timed(lambda array=array, weight=weight, client=client: helper.add({NAME: array}, weight, f"{client}", 0))
    return timed(helper.get_result)[NAME]


def _spec(sizes: argparse.Namespace, numerics: str) -> Any:
    import sparseagg as sa

    options: dict[str, Any] = {"numerics": numerics}
    if numerics == "fixed_point":
        most = float(sizes.clients)
        options.update(value_bound=8 * most, weight_bound=most, max_submissions=sizes.clients)
    tensor = sa.TensorSpec(NAME, "float32", num_rows=sizes.elements, layout="dense")
    return sa.RoundSpec([tensor], op="mean", weighting="by_weight", **options)


def _in_process(numerics: str) -> Callable[..., np.ndarray[Any, Any]]:
    def contestant(clients: Clients, timed: Timed, sizes: argparse.Namespace) -> np.ndarray[Any, Any]:
        import sparseagg as sa

        # With a limit, a canonical sum in order of client ids folds early, and need not keep all arrays.
        limit = 40 * sizes.elements if numerics == "canonical" else None
        aggregator = sa.Aggregator(_spec(sizes, numerics), threads=sizes.threads, memory_limit=limit)
        for client, array, weight in clients:
            update = {NAME: array}
            timed(lambda u=update, w=weight, c=client: aggregator.add(f"{c:08}", u, w))
        return timed(aggregator.finish)[NAME].values

    return contestant


def server(clients: Clients, timed: Timed, sizes: argparse.Namespace) -> np.ndarray[Any, Any]:
    """A server on this machine: upload, merge on arrival, close and download."""
    import sparseagg as sa

    options = ["--memory-limit", str(max(512 << 20, 48 * sizes.elements)), "--max-bytes-per-submission", "0"]
    with sa.Server(program=sizes.server, options=[*options, "--max-tuples-per-submission", "0"]) as process:
        sizes.server_pid = process.pid
        with sa.Client(process.address) as client:
            opened = client.create_round(_spec(sizes, "fixed_point"))
            for number, array, weight in clients:
                timed(lambda n=number, a=array, w=weight: opened.submit(f"{n:08}", {NAME: a}, weight=w))
            values = timed(opened.finish)[NAME].values
        sizes.server_bytes = _memory("VmHWM", process.pid)
    return values


CONTESTANTS: dict[str, Callable[[Clients, Timed, argparse.Namespace], np.ndarray[Any, Any]]] = {
    "numpy float32": numpy_float32,
    "numpy float64": numpy_float64,
    "torch float32": torch_float32,
    "flower": flower,
    "nvflare": nvflare,
    "sparseagg canonical": _in_process("canonical"),
    "sparseagg fixed_point": _in_process("fixed_point"),
    "sparseagg server": server,
}


def _memory(field: str, pid: int | str = "self") -> int:
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 0


def main() -> int:
    """Runs the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=CONTESTANTS)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--server", type=pathlib.Path)
    sizes = parser.parse_args()
    sizes.server_bytes = 0
    checked = np.zeros(len(range(0, sizes.elements, 997)))
    weights = 0.0

    def clients() -> Clients:
        nonlocal weights
        for client in range(sizes.clients):
            array, weight = array_of(client, sizes.elements), float(client % 7 + 1)
            checked[...] += weight * array[CHECKED].astype(np.float64)
            weights += weight
            yield client, array, weight

    before = _memory("VmRSS")
    watch = Watch()
    mean = CONTESTANTS[sizes.name](clients(), watch, sizes)
    reference = (checked / weights).astype(np.float32)
    error = float(np.abs(mean.reshape(-1)[CHECKED].astype(np.float64) - reference).max())
    if mean.size != sizes.elements or error > 1e-5:
        raise SystemExit(f"{sizes.name}: the mean is wrong by {error}")
    found = {
        "name": sizes.name,
        "elements": sizes.elements,
        "clients": sizes.clients,
        "threads": sizes.threads,
        "elements_per_s": sizes.elements * sizes.clients / watch.seconds,
        "seconds": round(watch.seconds, 4),
        "peak_bytes": _memory("VmHWM") - before,
        "server_bytes": sizes.server_bytes,
        "equal_to_float64": bool((mean.reshape(-1)[CHECKED] == reference).all()),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
