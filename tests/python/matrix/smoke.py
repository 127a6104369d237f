"""Tries an installed sparseagg with the versions of its requirements that are installed beside it.

  python smoke.py HOST:PORT

Runs a round on the server at the address, and the same merge in this process where the package has its engine. Prints
a JSON object with the versions. Any other outcome is an exception. scripts/test_matrix.py runs this file in
environments that have nothing but the package and its requirements.
"""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import uuid
from importlib.metadata import version

import numpy as np
import sparseagg as sa
from google.protobuf.internal import api_implementation

SPEC = sa.RoundSpec(
    [
        sa.TensorSpec("emb", "float32", num_rows=100, row_width=2),
        sa.TensorSpec("bias", "float64", num_rows=3, layout="dense"),
    ],
    op="coordinate_mean",
    weighting="by_weight",
    return_counts=True,
)
UPDATES = {
    "a": ({"emb": (np.array([9, 7]), np.array([[3, 4], [1, 2]], np.float32)), "bias": np.zeros(3)}, 1.0),
    "b": ({"emb": (np.array([9]), np.array([[5, 8]], np.float32)), "bias": np.full(3, 4.0)}, 3.0),
}


def check(result: sa.Result) -> None:
    """Compares a result with the mean that ``UPDATES`` have."""
    emb, bias = result["emb"], result["bias"]
    found = (emb.keys.tolist(), emb.values.tolist(), emb.counts.tolist(), bias.values.ravel().tolist())
    expected = ([7, 9], [[1, 2], [4.5, 7]], [1, 2], [3.0] * 3)
    if found != expected:
        raise AssertionError(f"{found} instead of {expected}")


def try_client(address: str) -> str:
    """Runs a round with the client that blocks; returns the server's version."""
    with sa.Client(address) as client:
        opened = client.create_round(SPEC, f"smoke-{uuid.uuid4().hex}")
        for name, (update, weight) in UPDATES.items():
            opened.submit(name, update, weight)
        check(opened.finish())
        opened.delete()
        return client.server_info().version


async def try_asyncio(address: str) -> None:
    """Merges in one call with the client for asyncio."""
    async with sa.aio.Client(address) as client:
        check(await client.aggregate(UPDATES, SPEC))


def try_engine() -> str:
    """Merges in this process; returns the engine, or "none"."""
    try:
        check(sa.aggregate(UPDATES, SPEC))
    except sa.errors.EngineMissingError:
        return "none"
    from sparseagg._internal.base import extension

    return extension.describe()


def main() -> None:
    """Runs the command."""
    address = sys.argv[1]
    server = try_client(address)
    asyncio.run(try_asyncio(address))
    print(
        json.dumps(
            {
                "sparseagg": sa.__version__,
                "server": server,
                "engine": try_engine(),
                "python": platform.python_version(),
                **{name: version(name) for name in ("numpy", "grpcio", "protobuf")},
                "protobuf_implementation": api_implementation.Type(),
            }
        )
    )


if __name__ == "__main__":
    main()
