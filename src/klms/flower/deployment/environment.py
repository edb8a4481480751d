"""What Flower's programs need around them: where they are, their variables, their files, and free ports."""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import tomli_w

from klms.flower.deployment.errors import DeploymentFailed

Value = str | int | float | bool
Address = tuple[str, int]

CONNECTION = "klms"
"""The name of the deployment in Flower's configuration."""


def program(name: str) -> str:
    """A program of the Python environment that runs this."""
    path = _programs() / name
    if not path.exists():
        raise DeploymentFailed(f"There is no {name} beside {sys.executable}: pip install 'klms[flower]'")
    return str(path)


def environment(home: Path) -> dict[str, str]:
    """For a network without internet; `home` is where Flower keeps apps and configuration.

    Every process gets a home of its own: Flower takes an app for installed as soon as its folder is there, so of two
    processes that share one, the second may load half an app. Flower's other settings are not taken over from outside.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_") or key == "FLWR_LOG_LEVEL"}
    return {
        **kept,
        "PATH": os.pathsep.join([str(_programs()), kept.get("PATH", os.defpath)]),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONUNBUFFERED": "1",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",  # seconds until an app's process is started; else one
    }


def write_values(path: Path, values: Mapping[str, Value]) -> Path:
    """A run's or a node's configuration, in the format that Flower's commands read from files."""
    path.write_text(tomli_w.dumps(values))
    return path


def write_connection(home: Path, address: Address, authority: Path | None) -> None:
    """Tell `flwr` where the SuperLink is."""
    where: dict[str, Value] = {"address": f"{address[0]}:{address[1]}"}
    if authority is None:
        where["insecure"] = True
    else:
        where["root-certificates"] = str(authority)
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: where}}))


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens, no two of them the same."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def _programs() -> Path:
    return Path(sys.executable).parent
