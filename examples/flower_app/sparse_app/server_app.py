"""The server: FedAvg, of whose array "table" clients send rows."""

import hashlib

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from sparseagg.flower import SparseFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds of pyproject.toml's config."""
    config = context.run_config
    table = np.zeros((config["num-rows"], config["row-width"]), np.float32)
    strategy = SparseFedAvg(sparse=["table"], fraction_evaluate=0.0)
    initial = ArrayRecord({"table": Array(table)})
    result = strategy.start(grid, initial, num_rounds=config["num-server-rounds"])
    table = result.arrays["table"].numpy()
    print("rows that moved:", np.count_nonzero(table.any(axis=1)))
    print("hash of the bits:", hashlib.sha256(table.tobytes()).hexdigest()[:16])
