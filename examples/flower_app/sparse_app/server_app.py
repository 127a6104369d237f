"""The server: FedAvg of a model on a sparseagg server, of which clients read and send rows."""

import hashlib

import numpy as np
import sparseagg as sa
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from sparseagg.flower import SparseFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds of pyproject.toml's config."""
    config = context.run_config
    table = sa.Rows(config["row-width"], num_rows=config["num-rows"])
    with sa.Client(config["server"]) as server:
        model = server.model(f"run-{context.run_id}", tensors={"table": table})
        strategy = SparseFedAvg(model=model, rows_down="used", fraction_evaluate=0.0)
        strategy.start(grid, ArrayRecord(), num_rounds=config["num-server-rounds"])
        (table,) = model.read({"table": ...})
    print("rows that moved:", np.count_nonzero(table.any(axis=1)))
    print("hash of the bits:", hashlib.sha256(table.tobytes()).hexdigest()[:16])
