"""Random specs and updates, for the engine in this process and for a server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import reference
import sparseagg as sa
from every_client import digest

SUMS = ["sum", "mean", "coordinate_mean"]
OPS = [*SUMS, "union", "min", "max"]
ORDER_OPS = ["median", "trimmed_mean", "quantile"]
FLOATS = ["float32", "float16", "bfloat16", "float64"]


def random_tensor(
    rng: np.random.Generator, name: str, ops: Sequence[str] = OPS, takes_binned: bool = True
) -> sa.TensorSpec:
    """``ops``: to choose from. ``takes_binned``: whether sums may be binned."""
    dtype = str(rng.choice([*FLOATS, "int32", "int64", "uint32", "uint64"]))
    num_rows = int(rng.choice([1, 7, 50, 2**32, 2**40, 0]))
    options: dict[str, Any] = {"op": str(rng.choice(ops)), "result_layout": "sparse"}
    if dtype.startswith("uint"):
        options.update(op=str(rng.choice(["sum", "union"])), weighting="uniform", modular=True)
    else:
        if options["op"] != "union" and rng.random() < 0.3:
            options["result_dtype"] = str(rng.choice(["float32", "float64"]))
        if rng.random() < 0.5:
            options["weighting"] = str(rng.choice(["uniform", "by_weight"]))
        options.update(order_options(rng, options["op"]))
    if 0 < num_rows <= 50:
        options["result_layout"] = str(rng.choice(["sparse", "dense", "auto"]))
        options["layout"] = str(rng.choice(["sparse", "sparse", "dense"]))
        options["fill"] = float(rng.integers(0, 3)) if options["result_layout"] != "sparse" else 0.0
        options["on_empty"] = str(rng.choice(["fail", "keep"])) if options["layout"] == "dense" else "keep"
    if options["op"] in SUMS and dtype in FLOATS and rng.random() < 0.4:
        options["numerics"] = "binned" if takes_binned else "canonical"
    if options["result_layout"] == "auto" and rng.random() < 0.5:
        options["dense_threshold"] = float(rng.uniform(0.1, 1.0))
    return sa.TensorSpec(name, dtype, num_rows=num_rows, row_width=int(rng.choice([1, 1, 2, 5])), **options)


def order_options(rng: np.random.Generator, op: str) -> dict[str, Any]:
    """Options of an order statistic; of other ops none."""
    options: dict[str, Any] = {}
    if op in ORDER_OPS:
        options["absent"] = str(rng.choice(["skip", "skip", "zero"]))
    if op == "trimmed_mean":
        options["trim_fraction"] = float(rng.choice([0.0, 0.1, 0.25, 0.3, 0.49999999999999994, rng.uniform(0, 0.5)]))
    elif op == "quantile":
        options["quantile"] = float(rng.choice([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, rng.uniform()]))
    return options


def random_spec(rng: np.random.Generator, ops: Sequence[str] = OPS, takes_binned: bool = True) -> sa.RoundSpec:
    """Returns a spec without an option that nothing uses, which would be refused. Arguments as of random_tensor."""
    tensors = [random_tensor(rng, f"tensor-{i}", ops, takes_binned) for i in range(rng.integers(1, 4))]
    options: dict[str, Any] = {"weighting": str(rng.choice(["uniform", "by_weight"]))}
    if rng.random() < 0.2:
        options["on_nonfinite"] = "propagate"
    return sa.RoundSpec(
        tensors,
        return_counts=True,
        return_weights=True,
        min_contributors=int(rng.integers(1, 4)),
        prune_zeros=bool(rng.random() < 0.3) and any(tensor.op != "union" for tensor in tensors),
        max_submissions=100,
        **options,
    )


def is_weighted(tensors: Sequence[sa.TensorSpec], weighting: str | None, **_: Any) -> bool:
    """Whether a tensor has weights, so that submissions may."""
    return any((tensor.weighting or weighting) == "by_weight" for tensor in tensors)


def weight_for(spec: sa.RoundSpec, weight: float) -> float:
    """Returns the weight, or 1 where none is used."""
    return weight if is_weighted(spec.tensors, spec.weighting) else 1.0


def random_updates(
    rng: np.random.Generator, spec: sa.RoundSpec, pools: Any, num_clients: int, least_weight: int = 0
) -> dict[str, tuple[Any, float]]:
    """Returns an update, with a weight below 8, of each client."""
    return {
        f"client-{i}": (random_update(rng, spec, pools), random_weight(rng, spec, least_weight))
        for i in range(num_clients)
    }


def random_weight(rng: np.random.Generator, spec: sa.RoundSpec, least: int = 0) -> float:
    """Returns a weight below 8 that all tensors take: an integer if a tensor of integers is weighted."""
    whole = any("int" in tensor.dtype and is_weighted([tensor], spec.weighting) for tensor in spec.tensors)
    return weight_for(spec, float(rng.integers(least, 8) if whole or rng.random() < 0.5 else rng.uniform(least, 8)))


def random_values(rng: np.random.Generator, dtype: str, shape: tuple[int, int]) -> np.ndarray:
    if dtype.startswith(("int", "uint")):
        values = rng.integers(-50, 50, shape)
        if dtype == "int64" and rng.random() < 0.2:
            values = values << 56  # sums of some of these leave int64
        return values.astype(dtype)  # negative ones wrap where they are unsigned
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    values[rng.random(shape) < 0.1] = 0.0
    if rng.random() < 0.05:
        values[rng.random(shape) < 0.3] = rng.choice([np.nan, np.inf, -np.inf])
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(dtype)


def random_pools(rng: np.random.Generator, spec: sa.RoundSpec) -> dict[str, np.ndarray]:
    """Keys for each tensor, few enough that clients meet."""
    most = np.uint64(2**64 - 1)
    return {
        tensor.name: rng.integers(0, np.uint64(tensor.num_rows - 1) if tensor.num_rows else most, 30, np.uint64, True)
        for tensor in spec.tensors
    }


def random_update(rng: np.random.Generator, spec: sa.RoundSpec, pools: dict[str, np.ndarray]) -> dict[str, Any]:
    update: dict[str, Any] = {}
    for tensor in spec.tensors:
        if tensor.layout == "dense":
            update[tensor.name] = random_values(rng, tensor.dtype, (tensor.num_rows, tensor.row_width))
        elif rng.random() < 0.9:
            keys = rng.choice(pools[tensor.name], rng.integers(0, 40))
            if rng.random() < 0.3:
                keys.sort()
            update[tensor.name] = (keys, random_values(rng, tensor.dtype, (len(keys), tensor.row_width)))
    return update


def here_and_there(
    rng: np.random.Generator, spec: sa.RoundSpec, moved: Callable[[str, Any], Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns some clients' updates with weights, and the same ones with each tensor as ``moved`` returns it."""
    pools = random_pools(rng, spec)
    here, there = {}, {}
    for i in range(rng.integers(1, 12)):
        update = random_update(rng, spec, pools)
        weight = weight_for(spec, float(rng.integers(0, 8)))
        here[f"client-{i}"] = (update, weight)
        there[f"client-{i}"] = ({name: moved(name, data) for name, data in update.items()}, weight)
    return here, there


