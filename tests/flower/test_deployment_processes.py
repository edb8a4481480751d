"""Tests of a Flower deployment: the certificates are valid, and no process is left behind."""

import json
import socket
import ssl
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from klms.flower.deployment import Deployment, DeploymentFailed
from klms.flower.deployment import deployment as deployment_module
from klms.flower.deployment.certificates import create_node_keys, create_server_certificate
from tests.support.processes import assert_none_is_left_in, needs_proc, working_in
from tests.support.waiting import FOREVER


def test_the_certificates_are_valid_for_this_machine_only(tmp_path: Path) -> None:
    paths = create_server_certificate(tmp_path)
    certificate = x509.load_pem_x509_certificate(paths.public.read_bytes())
    certificate.verify_directly_issued_by(certificate)
    assert paths.private.stat().st_mode & 0o777 == 0o600

    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(paths.public, paths.private)
    for name, valid in {"localhost": True, "127.0.0.1": True, "example.org": False}.items():
        client = ssl.create_default_context(cafile=str(paths.public))
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        assert handshake(client, server, name) == valid
    assert not handshake(ssl.create_default_context(), server, "localhost")


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    """Return whether a client that connects to `name` trusts the server."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    for _ in range(5):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return True


def test_the_keys_of_a_node_are_a_pair(tmp_path: Path) -> None:
    keys = create_node_keys(tmp_path)
    assert keys.private.stat().st_mode & 0o777 == 0o600
    private = load_ssh_private_key(keys.private.read_bytes(), None)
    assert private.public_key() == load_ssh_public_key(keys.public.read_bytes())


PROJECT = """
[project]
name = "probe"
version = "1.0.0"
description = "Sends a few bytes to every node"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "klms"

[tool.flwr.app.components]
serverapp = "probe:server"
clientapp = "probe:client"

[tool.flwr.app.config]
out = ""
wait = false
"""

PROBE = """
import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    while context.run_config["wait"]:
        time.sleep(1)
    nodes = list(grid.get_node_ids())
    content = RecordDict({"probe": ConfigRecord({"bytes": b"abc"})})
    sent = [Message(content, dst_node_id=node, message_type=MessageType.QUERY) for node in nodes]
    replies = [message.content["probe"] for message in grid.send_and_receive(sent, timeout=3600)]
    answers = {str(reply["partition"]): reply["bytes"].decode() for reply in replies}
    Path(context.run_config["out"]).write_text(json.dumps(answers))


@client.query()
def query(message, context):
    reply = {"bytes": message.content["probe"]["bytes"][::-1], "partition": context.node_config["partition-id"]}
    return Message(RecordDict({"probe": ConfigRecord(reply)}), reply_to=message)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "probe.py").write_text(PROBE)
    return folder


@needs_proc
@pytest.mark.parametrize("secure", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["secure", "plain"])
def test_an_app_runs_on_all_nodes_and_no_process_is_left(app: Path, tmp_path: Path, secure: bool) -> None:
    folder, out, ticks = tmp_path / "deployment", tmp_path / "out.json", []
    with Deployment(folder, 2, secure=secure, timeout=FOREVER) as deployment:
        before = deployment.wire()
        run = deployment.submit(app, {"out": str(out)})
        status = deployment.wait(run, FOREVER, lambda: ticks.append(None))
        assert status == "finished:completed", deployment.why(run) + deployment.log("superlink")
        assert json.loads(out.read_text()) == {"0": "cba", "1": "cba"}
        spent = deployment.wire() - before
        assert spent.up > 0
        assert spent.down > 0
        assert ticks
        assert "flwr-clientapp" in deployment.log("node-1")
        assert speaks_plain_http(deployment) != secure
        assert len(working_in(folder)) >= 6  # the SuperLink, two SuperNodes, and a SuperExec for each

        stopped = deployment.submit(app, {"wait": True})
        deployment.stop(stopped)
        assert deployment.wait(stopped, FOREVER) == "finished:stopped"
        with pytest.raises(DeploymentFailed, match="flwr stop"):
            deployment.stop(stopped)
    assert_none_is_left_in(folder)


def speaks_plain_http(deployment: Deployment) -> bool:
    connection = HTTPConnection(*deployment.address, timeout=FOREVER)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


@needs_proc
def test_a_superlink_that_does_not_start_shows_its_log_and_leaves_no_process(tmp_path: Path, monkeypatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setattr(deployment_module, "free_ports", lambda count: [taken.getsockname()[1]] * count)
        with pytest.raises(DeploymentFailed, match=r"superlink ended(.|\n)*in use"):
            Deployment(tmp_path, 1, timeout=FOREVER).__enter__()
    assert_none_is_left_in(tmp_path)
