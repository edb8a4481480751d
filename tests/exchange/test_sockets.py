"""The example with plain sockets in real processes: a client joins late, one loses its state, and one is killed."""

import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import klms
from examples.sockets import federated

PATHS = [str(Path(federated.__file__).parents[2]), str(Path(klms.__file__).parents[1])]
ENTRIES = 784 * 10 + 10
ROUNDS = 6
QUORUM = 2

SERVER = f"""
import socket
import numpy as np
from examples.sockets.federated import serve

model = {{"weight": np.zeros((784, 10), np.float32), "bias": np.zeros(10, np.float32)}}
with socket.create_server(("127.0.0.1", 0)) as listener:
    print(listener.getsockname()[1], flush=True)
    server = serve(listener, model, rounds={ROUNDS}, quorum={QUORUM}, bits=1)
print("bytes", server.downlink_bytes, server.uplink_bytes)
"""

CLIENT = """
import sys
from pathlib import Path
import numpy as np
from examples.sockets.federated import digest, steps_on, take_part

number, port = int(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(number)
learn = steps_on(rng.random((100, 784), dtype=np.float32), rng.integers(0, 10, 100))

def train(model):
    print("trains", digest(model), flush=True)
    sys.stdin.readline()
    return learn(model)

print("ready", flush=True)
for _ in sys.stdin:
    take_part(("127.0.0.1", port), f"client {number}", Path(f"client-{number}.state"), train)
    print("done", flush=True)
"""


class Peer:
    """A process that is told what to do, line by line, and tells what it has done."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def read(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the process has ended"
        return line.split()

    def tell(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def come(self) -> str:
        """Connect to the server, and return the digest of the model that the client trains."""
        self.tell()
        said, digest = self.read()
        assert said == "trains"
        return digest

    def answer(self) -> None:
        self.tell()
        assert self.read() == ["done"]


@contextmanager
def started(folder: Path, script: str, *words: object) -> Iterator[Peer]:
    command = [sys.executable, "-c", script, *map(str, words)]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True) as one:
        peer = Peer(one)
        try:
            yield peer
        finally:
            peer.kill()


def test_what_a_program_with_sockets_has_to_write_is_short() -> None:
    parts = [federated.serve, federated.exchange, federated.take_part, federated.send, federated.receive]
    assert sum(len(inspect.getsource(part).splitlines()) for part in [*parts, federated.exactly]) <= 60


def test_a_client_waits_for_the_server_to_start_and_ends_with_it(monkeypatch, capsys):
    events = iter([ConnectionRefusedError, ConnectionRefusedError, None, None, ConnectionRefusedError])

    def take_part(*_: object) -> None:
        if error := next(events):
            raise error

    monkeypatch.setattr(federated, "take_part", take_part)
    monkeypatch.setattr(federated.time, "sleep", lambda seconds: None)
    federated.take_part_in_all(("127.0.0.1", 1), "client 0", lambda model: model, patience=30)
    assert next(events, "all used") == "all used"
    assert capsys.readouterr().out == 2 * "client 0 waits for the server\n"


def test_a_client_without_a_server_ends_with_an_error(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(SystemExit, match="client 0: no server"):
        federated.take_part_in_all(address, "client 0", lambda model: model, patience=-1)


def test_rounds_finish_and_models_agree_whatever_happens_to_clients(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(started(tmp_path, SERVER))
        (port,) = server.read()
        clients = [stack.enter_context(started(tmp_path, CLIENT, number, port)) for number in range(3)]

        def play(*who: int) -> None:
            """Play a round; one client after the other, as the server takes them."""
            _, _, *said = server.read()
            for number in who:
                assert ["starts", "from", clients[number].come()] == said
                clients[number].answer()

        for client in clients:
            assert client.read() == ["ready"]
        play(0, 1)
        play(1, 0)
        play(2, 0)  # 2 is new
        clients[0].kill()
        (tmp_path / "client-0.state").unlink()
        clients[0] = stack.enter_context(started(tmp_path, CLIENT, 0, port))
        assert clients[0].read() == ["ready"]
        play(0, 2)  # 0 has lost its state, which the server does not know
        _, _, *said = server.read()
        assert ["starts", "from", clients[1].come()] == said  # it was away for two rounds
        clients[1].kill()
        assert "does not count: the other side has gone" in " ".join(server.read())
        for client in (clients[2], clients[0]):
            assert ["starts", "from", client.come()] == said
            client.answer()
        play(0, 2)
        _, down, up = server.read()
        assert server.process.wait() == 0
    assert 8 * int(up) < 1.1 * ENTRIES * ROUNDS * QUORUM
    snapshot = 4 * ENTRIES
    assert snapshot < int(down) < 2 * snapshot  # one for the client that lost its state; 13 would go out uncompressed
