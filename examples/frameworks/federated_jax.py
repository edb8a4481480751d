"""FedAvg in JAX through the exchange: an MLP on MNIST, four clients, both directions coded.

    pip install klms jax
    klms data get mnist
    python examples/frameworks/federated_jax.py

`klms.Server` and `klms.Client` take flat dictionaries of arrays. `named` makes one of any pytree, `tree` undoes that.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_unflatten

import klms
from klms.data import load

CLIENTS, BATCH, LEARNING_RATE = 4, 64, 0.1


def named(params) -> dict[str, jax.Array]:
    """Return the leaves of a pytree by their paths."""
    leaves, _ = tree_flatten_with_path(params)
    return {keystr(path): leaf for path, leaf in leaves}


def tree(arrays: dict[str, np.ndarray], like):
    """Return arrays as a pytree with the structure and the types of another."""
    leaves, structure = tree_flatten_with_path(like)
    return tree_unflatten(structure, [jnp.asarray(arrays[keystr(path)], leaf.dtype) for path, leaf in leaves])


def initial(key: jax.Array, sizes=(784, 200, 200, 10)):
    """Return the parameters of an MLP before training."""
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [{"w": jax.random.normal(k, (m, n)) * (2 / m) ** 0.5, "b": jnp.zeros(n)} for k, m, n in shapes]


def logits(params, images):
    """Return the outputs of the MLP, before the softmax."""
    for layer in params[:-1]:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    return images @ params[-1]["w"] + params[-1]["b"]


def loss(params, images, labels):
    """Return the mean cross-entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits(params, images)), labels[:, None], axis=1).mean()


@jax.jit
def train(params, images, labels):
    """One epoch of SGD over batches."""

    def step(params, batch):
        gradients = jax.grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradients), None

    return jax.lax.scan(step, params, (images, labels))[0]


def batches(data, client: int, round_: int):
    """Return a client's images and labels in batches, in an order of the round."""
    own = np.arange(client, len(data.train_y), CLIENTS)
    order = np.random.default_rng([round_, client]).permutation(own)
    order = order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)
    return flat(data.train_x)[order], np.asarray(data.train_y)[order]


def flat(images) -> np.ndarray:
    """Return images as rows of numbers from 0 to 1."""
    return np.asarray(images, np.float32).reshape(len(images), -1) / 255


def main() -> None:
    """Run the rounds, with all clients in this process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--bits", type=float, help="bits per parameter, both ways; without it, the quality is constant")
    args = parser.parse_args()

    data = load("mnist")
    params = initial(jax.random.key(0))
    server = klms.Server(named(params), bits_per_parameter=args.bits)
    clients = [klms.Client() for _ in range(CLIENTS)]
    sent = received = 0
    for number in range(1, args.rounds + 1):
        trained = []
        for index, client in enumerate(clients):
            request = server.request(f"client {index}")
            own = tree(client.receive(request), params)
            reply = client.reply(named(train(own, *batches(data, index, number))))
            trained.append(server.receive(f"client {index}", reply))
            sent += len(reply)
            received += len(request)
        server.step({name: np.mean([arrays[name] for arrays in trained], axis=0) for name in trained[0]})
        found = logits(tree(server.model, params), flat(data.test_x)).argmax(1)
        accuracy = float((found == np.asarray(data.test_y)).mean())
        print(f"round {number}: accuracy {accuracy:.4f}, {sent:,} bytes sent and {received:,} received", flush=True)
    full = 4 * sum(leaf.size for leaf in jax.tree.leaves(params)) * CLIENTS * args.rounds
    print(f"float32 would have taken {full:,} bytes each way")


if __name__ == "__main__":
    main()
