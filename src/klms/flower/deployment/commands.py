"""Flower's programs: their command lines, environment variables, configuration files, ports and answers."""

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import tomli_w

from klms.errors import DeploymentFailed, MissingExtra
from klms.flower.deployment.certificates import KeyPair
from klms.processes import MARK

Value = str | int | float | bool
Address = tuple[str, int]

HOST = "127.0.0.1"
HEALTH_TIMEOUT = 5.0
CONNECTION = "klms"
"""The name of the deployment in Flower's configuration."""
_PROGRAMS = Path(sys.executable).parent


def superlink(port: int, tls: KeyPair | None, *, simulated: bool) -> list[str]:
    """Return the command of a SuperLink that has all its APIs on one port and keeps its state in memory.

    Stored state would outlive the SuperLink, and SuperNodes of an earlier SuperLink would count as online for up to a
    minute.
    """
    command = [program("flower-superlink"), "--host", HOST, "--port", str(port)]
    command += ["--disable-runtime-dependency-installation", *(["--simulation"] if simulated else [])]
    if tls is None:
        return [*command, "--insecure"]
    command += ["--ssl-ca-certfile", str(tls.public), "--ssl-certfile", str(tls.public)]
    return [*command, "--ssl-keyfile", str(tls.private), "--enable-supernode-auth"]


def supernode(
    folder: Path, port: int, link: Address, n: int, nodes: int, identity: tuple[Path, Path] | None
) -> list[str]:
    """Return the command of SuperNode `n` of `nodes`, which connects to `link` and talks to its apps on `port`.

    With an `identity` (the SuperLink's certificate and the SuperNode's private key), the SuperNode uses TLS and
    authenticates.
    """
    values = write_values(folder / "node.toml", {"partition-id": n, "num-partitions": nodes})
    command = [program("flower-supernode"), "--superlink", f"{link[0]}:{link[1]}", "--node-config", str(values)]
    command += ["--host", HOST, "--port", str(port)]
    if identity is None:
        return [*command, "--insecure"]
    return [*command, "--root-certificates", str(identity[0]), "--auth-supernode-private-key", str(identity[1])]


def answers(address: Address, certificate: Path | None) -> bool:
    """Return whether the SuperLink is up; with a certificate, it is asked over TLS."""
    if certificate is None:
        connection = HTTPConnection(*address, timeout=HEALTH_TIMEOUT)
    else:
        tls = ssl.create_default_context(cafile=str(certificate))
        connection = HTTPSConnection(*address, timeout=HEALTH_TIMEOUT, context=tls)
    with closing(connection), suppress(OSError, HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False


def ask(home: Path, mark: str, timeout: float, *words: str) -> dict[str, Any]:
    """Return the JSON answer of a `flwr` command. Ask rarely: a command takes more than a second of CPU time."""
    command = [program("flwr"), *words, CONNECTION, "--format", "json"]
    name, settings = f"`flwr {' '.join(words)}`", {**environment(home), MARK: mark}
    try:
        done = subprocess.run(command, cwd=home, env=settings, capture_output=True, text=True, timeout=timeout)
        answer: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise DeploymentFailed(f"{name} took more than {timeout:g} s.") from error
    except ValueError:
        raise DeploymentFailed(f"{name} failed:\n{done.stdout}{done.stderr}") from None
    if not answer["success"]:
        raise DeploymentFailed(f"{name} failed: {answer.get('error-message', answer)}")
    return answer


def program(name: str) -> str:
    """Return the path of a program of this Python environment."""
    if not (_PROGRAMS / name).exists():
        raise MissingExtra.told(f"there is no {name} next to {sys.executable}", "flower")
    return str(_PROGRAMS / name)


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a process without internet access that keeps apps and configuration in `home`.

    Every process needs a home of its own: Flower considers an app installed as soon as its folder exists, so the second
    of two processes that share a home may load a half-installed app. Flower's other variables are not inherited.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_") or key == "FLWR_LOG_LEVEL"}
    return {
        **kept,
        "PATH": os.pathsep.join([str(_PROGRAMS), kept.get("PATH", os.defpath)]),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), f"{HOST},localhost"),
        "PYTHONUNBUFFERED": "1",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds until the process of an app is started; default: 1
    }


def write_values(path: Path, values: Mapping[str, Value]) -> Path:
    """Write the configuration of a run or a node in the format that Flower's commands read."""
    path.write_text(tomli_w.dumps(values))
    return path


def write_connection(home: Path, address: Address, certificate: Path | None) -> None:
    """Write the configuration that tells `flwr` where the SuperLink is."""
    where: dict[str, Value] = {"address": f"{address[0]}:{address[1]}"}
    where |= {"insecure": True} if certificate is None else {"root-certificates": str(certificate)}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: where}}))


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 on which no program listens."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
