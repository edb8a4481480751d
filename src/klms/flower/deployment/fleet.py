"""A SuperLink and its SuperNodes on this machine: started, watched, broken and ended."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import TracebackType
from typing import Self

from klms.flower.deployment import commands
from klms.flower.deployment.commands import HOST, Security
from klms.flower.deployment.control import Control
from klms.flower.deployment.environment import Value, environment, free_ports, write_connection
from klms.flower.deployment.errors import DeploymentFailed
from klms.flower.deployment.processes import Guard, Process
from klms.flower.deployment.relay import Relay, WireBytes

SUPERLINK = "superlink"
_ATTEMPTS = 2
TICK = 0.5  # every question to the SuperLink is two lines in its log

NodeConfig = Callable[[int], Mapping[str, Value]]


class Fleet:
    """Starts on entering, ends all it started on leaving. The nodes reach the SuperLink through a relay that counts.

    All is kept in `folder`: `superlink`, `node-0`, `node-1`, ... are the working folders of the processes and of the
    apps they run, each with a `log.txt`. With `secure`, TLS and SuperNode authentication are on. With `simulated` there
    are no SuperNodes: the SuperLink plays them, in processes of its own. Whoever waits, waits for `timeout` seconds at
    most.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        *,
        secure: bool = False,
        simulated: bool = False,
        node_config: NodeConfig | None = None,
        timeout: float = 120.0,
    ) -> None:
        self._folder = folder.resolve()
        self._nodes = range(0 if simulated else nodes)
        self._simulated = nodes if simulated else 0
        self._secure = secure
        self._node_config = node_config or (lambda n: {"partition-id": n, "num-partitions": nodes})
        self._timeout = timeout
        self._mark = uuid.uuid4().hex
        self._processes: dict[str, Process] = {}

    def __enter__(self) -> Self:
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._enter()
            except DeploymentFailed:  # somebody took a port between our finding it free and Flower's listening on it
                continue
        return self._enter()

    def _enter(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(closing(Guard(f"{self._mark}/")))
            port, *node_ports = free_ports(1 + len(self._nodes))
            self._relay = stack.enter_context(Relay((HOST, port)))
            stack.callback(self._end)
            self._prepare(port, node_ports)
            self._start_superlink()
            for keys in self._security.keys if self._security else []:
                self._control.register_node(keys.registered)
            self._start_nodes(self._nodes)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def kill_node(self, n: int) -> None:
        """SIGKILL to a SuperNode and the ClientApp it may be running. The SuperLink notices after about a minute."""
        self._processes[_name(n)].kill()

    def start_node(self, n: int) -> None:
        """Start a SuperNode again after `kill_node`.

        Without `secure`, the SuperLink takes it for a new node, at once. With it, it is known by its key, and refused
        until the SuperLink has noticed that it was gone: this then takes up to a minute.
        """
        if self._processes[_name(n)].running:
            raise DeploymentFailed(f"{_name(n)} is running: kill it first.")
        if self._security is not None:
            key = self._security.keys[n].registered
            self._until(lambda: not self._control.online(key), f"until {_name(n)} counted as gone", [SUPERLINK])
        self._start_nodes([n])

    def kill_server_app(self) -> None:
        """SIGKILL to the process of the running ServerApp."""
        pids = self._processes[SUPERLINK].members("flwr-serverapp")
        if not pids:
            raise DeploymentFailed("No ServerApp is running: wait until the status of its run is `running`.")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    def restart_superlink(self, *, kill: bool = False) -> None:
        """End the SuperLink (with `kill`, by SIGKILL) and the ServerApps it runs; start it with the same database."""
        superlink = self._processes[SUPERLINK]
        if kill:
            superlink.kill()
        superlink.stop()
        self._start_superlink()

    @property
    def address(self) -> tuple[str, int]:
        """Where a SuperNode connects: the relay's address, in front of the SuperLink's."""
        return self._relay.address

    def log(self, name: str) -> str:
        """What a process and its apps have written: `superlink`, `node-0`, `node-1`, ..."""
        return self._processes[name].log()

    def wire(self) -> WireBytes:
        """The bytes between the SuperNodes and the SuperLink so far."""
        return self._relay.counted()

    def _prepare(self, port: int, node_ports: Sequence[int]) -> None:
        """Folders, keys, and the processes, not yet started."""
        self._cli, link, *nodes = (self._folder / name for name in ["cli", SUPERLINK, *map(_name, self._nodes)])
        for folder in (self._cli, link, *nodes):
            folder.mkdir(parents=True, exist_ok=True)
        self._security = Security.create(link, nodes) if self._secure else None
        authority = None if self._security is None else self._security.tls.authority
        self._control = Control((HOST, port), authority)
        write_connection(self._cli, (HOST, port), authority)
        self._add(link, commands.superlink(link, port, self._security, simulated=bool(self._simulated)))
        for n, (node, node_port) in enumerate(zip(nodes, node_ports, strict=True)):
            config = self._node_config(n)
            self._add(node, commands.supernode(node, node_port, self._relay.address, config, self._security, n))

    def _add(self, folder: Path, command: Sequence[str]) -> None:
        mark = f"{self._mark}/{folder.name}/"
        self._processes[folder.name] = Process(command, folder, environment(folder / "home"), mark)

    def _start_superlink(self) -> None:
        self._processes[SUPERLINK].start()
        self._until(self._control.answers, "for the SuperLink", [SUPERLINK])

    def _start_nodes(self, nodes: Iterable[int]) -> None:
        """Start them, and wait until as many have become online: others, which were killed, may still count as such."""
        names = [_name(n) for n in nodes]
        before = self._control.activations()
        for name in names:
            self._processes[name].start()

        def active() -> bool:
            return len(self._control.activations() - before) >= len(names)

        self._until(active, "for the SuperNodes", [SUPERLINK, *names])

    def _until(self, done: Callable[[], bool], what: str, names: Sequence[str]) -> None:
        """Wait, as long as the processes run on which it depends."""
        deadline = time.monotonic() + self._timeout
        while not done():
            self._check(names, f"while waiting {what}")
            if time.monotonic() > deadline:
                raise self._failure(names[-1], f"Waited {what} for {self._timeout:g} s in vain")
            time.sleep(TICK)

    def _check(self, names: Sequence[str], when: str) -> None:
        for name in names:
            if not self._processes[name].running:
                raise self._failure(name, f"{name} ended {when}")

    def _failure(self, name: str, what: str) -> DeploymentFailed:
        tail = "\n".join(self.log(name).splitlines()[-30:])
        return DeploymentFailed(
            f"{what}. The end of the log of {name}, all of which is in {self._folder / name}:\n{tail}"
        )

    def _end(self) -> None:
        """The nodes first, all at once, while the SuperLink can still take note."""
        nodes = [process for name, process in self._processes.items() if name != SUPERLINK]
        for node in nodes:
            node.terminate()
        for process in reversed(self._processes.values()):
            process.stop()


def _name(n: int) -> str:
    return f"node-{n}"
