"""Requests to the SuperLink: its health endpoint, and Flower's own commands, which answer in JSON.

Each command takes more than a second of processor time, which the training would miss, so they are used sparingly.
"""

import json
import ssl
import subprocess
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from klms.errors import DeploymentFailed
from klms.flower.deployment import guard
from klms.flower.deployment.environment import CONNECTION, Address, Value, environment, program, write_values
from klms.flower.deployment.processes import Process

HEALTH_TIMEOUT = 5.0


class Control:
    """The SuperLink that the configuration in `folder` names, with TLS if `authority` is the path of a certificate."""

    def __init__(self, folder: Path, address: Address, authority: Path | None, mark: str, timeout: float) -> None:
        self._folder = folder
        self._address = address
        self._tls = None if authority is None else ssl.create_default_context(cafile=str(authority))
        self._mark = mark
        self._timeout = timeout

    def answers(self) -> bool:
        """Return True once the SuperLink is up."""
        if self._tls is None:
            connection = HTTPConnection(*self._address, timeout=HEALTH_TIMEOUT)
        else:
            connection = HTTPSConnection(*self._address, timeout=HEALTH_TIMEOUT, context=self._tls)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()

    def register(self, public_key: Path) -> None:
        """Allow the SuperNode with this key to take part."""
        self._ask("supernode", "register", str(public_key))

    def nodes_online(self) -> int:
        """Count the SuperNodes that are online. A killed SuperNode counts as online for up to a minute."""
        return sum(node["status"] == "online" for node in self._ask("supernode", "list")["nodes"])

    def submit(self, app: Path, config: Mapping[str, Value], simulated: int) -> int:
        """Start a run of an app, on `simulated` simulated nodes if that is not 0, and return the run's id."""
        words = ["--run-config", str(write_values(self._folder / "run.toml", config))]
        if simulated:
            words += ["--federation-config", f"num-supernodes={simulated} client-resources-num-cpus=1"]
        return int(self._ask("run", *words, str(app))["run-id"])

    def run(self, run_id: int) -> dict[str, Any]:
        """Return Flower's description of a run."""
        description: dict[str, Any] = self._ask("list", "--run-id", str(run_id))["runs"][0]
        return description

    def stop(self, run_id: int) -> None:
        """Stop a run."""
        self._ask("stop", str(run_id))

    def follow(self, run_id: int) -> Process:
        """Start a process that copies the log of a run to `log.txt`. It ends with the run and is idle until then."""
        command = [program("flwr"), "log", str(run_id), CONNECTION]
        return Process(command, self._folder, environment(self._folder), f"{self._mark}log-{run_id}/")

    def _ask(self, *words: str) -> dict[str, Any]:
        command = [program("flwr"), *words, CONNECTION, "--format", "json"]
        settings = {**environment(self._folder), guard.MARK: self._mark}
        name = f"`flwr {' '.join(words)}`"
        try:
            done = subprocess.run(
                command, cwd=self._folder, env=settings, capture_output=True, text=True, timeout=self._timeout
            )
            answer: dict[str, Any] = json.loads(done.stdout)
        except subprocess.TimeoutExpired as error:
            raise DeploymentFailed(f"{name} took more than {self._timeout:g} s.") from error
        except ValueError:
            raise DeploymentFailed(f"{name} failed:\n{done.stdout}{done.stderr}") from None
        if not answer["success"]:
            raise DeploymentFailed(f"{name} failed: {answer.get('error-message', answer)}")
        return answer
