"""What Flower's programs need: their paths, environment variables, configuration files, and free ports."""

import os
import socket
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import tomli_w

from klms.errors import DeploymentFailed

Value = str | int | float | bool
Address = tuple[str, int]

CONNECTION = "klms"
"""The name of the deployment in Flower's configuration."""

_PROGRAMS = Path(sys.executable).parent


def program(name: str) -> str:
    """Return the path of a program of this Python environment."""
    path = _PROGRAMS / name
    if not path.exists():
        raise DeploymentFailed(f"There is no {name} beside {sys.executable}: pip install 'klms[flower]'")
    return str(path)


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a process without internet access that keeps apps and configuration in `home`.

    Every process needs a home of its own: Flower considers an app installed as soon as its folder exists, so of two
    processes that share a home, the second may load half an app. Flower's other variables are not inherited.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_") or key == "FLWR_LOG_LEVEL"}
    return {
        **kept,
        "PATH": os.pathsep.join([str(_PROGRAMS), kept.get("PATH", os.defpath)]),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
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


def write_connection(home: Path, address: Address, authority: Path | None) -> None:
    """Write the configuration that tells `flwr` where the SuperLink is."""
    where: dict[str, Value] = {"address": f"{address[0]}:{address[1]}"}
    where |= {"insecure": True} if authority is None else {"root-certificates": str(authority)}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: where}}))


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 on which no program listens."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
