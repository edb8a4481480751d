"""`klms flower demo`: FedPM-KLMS on MNIST, on a SuperLink and SuperNodes that are processes of this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from klms.engine.federation import Federation
from klms.engine.local import update
from klms.experiments.run_folder import RunFolder
from klms.experiments.settings import resolve
from klms.flower import template_app
from klms.flower.deployment import Deployment, DeploymentFailed, WireBytes
from klms.flower.settings import ServerSettings
from klms.methods.config import RunConfig

NODES = 3
IMAGES = 3000


@dataclass(frozen=True)
class Round:
    """A line of the demo."""

    round: int
    accuracy: float
    replies: int
    payload_bytes: int
    bits_per_parameter: float
    """Of the payloads, with their frames."""
    wire: WireBytes
    """Since the round before; TLS, polling and Flower's protocol included."""
    seconds: float


def run(folder: Path, *, rounds: int, secure: bool, timeout: float = 1800.0) -> Iterator[Round]:
    """The rounds as they end. All processes are ended with the iteration, however that ends."""
    given = {"clients": NODES, "images": IMAGES, "test_images": 2000, "rounds": rounds, "evaluate_every": 1}
    config = resolve("fedpm-klms", profile="small", given=given)
    server = ServerSettings(run_folder=str((folder / "run").resolve()), min_replies=2)
    app = template_app.create(folder / "app", config, server)
    _prepare(config)
    with Deployment(folder / "deployment", NODES, secure=secure) as deployment:
        watched = Watched(RunFolder(folder / "run"), deployment)
        number = deployment.submit(app, {})
        status = ""
        for seen in deployment.watch(number, timeout):
            status = seen
            yield from watched.new()
        if status != "finished:completed":
            tail = deployment.log("superlink")[-2000:]
            raise DeploymentFailed(f"the run ended as {status}: {deployment.why(number)}\n{tail}")


def _prepare(config: RunConfig) -> None:
    """One client's turn, here: it fetches the data and compiles the kernels, once instead of in every node."""
    federation = Federation.create(config)
    update(federation, federation.method.init().to_bytes(private=False), 0)


class Watched:
    """The ledger of a run that goes on, with the bytes on the wire at each of its lines."""

    def __init__(self, folder: RunFolder, deployment: Deployment) -> None:
        self._folder = folder
        self._deployment = deployment
        self._seen = 0
        self._wire = deployment.wire()

    def new(self) -> Iterator[Round]:
        """Rounds that have ended since the last call."""
        for record in list(self._folder.records())[self._seen :]:
            wire = self._deployment.wire()
            replies, layers = record["replies"], self._folder.description()["layers"]
            assert isinstance(replies, dict)
            payload, answered = int(str(record["payload_bytes"])), int(replies["ok"])
            d = sum(layer["size"] for layer in layers)
            seconds = record["seconds"]
            assert isinstance(seconds, dict)
            yield Round(
                round=int(str(record["round"])),
                accuracy=float(str(record["accuracy"])),
                replies=answered,
                payload_bytes=payload,
                bits_per_parameter=8 * payload / (d * max(1, answered)),
                wire=wire - self._wire,
                seconds=float(seconds["total"]),
            )
            self._wire = wire
            self._seen += 1
