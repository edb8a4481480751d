"""The client's script: it trains the model that it receives and sends it back."""

import argparse

import numpy as np
import nvflare.client as flare
import torch
from model import SimpleNetwork
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def images_of(data, which):
    """Return the images and labels of one half of the data set."""
    images = torch.as_tensor(data[f"{which}_x"], dtype=torch.float32).reshape(-1, 1, 28, 28)
    return images / max(1.0, float(images.max())), torch.as_tensor(data[f"{which}_y"], dtype=torch.long)


@torch.no_grad()
def evaluate(model, loader):
    """Return the fraction of images that are classified correctly."""
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


def main():
    """Train in every round until the job ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)

    flare.init()
    site = flare.system_info()["site_name"]
    number = int(site.rpartition("-")[2]) - 1
    torch.manual_seed(args.clients * args.seed + number)
    with np.load(args.data) as data:
        images, labels = images_of(data, "train")
        own = slice(number, args.images, args.clients)
        train_loader = DataLoader(TensorDataset(images[own], labels[own]), batch_size=args.batch_size, shuffle=True)
        test_loader = DataLoader(TensorDataset(*images_of(data, "test")), batch_size=500)

    model = SimpleNetwork()
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    while flare.is_running():
        input_model = flare.receive()
        model.load_state_dict(input_model.params)
        accuracy = evaluate(model, test_loader)
        print(f"site = {site}, round = {input_model.current_round}, accuracy = {accuracy:.4f}")
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics={"accuracy": accuracy}))
            continue
        model.train()
        for _ in range(args.epochs):
            for batch, wanted in train_loader:
                optimizer.zero_grad()
                loss(model(batch), wanted).backward()
                optimizer.step()
        steps = args.epochs * len(train_loader)
        flare.send(
            flare.FLModel(
                params=model.state_dict(),
                metrics={"accuracy": accuracy},
                meta={"NUM_STEPS_CURRENT_ROUND": steps},
            )
        )


if __name__ == "__main__":
    main()
