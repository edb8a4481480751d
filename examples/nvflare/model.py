"""The network: plain PyTorch."""

import torch
from torch import nn
from torch.nn import functional


class SimpleNetwork(nn.Module):
    """A network of two convolutions and three linear layers, for grey images of 28 by 28 pixels."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 4 * 4, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        """Return the scores of the ten classes."""
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(torch.flatten(x, 1)))
        x = functional.relu(self.fc2(x))
        return self.fc3(x)
