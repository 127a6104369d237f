"""The client: the mod reads the rows that its data uses, and sends them when they are trained."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sparseagg.flower import sparse_mod


def rows_for(context: Context) -> dict[str, np.ndarray]:
    """Stands for data, which uses 500 rows."""
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    return {"table": rng.choice(context.run_config["num-rows"], 500, replace=False)}


app = ClientApp(mods=[sparse_mod(rows_for=rows_for)])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Stands for training: moves these rows, which are in ascending order of their numbers."""
    table = message.content["arrays"]["table"].numpy().copy()
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    table += 0.1 * (rng.standard_normal(table.shape).astype(np.float32) - table)
    arrays = ArrayRecord({"table": Array(table)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 500})}), reply_to=message)
