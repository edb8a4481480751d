"""A client that changes its arrays at random instead of training."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from klms.flower import compress

app = ClientApp(mods=[compress()])


@app.train()
def train(msg: Message, context: Context):
    """Take a random step."""
    rng = np.random.default_rng(context.node_config["partition-id"])
    arrays = {}
    for name, array in msg.content["arrays"].items():
        value = array.numpy()
        arrays[name] = Array(value + rng.standard_normal(value.shape, dtype=np.float32) * np.float32(0.01))
    return Message(
        RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}), reply_to=msg
    )
