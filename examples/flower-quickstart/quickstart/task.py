"""The network, its data and its training: plain PyTorch."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A network of two convolutions and three linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        """Return the scores of the ten digits."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(x.flatten(1)))
        x = functional.relu(self.fc2(x))
        return self.fc3(x)


def _tensors(images, labels):
    images = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 28, 28)
    return TensorDataset(images / max(1.0, float(images.max())), torch.as_tensor(labels, dtype=torch.long))


def load_train(path, partition_id, num_partitions, limit):
    """Return a client's share of the first training images."""
    with np.load(path) as data:
        part = slice(partition_id, limit, num_partitions)
        return DataLoader(_tensors(data["train_x"][part], data["train_y"][part]), batch_size=32, shuffle=True)


def load_test(path):
    """Return all test images."""
    with np.load(path) as data:
        return DataLoader(_tensors(data["test_x"], data["test_y"]), batch_size=500)


def train(net, loader, epochs, lr, proximal_mu=0.0):
    """Train the network; return the mean loss of the last epoch."""
    start = [parameter.detach().clone() for parameter in net.parameters()]
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    for _ in range(epochs):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images), labels)
            if proximal_mu:
                away = sum(((now - then) ** 2).sum() for now, then in zip(net.parameters(), start, strict=True))
                loss = loss + proximal_mu / 2 * away
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / len(loader)


@torch.no_grad()
def test(net, loader):
    """Return the fraction of images that are classified correctly."""
    net.eval()
    right = sum((net(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)
