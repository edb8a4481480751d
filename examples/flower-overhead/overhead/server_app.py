"""A server that times the rounds of FedAvg, inside `Compressed` if bits per parameter are given."""

import json
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from klms.flower import Compressed

SHAPES = {"layer1": (1000, 800), "bias1": (800,), "layer2": (800, 248), "bias2": (248,)}  # a million parameters
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds and write their times."""
    config = context.run_config
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=10, min_train_nodes=10)
    if config["bits-per-parameter"]:
        strategy = Compressed(strategy, scheme=config["scheme"], bits_per_parameter=config["bits-per-parameter"])
    arrays = ArrayRecord({name: Array(np.zeros(shape, dtype=np.float32)) for name, shape in SHAPES.items()})
    ends = []
    result = strategy.start(
        grid, arrays, num_rounds=config["num-server-rounds"], evaluate_fn=lambda number, _: ends.append(time.time())
    )
    metrics = [dict(record) for record in result.train_metrics_clientapp.values()]
    seconds = [after - before for before, after in pairwise(ends)]
    Path(config["results"]).write_text(json.dumps({"seconds": seconds, "metrics": metrics}))
