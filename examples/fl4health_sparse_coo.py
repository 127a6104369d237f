"""FL4Health's sparse COO exchange, merged without dense tensors.

    python examples/fl4health_sparse_coo.py

FL4Health's ``SparseCooParameterExchanger`` sends the parameters with the best scores of each tensor: their values and
indices, and the tensors' shapes and names. Its strategy ``FedAvgSparseCooTensor`` makes each client's tensors dense
again, and divides by the examples of all clients that sent something of the tensor. So a parameter that one of two
clients sent is halved.

``merge`` takes and returns the same lists of arrays, and makes no tensor dense. ``op="coordinate_mean"`` is the mean
over the clients that sent a parameter; ``op="mean"`` gives FL4Health's numbers. In FL4Health's server, the change is
``strategy=sparse_strategy()(…)`` for ``strategy=FedAvgSparseCooTensor(…)``; clients do not change. A wrong update is a
failure of its client, which names client, tensor and value; the others count.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
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
    if len(set(names)) != number:
        raise ValueError(f"a name comes twice among {names}")
    columns = (packed[at * number : (at + 1) * number] for at in range(3))
    return {
        name: Part(np.asarray(values), indices, tuple(int(size) for size in shape))
        for name, values, indices, shape in zip(names, *columns)
    }


def pack(parts: dict[str, Part]) -> Arrays:
    """Writes such a list."""
    values, indices, shapes = zip(*parts.values()) if parts else ((), (), ())
    return [*values, *indices, *(np.array(shape) for shape in shapes), np.array(list(parts))]


@contextlib.contextmanager
def one_client(client: str, refused: dict[str, Exception] | None) -> Iterator[None]:
    """Notes an error of any kind (clients send anything) with the client's name; without ``refused``, raises it."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        text = str(error) if repr(client) in str(error) else f"client {client!r}: {error}"
        if refused is None:
            raise sa.InvalidArgumentError(text) from error
        refused[client] = sa.InvalidArgumentError(text)


def flat_keys(name: str, part: Part) -> np.ndarray:
    """Returns the positions of a part's values in the flat tensor."""
    indices = np.asarray(part.indices)
    if indices.dtype.kind not in "iu" or indices.ndim != 2 or indices.shape[1] != len(part.shape):
        raise ValueError(
            f"tensor {name!r}: indices are integers of shape (n, {len(part.shape)}), not {indices.dtype} of shape "
            f"{indices.shape}"
        )
    outside = ((indices < 0) | (indices >= np.array(part.shape))).any(axis=1)
    if outside.any():
        index = tuple(indices[outside][0].tolist())
        raise ValueError(f"tensor {name!r}: index {index} is not in shape {part.shape}")
    return np.ravel_multi_index(tuple(indices.T), part.shape)


def merge(
    updates: Iterable[tuple[str, Arrays, float]],
    op: str = "coordinate_mean",
    refused: dict[str, Exception] | None = None,
) -> Arrays:
    """Merges the packed updates of clients, given as (client id, arrays, number of examples).

    A tensor is merged among the clients that sent some of it. Zeros are left out, as FL4Health does. The order of the
    updates does not matter: sums are taken in the order of client ids.

    Args:
        updates: of the clients, whose ids are unique.
        op: "coordinate_mean" or "mean".
        refused: gets the errors of clients whose updates are wrong, and of which nothing counts, by client. None: the
            first of these errors is raised.

    Raises:
        InvalidArgumentError: an update is wrong, or its weight; the message names client, tensor and value.
    """
    read: dict[str, tuple[dict[str, Part], float]] = {}
    for client, packed, examples in updates:
        with one_client(client, refused):
            if client in read:
                raise ValueError("there are two updates of this client")
            read[client] = unpack(packed), examples
    # A tensor's shape and dtype are those of most clients, so that no single one decides.
    forms: dict[str, collections.Counter[tuple[tuple[int, ...], str]]] = {}
    for parts, _ in read.values():
        for name, part in parts.items():
            forms.setdefault(name, collections.Counter())[part.shape, str(part.values.dtype)] += 1
    usual = {name: min(found, key=lambda form: (-found[form], form)) for name, found in forms.items()}
    aggregators: dict[str, sa.Aggregator] = {}
    for client, (parts, examples) in sorted(read.items()):
        added = []
        with one_client(client, refused), contextlib.ExitStack() as undo:
            for name, part in parts.items():
                shape, dtype = usual[name]
                if part.shape != shape:
                    raise ValueError(f"tensor {name!r} has shape {part.shape}, unlike most: {shape}")
                update = {name: (flat_keys(name, part), part.values)}
                aggregator = aggregators.get(name) or new_aggregator(name, shape, dtype, op)
                aggregator.add(client, update, examples)
                undo.callback(aggregator.withdraw, client)
                added.append((name, aggregator))
            undo.pop_all()
            aggregators.update(added)
    merged = {}
    for name, aggregator in sorted(aggregators.items()):
        result = aggregator.finish()[name]
        shape, _ = usual[name]
        indices = np.stack(np.unravel_index(result.keys.astype(np.int64), shape), axis=1)
        merged[name] = Part(result.values, indices, shape)
    return pack(merged)


def new_aggregator(name: str, shape: tuple[int, ...], dtype: str, op: str) -> sa.Aggregator:
    """Returns the aggregator of one tensor: a round of its own, since each has other clients."""
    tensor = sa.TensorSpec(name, dtype, num_rows=int(np.prod(shape)))
    return sa.Aggregator(sa.RoundSpec([tensor], op=op, weighting="by_weight", prune_zeros=True))


def sparse_strategy(op: str = "coordinate_mean") -> type:
    """Returns a subclass of FL4Health's strategy that merges with ``merge``.

    Flower draws new ids of clients for each run. For the same bits in each run, let clients put an id of their own
    among their metrics, as "client".
    """
    from fl4health.strategies.fedavg_sparse_coo_tensor import FedAvgSparseCooTensor
    from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays

    class SparseCooStrategy(FedAvgSparseCooTensor):
        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            refused: dict[str, Exception] = {}
            updates, counted = [], {}
            for proxy, fit in results:
                # The proxy's id is part of it, so that no client can push another out.
                client = f"{fit.metrics.get('client', '')}:{proxy.cid}"
                with one_client(client, refused):
                    examples = fit.num_examples if self.weighted_aggregation else 1
                    updates.append((client, parameters_to_ndarrays(fit.parameters), examples))
                    counted[client] = fit
            merged = merge(updates, op, refused)
            for client, error in refused.items():
                logging.getLogger("flwr").warning("aggregate_fit: %s", error)
                failures.append(error)
                counted.pop(client, None)
            if not counted or (failures and not self.accept_failures):
                return None, {}
            metrics = {}
            if self.fit_metrics_aggregation_fn:
                metrics = self.fit_metrics_aggregation_fn([(fit.num_examples, fit.metrics) for fit in counted.values()])
            return ndarrays_to_parameters(merged), metrics

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
