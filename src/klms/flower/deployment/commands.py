"""Flower's commands as a deployment gives them, with and without TLS and authentication."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from klms.flower.deployment.certificates import (
    NodeKeys,
    ServerCertificates,
    create_node_keys,
    create_server_certificates,
)
from klms.flower.deployment.environment import CONNECTION, Address, Value, program, write_values

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Security:
    """The SuperLink's certificates, and a key pair for every SuperNode."""

    tls: ServerCertificates
    keys: list[NodeKeys]

    @classmethod
    def create(cls, superlink: Path, nodes: list[Path]) -> "Security":
        """New ones, in the folders of those whose they are."""
        return cls(create_server_certificates(superlink), [create_node_keys(node) for node in nodes])


def superlink(folder: Path, port: int, security: Security | None, *, simulated: bool) -> list[str]:
    """All of its APIs are on one port; its database outlives it. With `simulated`, it plays the nodes itself."""
    command = [program("flower-superlink"), "--host", HOST, "--port", str(port)]
    command += ["--database", str(folder / "state.db"), "--disable-runtime-dependency-installation"]
    command += ["--simulation"] if simulated else []
    if security is None:
        return [*command, "--insecure"]
    tls = security.tls
    command += ["--ssl-ca-certfile", str(tls.authority), "--ssl-certfile", str(tls.certificate)]
    return [*command, "--ssl-keyfile", str(tls.key), "--enable-supernode-auth"]


def supernode(
    folder: Path, port: int, link: Address, config: Mapping[str, Value], security: Security | None, n: int
) -> list[str]:
    """The n-th one, which connects to `link`; on its own port it talks to its apps."""
    values = write_values(folder / "node.toml", config)
    command = [program("flower-supernode"), "--superlink", f"{link[0]}:{link[1]}", "--node-config", str(values)]
    command += ["--host", HOST, "--port", str(port)]
    if security is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(security.tls.authority)]
    return [*command, "--auth-supernode-private-key", str(security.keys[n].private)]


def run(folder: Path, app: Path, config: Mapping[str, Value], simulated: int) -> list[str]:
    """Submits an app, and prints the id of the run as JSON. `simulated` is the number of nodes to play; 0: none."""
    values = write_values(folder / "run.toml", config)
    command = [program("flwr"), "run", str(app), CONNECTION, "--run-config", str(values), "--format", "json"]
    if simulated:
        command += ["--federation-config", f"num-supernodes={simulated} client-resources-num-cpus=1"]
    return command
