"""FedAvg over plain sockets, both directions at one bit per parameter: softmax regression on MNIST, NumPy alone.

    python examples/sockets/federated.py server &
    for n in 0 1 2; do python examples/sockets/federated.py client $n & done; wait

`serve`, `exchange` and `take_part` are all that a program with sockets of its own has to write. A client that joins
late, restarts without its state or dies does not harm the others. A client waits for the server to start.
"""

import argparse
import hashlib
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import klms
from klms.data import load

Arrays = dict[str, np.ndarray]


def serve(listener: socket.socket, model: Arrays, *, rounds: int, quorum: int, bits: float) -> klms.Server:
    """Run the rounds, each with the first clients that connect."""
    server = klms.Server(model, bits_per_parameter=bits)
    for number in range(1, rounds + 1):
        print(f"round {number} starts from {digest(server.view)}", flush=True)
        trained: list[Arrays] = []
        while len(trained) < quorum:
            connection, _ = listener.accept()
            with connection:
                try:
                    trained.append(exchange(server, connection))
                except (OSError, klms.KLMSError) as error:
                    print(f"round {number}: a client does not count: {error}", flush=True)
        server.step({name: np.mean([arrays[name] for arrays in trained], axis=0) for name in model})
    return server


def exchange(server: klms.Server, connection: socket.socket) -> Arrays:
    """Return the arrays that one client trained."""
    name = receive(connection).decode()
    send(connection, server.request(name))
    try:
        return server.receive(name, receive(connection))
    except klms.OutOfSync:  # the client lost its state: the next request needs none
        send(connection, server.request(name))
        return server.receive(name, receive(connection))


def take_part(address: tuple[str, int], name: str, state: Path, train: Callable[[Arrays], Arrays]) -> Arrays:
    """Do a client's part of one round, and return the model that it started from."""
    client = klms.Client(state.read_bytes() if state.exists() else b"")
    with socket.create_connection(address) as connection:
        send(connection, name.encode())
        try:
            model = client.receive(receive(connection))
        except klms.OutOfSync as lost:
            send(connection, lost.reply)
            model = client.receive(receive(connection))
        send(connection, client.reply(train(model)))
    state.write_bytes(client.state)
    return model


def send(connection: socket.socket, data: bytes) -> None:
    """Send bytes after their length."""
    connection.sendall(struct.pack("<I", len(data)) + data)


def receive(connection: socket.socket) -> bytes:
    """Undo `send`."""
    (length,) = struct.unpack("<I", exactly(connection, 4))
    return exactly(connection, length)


def exactly(connection: socket.socket, count: int) -> bytes:
    """Return exactly `count` bytes, or raise an error if the other side is gone."""
    data = connection.recv(count, socket.MSG_WAITALL)
    if len(data) < count:
        raise ConnectionError("the other side has gone")
    return data


def digest(model: Arrays) -> str:
    """Return a digest by which models can be compared."""
    joined = b"".join(np.ascontiguousarray(model[name]).tobytes() for name in sorted(model))
    return hashlib.sha256(joined).hexdigest()[:16]


def steps_on(x: np.ndarray, y: np.ndarray, rate: float = 0.1) -> Callable[[Arrays], Arrays]:
    """Return a function that trains softmax regression on these examples: one epoch in batches of 50."""

    def train(model: Arrays) -> Arrays:
        weight, bias = model["weight"], model["bias"]
        for start in range(0, len(y), 50):
            inputs, labels = x[start : start + 50], y[start : start + 50]
            scores = inputs @ weight + bias
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            errors = scores / scores.sum(axis=1, keepdims=True)
            errors[np.arange(len(labels)), labels] -= 1
            weight = weight - rate * inputs.T @ errors / len(labels)
            bias = bias - rate * errors.mean(axis=0)
        return {"weight": weight.astype(np.float32), "bias": bias.astype(np.float32)}

    return train


def examples(half: str, number: int = 0, clients: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return one client's share of MNIST."""
    data = load("mnist")
    x, y = (data.train_x, data.train_y) if half == "train" else (data.test_x, data.test_y)
    return x[number::clients].reshape(-1, 784).astype(np.float32) / 255, y[number::clients].astype(np.int64)


def take_part_in_all(address: tuple[str, int], name: str, train: Callable[[Arrays], Arrays], patience: float) -> None:
    """Take part in every round until the server is gone; wait at most `patience` seconds for it to start."""
    deadline = time.monotonic() + patience
    joined = False
    while True:
        try:
            take_part(address, name, Path(f"{name.replace(' ', '-')}.state"), train)
            joined = True
        except ConnectionRefusedError:
            if joined:  # the server has finished
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{name}: no server on port {address[1]} after {patience:.0f} seconds") from None
            print(f"{name} waits for the server", flush=True)
            time.sleep(1)
        except ConnectionError:  # the server finished during this round
            return


def main() -> None:
    """Run a server or a client."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["server", "client"])
    parser.add_argument("number", type=int, nargs="?", default=0, help="number of a client, from 0")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--bits", type=float, default=1.0)
    parser.add_argument("--port", type=int, default=7800)
    given = parser.parse_args()
    address = ("127.0.0.1", given.port)
    if given.role == "server":
        x, y = examples("test")
        model = {"weight": np.zeros((784, 10), np.float32), "bias": np.zeros(10, np.float32)}
        with socket.create_server(address) as listener:
            server = serve(listener, model, rounds=given.rounds, quorum=given.clients, bits=given.bits)
        right = (x @ server.model["weight"] + server.model["bias"]).argmax(axis=1) == y
        print(f"accuracy {right.mean():.4f}; {server.downlink_bytes:,} bytes down, {server.uplink_bytes:,} up")
    else:
        train = steps_on(*examples("train", given.number, given.clients))
        take_part_in_all(address, f"client {given.number}", train, patience=30)


if __name__ == "__main__":
    main()