def as_reference(spec: sa.RoundSpec, update: dict[str, Any], weight: float) -> reference.Update:
    tensors = {}
    for name, data in update.items():
        keys, rows = data if isinstance(data, tuple) else (None, data)
        if spec.tensor(name).dtype == "bfloat16":
            rows = (rows.astype(np.uint32) << np.uint32(16)).view(np.float32)
        tensors[name] = (keys, rows)
    return reference.Update(tensors, weight)


def error_of(call: Callable[[], Any]) -> type[sa.SparseaggError] | None:
    try:
        call()
    except sa.SparseaggError as error:
        return type(error)
    return None


def check_in_process(
    rng: np.random.Generator, spec: sa.RoundSpec, device: str = "cpu"
) -> tuple[dict[str, reference.Update], int, sa.Result | None]:
    """Merges random updates by an aggregator, and by aggregate with one thread and with two.

    Asserts: all of them end as the reference does, with equal results.

    Returns: the updates that count, how many were refused, and the aggregator's result; None where the merge fails.
    """
    names = [f"client-{i}" for i in range(rng.integers(0, 12))]
    pools = random_pools(rng, spec)
    updates = {name: random_update(rng, spec, pools) for name in names}
    weights = {name: weight_for(spec, float(rng.integers(0, 8))) for name in names}
    expected = {name: as_reference(spec, updates[name], weights[name]) for name in names}
    refusals = {name: error_of(functools.partial(reference.check_update, spec, expected[name])) for name in names}
    accepted = {name: update for name, update in expected.items() if refusals[name] is None}
    failure = error_of(lambda: reference.merge(spec, accepted))

    rng.shuffle(names)
    aggregator = sa.Aggregator(spec, threads=int(rng.integers(1, 3)), device=device)
    for name in names:
        refused = error_of(functools.partial(aggregator.add, name, updates[name], weights[name]))
        # With several tensors, it is open which of two flaws is met first.
        assert refused == refusals[name] or (refused and refusals[name] and len(spec.tensors) > 1), name
    rng.shuffle(names)
    at_once = {name: (updates[name], weights[name]) for name in names if name in accepted}
    calls = [aggregator.finish, *(functools.partial(sa.aggregate, at_once, spec, threads=count) for count in (1, 2))]
    num_refused = len(names) - len(accepted)
    if failure is not None:
        assert [error_of(call) for call in calls] == [failure] * 3
        return accepted, num_refused, None
    results = [call() for call in calls]
    for result in results:
        assert reference.differences(spec, accepted, result) == []
        assert digest(result) == digest(results[0])
    return accepted, num_refused, results[0]
