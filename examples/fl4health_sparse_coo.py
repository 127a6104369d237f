"""FL4Health's sparse COO exchange, merged without dense tensors.

    python examples/fl4health_sparse_coo.py

FL4Health's ``SparseCooParameterExchanger`` sends the parameters with the best scores of each tensor: their values and
indices, and the tensors' shapes and names. Its strategy ``FedAvgSparseCooTensor`` makes each client's tensors dense
again, and divides by the examples of all clients that sent something of the tensor. So a parameter that one of two
clients sent is halved.

``merge`` takes and returns the same lists of arrays, and makes no tensor dense. ``op="coordinate_mean"`` is the mean
over the clients that sent a parameter; ``op="mean"`` gives FL4Health's numbers. In FL4Health's server, the change is
``strategy=sparse_strategy()(…)`` for ``strategy=FedAvgSparseCooTensor(…)``; clients do not change.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import sparseagg as sa

Arrays = list[np.ndarray]


class Part(NamedTuple):
    """What one client sent of one tensor: values, indices of shape (n, axes), and the shape of the tensor."""

    values: np.ndarray
    indices: np.ndarray
    shape: tuple[int, ...]


def unpack(packed: Arrays) -> dict[str, Part]:
    """Reads FL4Health's list: the values of all tensors, then all indices, then all shapes, then the names."""
    number, rest = divmod(len(packed) - 1, 3)
    names = packed[-1].tolist()
    if rest or len(names) != number:
        raise ValueError(f"{len(packed)} arrays for {len(names)} names, not three for each and the names")
    columns = (packed[at * number : (at + 1) * number] for at in range(3))
    return {
        name: Part(values, indices, tuple(int(size) for size in shape))
        for name, values, indices, shape in zip(names, *columns)
    }


def pack(parts: dict[str, Part]) -> Arrays:
    """Writes such a list."""
    values, indices, shapes = zip(*parts.values())
    return [*values, *indices, *(np.array(shape) for shape in shapes), np.array(list(parts))]


def merge(updates: Iterable[tuple[str, Arrays, float]], op: str = "coordinate_mean") -> Arrays:
    """Merges the packed updates of clients, given as (client id, arrays, number of examples).

    A tensor is merged among the clients that sent some of it. Zeros are left out, as FL4Health does. The order of the
    updates does not matter: sums are taken in the order of client ids.
    """
    parts: dict[str, dict[str, tuple[Part, float]]] = {}
    for client, packed, examples in updates:
        for name, part in unpack(packed).items():
            parts.setdefault(name, {})[client] = (part, examples)
    merged = {}
    for name, sent in sorted(parts.items()):
        (first, _), *_ = sent.values()
        for client, (part, _) in sent.items():
            if part.shape != first.shape:
                raise ValueError(f"client {client}: {name} has shape {part.shape}, not {first.shape}")
        size = int(np.prod(first.shape))
        spec = sa.RoundSpec(
            [sa.TensorSpec(name, first.values.dtype, size)], op=op, weighting="by_weight", prune_zeros=True
        )
        result = sa.aggregate(
            {
                client: ({name: (np.ravel_multi_index(tuple(part.indices.T), part.shape), part.values)}, examples)
                for client, (part, examples) in sent.items()
            },
            spec,
        )[name]
        indices = np.stack(np.unravel_index(result.keys.astype(np.int64), first.shape), axis=1)
        merged[name] = Part(result.values, indices, first.shape)
    return pack(merged)


def sparse_strategy(op: str = "coordinate_mean") -> type:
    """Returns a subclass of FL4Health's strategy that merges with ``merge``.

    Flower draws new ids of clients for each run. For the same bits in each run, let clients put an id of their own
    among their metrics, as "client".
    """
    from fl4health.strategies.fedavg_sparse_coo_tensor import FedAvgSparseCooTensor
    from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

    class SparseCooStrategy(FedAvgSparseCooTensor):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if not results or (failures and not self.accept_failures):
                return None, {}
            updates = [
                (
                    str(fit.metrics.get("client", proxy.cid)),
                    parameters_to_ndarrays(fit.parameters),
                    fit.num_examples if self.weighted_aggregation else 1,
                )
                for proxy, fit in results
            ]
            metrics = {}
            if self.fit_metrics_aggregation_fn:
                metrics = self.fit_metrics_aggregation_fn([(fit.num_examples, fit.metrics) for _, fit in results])
            return ndarrays_to_parameters(merge(updates, op)), metrics

    return SparseCooStrategy


def densified(updates: Iterable[tuple[str, Arrays, float]]) -> Arrays:
    """What FL4Health's strategy computes, in NumPy and in its way: a dense tensor for each client."""
    dense: dict[str, list[np.ndarray]] = {}
    examples: dict[str, float] = {}
    for _, packed, number in updates:
        for name, part in unpack(packed).items():
            tensor = np.zeros(part.shape, part.values.dtype)
            tensor[tuple(part.indices.T)] = part.values
            dense.setdefault(name, []).append(tensor * tensor.dtype.type(number))
            examples[name] = examples.get(name, 0) + number
    merged = {}
    for name, tensors in dense.items():
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        total = total / total.dtype.type(examples[name])
        merged[name] = Part(total[total.nonzero()], np.stack(total.nonzero(), axis=1), total.shape)
    return pack(merged)


def make_updates(clients: int, shape: tuple[int, int], share: float, seed: int) -> list[tuple[str, Arrays, float]]:
    """Clients that each send a share of one tensor, half of it rows that all have in common."""
    updates = []
    for client in range(clients):
        rng = np.random.default_rng([seed, client])
        size = int(shape[0] * shape[1] * share)
        flat = np.unique(np.concatenate([np.arange(size // 2), rng.integers(0, shape[0] * shape[1], size // 2)]))
        values = rng.standard_normal(len(flat)).astype(np.float32)
        part = Part(values, np.stack(np.unravel_index(flat, shape), axis=1), shape)
        updates.append((f"client-{client}", pack({"layer.weight": part}), 100.0 + client))
    return updates


def measure(way: str) -> dict[str, float]:
    """Merges in this process, and returns seconds and bytes: what the merge adds to the process's peak."""
    updates = make_updates(clients=20, shape=(20_000, 256), share=0.01, seed=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    {"densified": densified, "merge": merge}[way](updates)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def main() -> None:
    """Prints what either way takes, and what dilution does to one parameter."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    print("20 clients, one tensor of 20 000 × 256, 1 % of it from each")
    for way in ("densified", "merge"):
        output = subprocess.run([sys.executable, __file__, way], check=True, capture_output=True, text=True).stdout
        print(
            f"  {way:<10} {json.loads(output)['seconds']:6.3f} s {json.loads(output)['megabytes']:7.0f} MB more memory"
        )
    one = pack({"w": Part(np.array([0.8, 0.4], np.float32), np.array([[0], [1]]), (3,))})
    two = pack({"w": Part(np.array([0.6], np.float32), np.array([[1]]), (3,))})
    updates = [("one", one, 50.0), ("two", two, 50.0)]
    print("Parameters 0.8 and 0.4 of one client, and 0.6 of another, for the second one alone")
    print("  FL4Health        ", densified(updates)[0].tolist())
    for op in ("mean", "coordinate_mean"):
        print(f"  {op:<17}", merge(updates, op)[0].tolist())


if __name__ == "__main__":
    main()
