"""What the tests of every client share: calls of both shells, specs and updates, hashes of results, and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import re
from collections.abc import Iterator

import numpy as np
import pytest
import sparseagg as sa

SEED = 20
PATIENCE_S = 60
UPDATE = ([1, 2], [1.0, 2.0])


class Settled:
    """A client or round of either shell, each of whose calls has ended when it returns."""

    def __init__(self, inner, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = inner
        self._loop = loop

    def __getattr__(self, name: str):
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        return lambda *arguments, **options: self._settle(found(*arguments, **options))

    def _settle(self, answer):
        if inspect.isawaitable(answer):
            answer = self._loop.run_until_complete(answer)
        elif inspect.isasyncgen(answer):
            answer = self._loop.run_until_complete(all_of(answer))
        if isinstance(answer, (sa.Round, sa.aio.Round, sa.Stream, sa.aio.Stream, sa.Model, sa.aio.Model)):
            return Settled(answer, self._loop)
        return answer


async def all_of(generator) -> list:
    return [each async for each in generator]


@contextlib.contextmanager
def settled(shell: type, *arguments, **options) -> Iterator[Settled]:
    """A client of a shell, ``sa.Client`` or ``sa.aio.Client``, which is closed in the end."""
    loop = asyncio.new_event_loop()
    client = Settled(shell(*arguments, **options), loop)
    try:
        yield client
    finally:
        client.close()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


SHELLS = pytest.mark.parametrize("shell", [sa.Client, sa.aio.Client], ids=["blocking", "asyncio"])


def one(dtype="float32", num_rows=10, row_width=1, **options) -> sa.RoundSpec:
    of_tensor = {key: options.pop(key) for key in ("layout", "modular") if key in options}
    return sa.RoundSpec([sa.TensorSpec("v", dtype, num_rows=num_rows, row_width=row_width, **of_tensor)], **options)


ONE = one()


def digest(result: sa.Result) -> str:
    """A hash of all that a result says of its tensors."""
    hashed = hashlib.blake2b(digest_size=8)
    for name, tensor in result.items():
        shape = tensor.layout, tensor.dtype, tensor.num_rows, tensor.row_width
        hashed.update(repr((name, shape, tensor.fill)).encode())
        for column in (tensor.keys, tensor.values, tensor.counts, tensor.weights, tensor.moments):
            if column is None:
                hashed.update(b"none")
            else:
                hashed.update(f"{column.dtype} {column.shape}".encode() + np.ascontiguousarray(column).tobytes())
    return hashed.hexdigest()


def refusal(call) -> tuple[str, str]:
    """The class and the text of the error that a call raises, without ids and chunk numbers."""
    with pytest.raises(sa.SparseaggError) as caught:
        call()
    text = re.sub(r"[0-9a-f]{32}", "ID", str(caught.value))
    return type(caught.value).__name__, text.replace(", chunk 0", "")


SPECS = {
    "int32 sum": one("int32", 500, 3),
    "int64 coordinate_mean": one("int64", 500, 1, op="coordinate_mean", return_counts=True),
    "uint64 modular": one("uint64", 500, 2, modular=True),
    "float32 canonical": one("float32", 500, 4, return_counts=True, return_weights=True),
    "binned": one("float32", 500, 2, numerics="binned", layout="dense", op="mean", weighting="by_weight"),
    "binned sparse": one("float32", 500, 2, numerics="binned", op="coordinate_mean", weighting="by_weight"),
    "binned float64": one("float64", 500, numerics="binned", layout="dense", return_counts=True),
    "float64 mean by weight": one("float64", 500, 2, op="mean", weighting="by_weight", return_weights=True),
    "bfloat16 hashed keys": one("bfloat16", 0),
    "union": one("float32", 500, op="union"),
    "min": one("float16", 500, 2, op="min"),
    "max": one("int32", 500, op="max", min_contributors=3),
    "median": one("float32", 500, 2, op="median", return_counts=True),
    "trimmed mean by weight": one("float64", 500, op="trimmed_mean", trim_fraction=0.2, weighting="by_weight"),
    "quantile with zeros": one("int64", 500, op="quantile", quantile=0.9, absent="zero", result_dtype="float32"),
    "cut result": one("float32", 500, 4, op="mean", result_top_k=70, result_min_norm=30.0, return_counts=True),
    "cut integers": one("int32", 500, 2, result_top_k=70, return_weights=True),
    "moments": one("float32", 500, 3, op="coordinate_mean", weighting="by_weight", return_moments=True),
    "dense moments": one("int64", 500, 2, op="mean", result_layout="dense", return_moments=True),
    "dense result": one("float32", 500, 2, result_layout="dense", fill=-1.0),
    "auto result": one("float32", 500, result_layout="auto", prune_zeros=True),
    "dense tensor": sa.RoundSpec(
        [
            sa.TensorSpec("v", "float32", num_rows=500, row_width=2, layout="dense"),
            sa.TensorSpec("w", "float32", num_rows=500),
        ],
        op="mean",
    ),
}


def updates_of(spec: sa.RoundSpec, num_clients: int = 12) -> dict[str, tuple[dict, float]]:
    """Random updates and weights by client, the same ones for the same spec; weights are 1 where none is used."""
    rng = np.random.default_rng(SEED)
    updates = {}
    for client in rng.permutation(num_clients):
        update = {}
        for tensor in spec.tensors:
            keys = rng.integers(0, tensor.num_rows or 1 << 63, 60)
            num_rows = tensor.num_rows if tensor.layout == "dense" else len(keys)
            rows = rng.integers(-1000, 1000, (num_rows, tensor.row_width))
            if tensor.modular:
                rows = rows.astype(np.uint64)
            elif "float" in tensor.dtype:
                rows = rows / 7
            update[tensor.name] = rows if tensor.layout == "dense" else (keys, rows)
        weight = float(rng.random())
        updates[f"client {client}"] = update, weight if spec.weighting == "by_weight" else 1.0
    return updates


def merged(at, spec: sa.RoundSpec, **options) -> sa.Result:
    opened = at.create_round(spec)
    for client_id, (update, weight) in updates_of(spec).items():
        opened.submit(client_id, update, weight, **options)
    return opened.finish()
