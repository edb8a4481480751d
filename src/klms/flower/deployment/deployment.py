"""A Flower deployment on this machine, and the runs on it."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from klms.flower.deployment import commands
from klms.flower.deployment.environment import Value, environment
from klms.flower.deployment.errors import DeploymentFailed
from klms.flower.deployment.fleet import SUPERLINK, TICK, Fleet


class Deployment(Fleet):
    """A fleet on which apps are run."""

    def submit(self, app: Path, run_config: Mapping[str, Value]) -> int:
        """Run an app, which is a folder with a `pyproject.toml`; the id of the run.

        Flower takes only such values of `run_config` whose keys are in the app's `[tool.flwr.app.config]`.
        """
        command = commands.run(self._cli, app.resolve(), run_config, self._simulated)
        settings = environment(self._cli)
        try:
            done = subprocess.run(
                command, cwd=self._cli, env=settings, capture_output=True, text=True, timeout=self._timeout
            )
            return int(json.loads(done.stdout)["run-id"])
        except subprocess.TimeoutExpired as error:
            raise self._failure(SUPERLINK, f"`flwr run` took more than {self._timeout:g} s") from error
        except (ValueError, KeyError):
            raise DeploymentFailed(f"`flwr run` did not take {app}:\n{done.stdout}{done.stderr}") from None

    def status(self, run_id: int) -> str:
        """`pending`, `starting`, `running`, or `finished:` and one of `completed`, `failed`, `stopped`."""
        status = self._control.run_status(run_id)
        return f"{status.status}:{status.sub_status}".rstrip(":")

    def why(self, run_id: int) -> str:
        """What Flower says about a run that failed; empty if it did not."""
        return self._control.run_status(run_id).details

    def watch(self, run_id: int, timeout: float) -> Iterator[str]:
        """The status of the run, twice per second, until it has ended."""
        deadline = time.monotonic() + timeout
        while not (status := self.status(run_id)).startswith("finished"):
            self._check([SUPERLINK], f"during run {run_id}")
            if time.monotonic() > deadline:
                raise self._failure(SUPERLINK, f"Run {run_id} is still {status} after {timeout:g} s")
            yield status
            time.sleep(TICK)
        yield status

    def wait(self, run_id: int, timeout: float, on_tick: Callable[[], None] | None = None) -> str:
        """The status of the run when it has ended. Until then, `on_tick` is called twice per second."""
        status = ""
        for seen in self.watch(run_id, timeout):
            status = seen
            if on_tick is not None:
                on_tick()
        return status

    def stop(self, run_id: int) -> None:
        """End a run before its time."""
        self._control.stop_run(run_id)
