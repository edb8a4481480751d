"""The server: it runs a stock strategy and evaluates the model after every round."""

import json
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedProx, FedYogi, Krum

from quickstart.task import Net, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds and write their history."""
    config = context.run_config
    torch.manual_seed(config["seed"])
    net = Net()
    loader = load_test(config["data"])

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": test(net, loader)})

    adaptive = {"eta": 0.02, "tau": 0.001}
    kinds = {
        "fedavg": (FedAvg, {}),
        "fedmedian": (FedMedian, {}),
        "fedprox": (FedProx, {"proximal_mu": 0.01}),
        "fedadam": (FedAdam, adaptive),
        "fedyogi": (FedYogi, adaptive),
        "krum": (Krum, {"num_malicious_nodes": 1}),
    }
    kind, options = kinds[config["strategy"]]
    strategy = kind(fraction_evaluate=0.0, min_available_nodes=3, **options)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net.state_dict()),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["lr"]}),
        evaluate_fn=evaluate,
    )
    history = {
        "evaluate": {number: dict(record) for number, record in result.evaluate_metrics_serverapp.items()},
        "train": {number: dict(record) for number, record in result.train_metrics_clientapp.items()},
    }
    Path(config["results"]).write_text(json.dumps(history))
