"""The command lines of a SuperLink and its SuperNodes, with and without TLS and authentication."""

from dataclasses import dataclass
from pathlib import Path

from klms.flower.deployment.certificates import (
    NodeKeys,
    ServerCertificates,
    create_node_keys,
    create_server_certificates,
)
from klms.flower.deployment.environment import Address, program, write_values

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Security:
    """The certificates of the SuperLink and one key pair per SuperNode."""

    tls: ServerCertificates
    keys: list[NodeKeys]

    @classmethod
    def create(cls, superlink: Path, nodes: list[Path]) -> "Security":
        """Create new certificates and keys in the folders of their owners."""
        return cls(create_server_certificates(superlink), [create_node_keys(node) for node in nodes])


def superlink(port: int, security: Security | None, *, simulated: bool) -> list[str]:
    """Return the command of a SuperLink that has all its APIs on one port and keeps its state in memory.

    Its state ends with it: SuperNodes of an earlier SuperLink would count as online for up to a minute.
    """
    command = [program("flower-superlink"), "--host", HOST, "--port", str(port)]
    command += ["--disable-runtime-dependency-installation", *(["--simulation"] if simulated else [])]
    if security is None:
        return [*command, "--insecure"]
    tls = security.tls
    command += ["--ssl-ca-certfile", str(tls.authority), "--ssl-certfile", str(tls.certificate)]
    return [*command, "--ssl-keyfile", str(tls.key), "--enable-supernode-auth"]


def supernode(folder: Path, port: int, link: Address, security: Security | None, n: int, nodes: int) -> list[str]:
    """Return the command of SuperNode `n` of `nodes`, which connects to `link` and talks to its apps on `port`."""
    values = write_values(folder / "node.toml", {"partition-id": n, "num-partitions": nodes})
    command = [program("flower-supernode"), "--superlink", f"{link[0]}:{link[1]}", "--node-config", str(values)]
    command += ["--host", HOST, "--port", str(port)]
    if security is None:
        return [*command, "--insecure"]
    command += ["--root-certificates", str(security.tls.authority)]
    return [*command, "--auth-supernode-private-key", str(security.keys[n].private)]
