import os
import socket
import struct
import threading

import pytest

from klms.tcp_relay import Relay, WireBytes
from tests.support.waiting import wait_until


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.fixture
def echo():
    """A server that reads each connection to its end and sends back what it read, followed by `tail`."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(read_all(connection) + b"tail")
            except ConnectionError:
                continue
            except OSError:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
def test_the_relay_counts_exactly_what_passes_each_way(echo, size: int) -> None:
    sent = os.urandom(size)
    with Relay(echo) as relay:
        for connections in (1, 2):
            with socket.create_connection(relay.address) as connection:
                sender = threading.Thread(target=lambda c=connection: (c.sendall(sent), c.shutdown(socket.SHUT_WR)))
                sender.start()
                assert read_all(connection) == sent + b"tail"
                sender.join()
            assert relay.counted() == WireBytes(up=connections * size, down=connections * (size + 4))


def test_the_relay_survives_resets_and_a_missing_server(echo) -> None:
    with Relay(echo) as relay:
        with socket.create_connection(relay.address) as connection:
            connection.sendall(b"not finished")
            wait_until(lambda: relay.counted().up == 12)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so closing resets
        with socket.create_connection(relay.address) as connection:
            connection.shutdown(socket.SHUT_WR)
            assert read_all(connection) == b"tail"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()
    with Relay(nobody) as relay, socket.create_connection(relay.address) as connection:
        assert connection.recv(1) == b""
