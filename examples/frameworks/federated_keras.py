"""FedAvg in Keras through the exchange: a small CNN on MNIST, four clients, both directions coded.

    pip install klms tensorflow-cpu
    klms data get mnist
    python examples/frameworks/federated_keras.py

`klms.Server` and `klms.Client` take flat dictionaries of arrays: the variables of a Keras model by their paths. This
includes the running averages of batch normalisation, which `model.variables` holds and `trainable_variables` does not.
"""

import argparse
import os

import numpy as np

import klms
from klms.data import load

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras

CLIENTS, BATCH, LEARNING_RATE = 4, 64, 0.05


def network() -> keras.Model:
    """Return a small CNN before training."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(16, 5, strides=2, activation="relu"),
            layers.BatchNormalization(),
            layers.Conv2D(32, 5, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(LEARNING_RATE), loss, metrics=["accuracy"])
    return model


def named(model: keras.Model) -> dict[str, np.ndarray]:
    """Return all variables of a model by their paths."""
    return {variable.path: np.asarray(variable) for variable in model.variables}


def fill(model: keras.Model, arrays: dict[str, np.ndarray]) -> None:
    """Set all variables of a model."""
    for variable in model.variables:
        variable.assign(arrays[variable.path])


def main() -> None:
    """Run the rounds, with all clients in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bits", type=float, help="bits per parameter, both ways; without it, the quality is constant")
    args = parser.parse_args()

    data = load("mnist")
    images, test_images = (half.reshape(-1, 28, 28, 1) / np.float32(255) for half in (data.train_x, data.test_x))
    model = network()
    server = klms.Server(named(model), bits_per_parameter=args.bits)
    clients = [klms.Client() for _ in range(CLIENTS)]
    sent = received = 0
    for number in range(1, args.rounds + 1):
        trained = []
        for index, client in enumerate(clients):
            request = server.request(f"client {index}")
            fill(model, client.receive(request))
            own = slice(index, None, CLIENTS)
            model.fit(images[own], data.train_y[own], batch_size=BATCH, verbose=0)
            reply = client.reply(named(model))
            trained.append(server.receive(f"client {index}", reply))
            sent += len(reply)
            received += len(request)
        server.step({name: np.mean([arrays[name] for arrays in trained], axis=0) for name in trained[0]})
        fill(model, server.model)
        _, accuracy = model.evaluate(test_images, data.test_y, batch_size=500, verbose=0)
        print(f"round {number}: accuracy {accuracy:.4f}, {sent:,} bytes sent and {received:,} received", flush=True)
    full = 4 * model.count_params() * CLIENTS * args.rounds
    print(f"float32 would have taken {full:,} bytes each way")


if __name__ == "__main__":
    main()
