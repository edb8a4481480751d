"""A federation of OpenFL's own aggregator and collaborators in one process: bytes in both directions, and accuracy.

    python federation.py --data digits.npz                            # stock
    python federation.py --data digits.npz --pipeline eden --bits 1
    python federation.py --data digits.npz --pipeline klms --bits 1

Everything that a collaborator sends or receives passes as serialised protobuf messages, whose bytes are counted.
"""

import argparse
import logging
import tempfile
from pathlib import Path

import numpy as np
import openfl.component
import torch
from openfl.component import Aggregator, RandomGroupedAssigner
from openfl.federated.task.runner_pt import PyTorchTaskRunner
from openfl.interface.aggregation_functions import WeightedAverage
from openfl.pipelines import EdenPipeline, NoCompressionPipeline
from openfl.protocols import base_pb2, utils
from openfl.protocols.aggregator_client_interface import AggregatorClientInterface
from openfl.utilities import Metric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from klms.openfl import Collaborator, Pipeline

TASKS = {
    "aggregated_model_validation": {"function": "validate_task", "kwargs": {"apply": "global", "metrics": ["acc"]}},
    "train": {"function": "train_task", "kwargs": {"epochs": 1, "metrics": ["loss"]}},
}


class Images:
    """A collaborator's share of the training images, and all test images."""

    def __init__(self, path, number, collaborators, images):
        with np.load(path) as data:
            own = slice(number, images, collaborators)
            self.train = self._tensors(data["train_x"][own], data["train_y"][own])
            self.valid = self._tensors(data["test_x"], data["test_y"])

    @staticmethod
    def _tensors(images, labels):
        images = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 28, 28)
        return TensorDataset(images / max(1.0, float(images.max())), torch.as_tensor(labels, dtype=torch.long))

    def get_feature_shape(self):
        """Return the shape of an image."""
        return (1, 28, 28)

    def get_train_loader(self):
        """Return the training images in batches."""
        return DataLoader(self.train, batch_size=32, shuffle=True)

    def get_valid_loader(self):
        """Return the test images in batches."""
        return DataLoader(self.valid, batch_size=500)

    def get_train_data_size(self):
        """Return the number of training images."""
        return len(self.train)

    def get_valid_data_size(self):
        """Return the number of test images."""
        return len(self.valid)


class Runner(PyTorchTaskRunner):
    """A network of two convolutions and three linear layers, and its training."""

    def __init__(self, data_loader):
        super().__init__(device="cpu", data_loader=data_loader)
        self.model = nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )
        self.reset_opt_vars()
        self.initialize_tensorkeys_for_functions()

    def reset_opt_vars(self):
        """Forget the state of the optimizer."""
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def train_(self, loader):
        """Train for one epoch."""
        for images, labels in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
        return Metric("loss", np.array(loss.item()))

    @torch.no_grad()
    def validate_(self, loader):
        """Return the fraction of test images that are classified correctly."""
        right = sum((self.model(images).argmax(1) == labels).sum().item() for images, labels in loader)
        return Metric("accuracy", np.array(right / len(loader.dataset)))


class CountingClient(AggregatorClientInterface):
    """A collaborator's connection to an aggregator in the same process, which counts the bytes of all tensors."""

    def __init__(self, aggregator, name):
        self.aggregator = aggregator
        self.name = name
        self.up = 0
        self.down = 0
        self.accuracy = 0.0

    def ping(self):
        """Do nothing: the aggregator is in this process."""

    def get_tasks(self):
        """Return the tasks of this collaborator."""
        return self.aggregator.get_tasks(self.name)

    def get_aggregated_tensor(self, tensor_name, round_number, report, tags, require_lossless):
        """Return a tensor of the aggregator, as the collaborator would have read it from the wire."""
        tensor = self.aggregator.get_aggregated_tensor(
            tensor_name, round_number, report, tuple(tags), require_lossless, requested_by=self.name
        )
        message = tensor.SerializeToString()
        self.down += len(message)
        return base_pb2.NamedTensor.FromString(message)

    def send_local_task_results(self, round_number, task_name, data_size, named_tensors):
        """Hand results to the aggregator, as it would have read them from the wire."""
        messages = [tensor.SerializeToString() for tensor in named_tensors]
        self.up += sum(map(len, messages))
        tensors = [base_pb2.NamedTensor.FromString(message) for message in messages]
        for tensor in tensors:
            if tensor.name == "accuracy":
                self.accuracy = float(np.frombuffer(tensor.data_bytes, np.float32)[0])
        self.aggregator.send_local_task_results(self.name, round_number, task_name, data_size, tensors)

    def send_message_to_server(self, openfl_message, collaborator_name):
        """Refuse: only other frameworks inside OpenFL use this method."""
        raise NotImplementedError


