"""What a deployment asks its SuperLink: a few calls of Flower's Control API, protobuf over HTTP.

The `flwr` command could ask the same, but takes more than a second of processor time for each question, which would be
taken from the training that is waited for.
"""

import ssl
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListNodesResponse,
    ListRunsRequest,
    ListRunsResponse,
    RegisterNodeRequest,
    StopRunRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import RunStatus

from klms.flower.deployment.errors import DeploymentFailed

TIMEOUT = 30.0


class Control:
    """The SuperLink at an address; with TLS if the certificate of its authority is given."""

    def __init__(self, address: tuple[str, int], authority: Path | None = None) -> None:
        self._address = address
        self._tls = None if authority is None else ssl.create_default_context(cafile=str(authority))

    def answers(self) -> bool:
        """True as soon as the SuperLink is up."""
        try:
            status, _ = self._send("GET", "/health")
        except (OSError, HTTPException):
            return False
        return status == 200

    def activations(self) -> set[tuple[int, str]]:
        """The SuperNodes that count as online, and since when. One that was killed does, for up to a minute."""
        return {(node.node_id, node.last_activated_at) for node in self._nodes() if node.status == "online"}

    def online(self, public_key: bytes) -> bool:
        """True if the SuperNode with this key counts as online."""
        return any(node.public_key == public_key and node.status == "online" for node in self._nodes())

    def run_status(self, run_id: int) -> RunStatus:
        """How far a run is."""
        reply = self._post("list-runs", ListRunsRequest(run_id=run_id).SerializeToString())
        runs: ListRunsResponse = ListRunsResponse.FromString(reply)
        status: RunStatus = runs.run_dict[run_id].status
        return status

    def register_node(self, public_key: bytes) -> None:
        """Let the SuperNode with this key take part."""
        self._post("register-node", RegisterNodeRequest(public_key=public_key).SerializeToString())

    def stop_run(self, run_id: int) -> None:
        """End a run before its time."""
        self._post("stop-run", StopRunRequest(run_id=run_id).SerializeToString())

    def _nodes(self) -> Iterable[NodeInfo]:
        reply = self._post("list-nodes", ListNodesRequest().SerializeToString())
        nodes: Iterable[NodeInfo] = ListNodesResponse.FromString(reply).nodes_info
        return nodes

    def _post(self, call: str, request: bytes) -> bytes:
        try:
            status, reply = self._send("POST", f"/v1/control/{call}", request)
        except (OSError, HTTPException) as error:
            raise DeploymentFailed(f"The SuperLink does not answer ({error}); see its log.") from error
        if status != 200:
            raise DeploymentFailed(f"The SuperLink refused {call}: {status} {reply.decode(errors='replace')}")
        return reply

    def _send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        if self._tls is None:
            connection = HTTPConnection(*self._address, timeout=TIMEOUT)
        else:
            connection = HTTPSConnection(*self._address, timeout=TIMEOUT, context=self._tls)
        try:
            connection.request(method, path, body, {"Content-Type": "application/protobuf"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()
