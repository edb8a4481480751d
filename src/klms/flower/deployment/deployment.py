"""A Flower deployment on this machine, and the runs on it."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

from klms.errors import DeploymentFailed
from klms.flower.deployment import commands
from klms.flower.deployment.certificates import create_node_keys, create_server_certificate
from klms.flower.deployment.commands import HOST, Value, environment, free_ports, write_connection, write_values
from klms.processes import Guard, Process
from klms.tcp_relay import Relay, WireBytes

SUPERLINK = "superlink"
TICK = 0.5
FIRST_QUESTION = 3.0
"""Seconds until the SuperLink is first asked for the status of a run. Every question doubles the next interval."""


class Deployment:
    """A SuperLink and its SuperNodes, started on entering and ended on leaving.

    The SuperNodes reach the SuperLink through a relay that counts their bytes. Everything is kept in `folder`:
    `superlink`, `node-0`, `node-1`, ... are the working folders of the processes and of the apps they run, each with a
    `log.txt`. With `secure`, TLS and SuperNode authentication are on. With `simulated`, there are no SuperNodes: the
    SuperLink simulates them in processes of its own. `timeout` bounds, in seconds, the start of the processes and every
    request to the SuperLink.
    """

    def __init__(
        self, folder: Path | str, nodes: int, *, secure: bool = False, simulated: bool = False, timeout: float = 120.0
    ) -> None:
        self._folder = Path(folder).resolve()
        self._nodes = [] if simulated else [f"node-{n}" for n in range(nodes)]
        self._simulated = nodes if simulated else 0
        self._secure = secure
        self._timeout = timeout
        self._mark = uuid.uuid4().hex

    def __enter__(self) -> Self:
        try:
            return self._enter()
        except DeploymentFailed:  # another program may have taken a port after it was found free: try other ports
            return self._enter()

    def _enter(self) -> Self:
        self.processes: dict[str, Process] = {}  # by the names of their folders
        self._commands: dict[str, Sequence[str]] = {}
        with ExitStack() as stack:
            stack.enter_context(closing(Guard(f"{self._mark}/")))
            port, *node_ports = free_ports(1 + len(self._nodes))
            self._relay = stack.enter_context(Relay((HOST, port)))
            self.address = self._relay.address  # to which SuperNodes connect
            stack.callback(self._end)
            cli, superlink, *nodes = (self._folder / name for name in ["cli", SUPERLINK, *self._nodes])
            for folder in (cli, superlink, *nodes):
                folder.mkdir(parents=True, exist_ok=True)
            tls = create_server_certificate(superlink) if self._secure else None
            keys = [create_node_keys(node) for node in nodes] if self._secure else []
            certificate = tls.public if tls else None
            write_connection(cli, (HOST, port), certificate)

            self._start(superlink, commands.superlink(port, tls, simulated=bool(self._simulated)))
            self._answers = lambda: commands.answers((HOST, port), certificate)
            self._until(self._answers, "the SuperLink", [SUPERLINK])
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda pair: self._ask("supernode", "register", str(pair.public)), keys))
            for n, (node, node_port) in enumerate(zip(nodes, node_ports, strict=True)):
                identity = (tls.public, keys[n].private) if tls else None
                self._start(node, commands.supernode(node, node_port, self.address, n, len(nodes), identity))
            if nodes:
                self._until(self._nodes_online, "the SuperNodes", [SUPERLINK, *self._nodes])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def submit(self, app: Path | str, run_config: Mapping[str, Value]) -> int:
        """Start a run of an app, which is a folder with a `pyproject.toml`, and return the run's id.

        Flower accepts only those keys in `run_config` that the app's `[tool.flwr.app.config]` has.
        """
        words = ["--run-config", str(write_values(self._folder / "cli" / "run.toml", run_config))]
        if self._simulated:
            words += ["--federation-config", f"num-supernodes={self._simulated} client-resources-num-cpus=1"]
        return int(self._ask("run", *words, str(Path(app).resolve()))["run-id"])

    def status(self, run_id: int, field: str = "status") -> str:
        """Return `pending`, `starting`, `running`, or `finished:` with `completed`, `failed` or `stopped`."""
        return str(self._ask("list", "--run-id", str(run_id))["runs"][0][field])

    def why(self, run_id: int) -> str:
        """Return what Flower says about a run that failed; empty if it did not fail."""
        return self.status(run_id, "status-details")

    def watch(self, run_id: int, timeout: float) -> Iterator[str]:
        """Yield the status of the run about twice per second until the run has ended."""
        deadline = time.monotonic() + timeout
        ask_at = time.monotonic() + FIRST_QUESTION
        status, interval = "pending", 2 * FIRST_QUESTION
        command = [commands.program("flwr"), "log", str(run_id), commands.CONNECTION]
        cli = self._folder / "cli"
        log = Process(command, cli, environment(cli), f"{self._mark}/cli/log-{run_id}/")  # idle; ends with the run
        try:
            while not status.startswith("finished"):
                self._check([SUPERLINK], f"during run {run_id}")
                if time.monotonic() > deadline:
                    raise self._failure(SUPERLINK, f"Run {run_id} is still {status} after {timeout:g} s")
                yield status
                time.sleep(TICK)
                # The log ends with the run, so once the run is running, there is nothing to ask before the log ends.
                if not log.running or (status != "running" and time.monotonic() > ask_at):
                    status = self.status(run_id)
                    ask_at, interval = time.monotonic() + interval, 2 * interval
        finally:
            log.kill()
        yield status

    def wait(self, run_id: int, timeout: float, on_tick: Callable[[], object] = lambda: None) -> str:
        """Return the status of the run when it has ended. Until then, `on_tick` is called about twice per second."""
        status = ""
        for seen in self.watch(run_id, timeout):
            status = seen
            on_tick()
        return status

    def stop(self, run_id: int) -> None:
        self._ask("stop", str(run_id))

    def restart(self, name: str) -> None:
        """Kill a process and start it again: a SuperLink then loses its state, and a SuperNode joins as a new node."""
        self.processes[name].kill()
        self._start(self._folder / name, self._commands[name])
        if name == SUPERLINK:
            self._until(self._answers, "the SuperLink", [SUPERLINK])

    def log(self, name: str) -> str:
        """Return the log of a process (`superlink`, `node-0`, `node-1`, ...) and of its apps."""
        return self.processes[name].log()

    def wire(self) -> WireBytes:
        """Return the bytes between the SuperNodes and the SuperLink so far."""
        return self._relay.counted()

    def _start(self, folder: Path, command: Sequence[str]) -> None:
        mark = f"{self._mark}/{folder.name}/"
        self._commands[folder.name] = command
        self.processes[folder.name] = Process(command, folder, environment(folder / "home"), mark)

    def _ask(self, *words: str) -> dict[str, Any]:
        return commands.ask(self._folder / "cli", f"{self._mark}/cli/", self._timeout, *words)

    def _nodes_online(self) -> bool:
        """Return whether all SuperNodes are online.

        The SuperLink is asked only after enough connections were made, since asking slows down the start of SuperNodes.
        """
        if self._relay.connections < len(self._nodes):
            return False
        seen = [node["status"] for node in self._ask("supernode", "list")["nodes"]]
        return seen.count("online") >= len(self._nodes)

    def _until(self, done: Callable[[], bool], what: str, names: Sequence[str]) -> None:
        """Wait for `what` while the processes with these names run."""
        deadline = time.monotonic() + self._timeout
        while not done():
            self._check(names, f"while waiting for {what}")
            if time.monotonic() > deadline:
                raise self._failure(names[-1], f"Waiting for {what} took more than {self._timeout:g} s")
            time.sleep(TICK)

    def _check(self, names: Sequence[str], when: str) -> None:
        for name in names:
            if not self.processes[name].running:
                raise self._failure(name, f"{name} ended {when}")

    def _failure(self, name: str, what: str) -> DeploymentFailed:
        tail = "\n".join(self.log(name).splitlines()[-30:])
        return DeploymentFailed(f"{what}. The log of {name} is in {self._folder / name}; it ends with:\n{tail}")

    def _end(self) -> None:
        """End the SuperNodes first, all at once, so that they can still sign off from the SuperLink."""
        for name in self.processes.keys() - {SUPERLINK}:
            self.processes[name].terminate()
        for process in reversed(self.processes.values()):
            process.stop()