def federate(pipeline, folder, options):
    """Run the federation; return the aggregator, the collaborators' connections and one runner."""
    torch.manual_seed(options.seed)
    names = [f"hospital {number}" for number in range(options.collaborators)]
    runners = [Runner(Images(options.data, n, len(names), options.images)) for n in range(len(names))]
    groups = [{"name": "all", "percentage": 1.0, "tasks": list(TASKS)}]
    aggregation = {"aggregation_type": WeightedAverage()}
    assigner = RandomGroupedAssigner(
        groups,
        tasks=dict.fromkeys(TASKS, aggregation),
        authorized_cols=names,
        rounds_to_train=options.rounds,
        selected_task_group="all",
    )
    aggregator = Aggregator(
        aggregator_uuid="aggregator",
        federation_uuid="federation",
        authorized_cols=names,
        init_state_path=str(folder / "init.pbuf"),
        best_state_path=str(folder / "best.pbuf"),
        last_state_path=str(folder / "last.pbuf"),
        assigner=assigner,
        rounds_to_train=options.rounds,
        compression_pipeline=pipeline(),
        initial_tensor_dict=runners[0].get_tensor_dict(),
        db_store_rounds=2,
        persist_checkpoint=False,
    )
    clients = [CountingClient(aggregator, name) for name in names]
    kind = openfl.component.Collaborator if options.stock_collaborator else Collaborator
    collaborators = [
        kind(
            collaborator_name=client.name,
            aggregator_uuid="aggregator",
            federation_uuid="federation",
            client=client,
            task_runner=runner,
            task_config=TASKS,
            use_delta_updates=True,
            compression_pipeline=pipeline(),
            db_store_rounds=2,
        )
        for client, runner in zip(clients, runners, strict=True)
    ]
    for _ in range(options.rounds):
        for client, collaborator in zip(clients, collaborators, strict=True):
            tasks, number, _, _ = client.get_tasks()
            for task in tasks:
                collaborator.do_task(task, number)
            collaborator.tensor_db.clean_up(2)
    return aggregator, clients, runners[0]


def main():
    """Run one federation and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--pipeline", choices=["stock", "eden", "klms"], default="stock")
    parser.add_argument("--bits", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--collaborators", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stock-collaborator", action="store_true", help="use OpenFL's own collaborator")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    pipelines = {
        "stock": NoCompressionPipeline,
        "eden": lambda: EdenPipeline(n_bits=int(options.bits)),
        "klms": lambda: Pipeline(options.bits),
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        aggregator, clients, runner = federate(pipelines[options.pipeline], folder, options)
        saved = utils.load_proto(str(folder / "last.pbuf"))
        tensors, _ = utils.deconstruct_model_proto(saved, aggregator.compression_pipeline)
        runner.set_tensor_dict(tensors)
        accuracy = float(runner.validate_(runner.data_loader.get_valid_loader()).value)
    up = sum(client.up for client in clients)
    down = sum(client.down for client in clients)
    held = np.mean([client.accuracy for client in clients])
    accuracies = f"accuracy {accuracy:.4f} (saved model), {held:.4f} (at the collaborators, last round)"
    print(f"{options.pipeline} {options.bits:g}: {accuracies}, {up:,} bytes up, {down:,} bytes down")


if __name__ == "__main__":
    main()
