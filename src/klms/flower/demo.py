"""`klms flower demo`: FedPM-KLMS on MNIST, with a SuperLink and SuperNodes as processes on this machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from klms.engine.federation import Federation
from klms.engine.ledger import LedgerRecord
from klms.engine.local import update
from klms.flower import template_app
from klms.flower.deployment import Deployment, DeploymentFailed, WireBytes
from klms.flower.settings import ServerSettings
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve

NODES = 3


class Round(NamedTuple):
    """A round, its uplink bits per parameter including frames, and all bytes on the wire (TLS, polling, protocol)."""

    record: LedgerRecord
    bits_per_parameter: float
    wire: WireBytes


def run(folder: Path | str, *, rounds: int, secure: bool, timeout: float = 1800.0) -> Iterator[Round]:
    """Yield the rounds as they are completed. However the iteration ends, all processes end with it."""
    folder = Path(folder)
    given = {"clients": NODES, "images": 3000, "test_images": 2000, "rounds": rounds, "evaluate_every": 1}
    config = resolve("fedpm-klms", profile="small", given=given)
    server = ServerSettings(run_folder=str((folder / "run").resolve()), min_replies=2)
    app = template_app.create(folder / "app", config, server)
    federation = Federation.create(config)
    update(federation, federation.method.init(), 0)  # fetches the data, compiles the kernels
    with Deployment(folder / "deployment", NODES, secure=secure) as deployment:
        run_id = deployment.submit(app, {})
        seen, before = 0, deployment.wire()
        for status in deployment.watch(run_id, timeout):
            for record in list(RunFolder(folder / "run").records())[seen:]:
                now = deployment.wire()
                bits = 8 * (record.payload_bytes or 0) / (federation.method.layout.d * max(1, len(record.clients)))
                yield Round(record, bits, now - before)
                seen, before = seen + 1, now
            if status.startswith("finished") and status != "finished:completed":
                tail = deployment.log("superlink")[-2000:]
                raise DeploymentFailed(f"the run ended as {status}: {deployment.why(run_id)}\n{tail}")
