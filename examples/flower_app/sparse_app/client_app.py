"""The client: trains on its own data, and returns the whole table; the mod sends the rows that differ."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sparseagg.flower import sparse_mod

app = ClientApp(mods=[sparse_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Stands for training: moves the 500 rows that this client uses."""
    table = message.content["arrays"]["table"].numpy().copy()
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    rows = rng.choice(len(table), 500, replace=False)
    table[rows] += 0.1 * (rng.standard_normal((500, table.shape[1])).astype(np.float32) - table[rows])
    arrays = ArrayRecord({"table": Array(table)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 500})}), reply_to=message)
