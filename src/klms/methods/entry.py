"""What a method says of itself, and what it is made from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from pydantic import Field, model_validator

from klms.compressors.base import Compressor
from klms.compressors.layout import Layout
from klms.compressors.piece_rates import MAX_RATE, MIN_RATE
from klms.compressors.scheme import Settings
from klms.compressors.schemes import SCHEMES
from klms.learning.examples import Optimizer, Schedule
from klms.methods.base import Method

if TYPE_CHECKING:
    from klms.learning.learner import Learner


class RunSettings(Settings):
    """Settings of every run, whatever its method."""

    method: str
    data: str = Field("mnist", description="Data set, one of `klms data list`.")
    data_dir: Path | None = Field(None, description="Folder with the data in its official format.")
    images: int = Field(0, ge=0, description="Number of training examples to use, drawn by the seed; 0 for all.")
    test_images: int = Field(0, ge=0, description="Number of test examples to evaluate on; 0 for all.")
    vocabulary: int = Field(2000, ge=10, description="Size of a text's vocabulary.")
    length: int = Field(20, ge=2, description="Words per text.")

    split: Literal["iid", "noniid", "dirichlet", "natural"] = Field("iid", description="How clients get their data.")
    c_max: int = Field(4, ge=1, description="Split noniid: most classes per client.")
    alpha: float = Field(0.5, gt=0, description="Split dirichlet: concentration.")
    clients: int = Field(10, ge=1, description="Number of clients.")
    per_round: int = Field(0, ge=0, description="Clients per round; 0 for all.")
    rounds: int = Field(20, ge=1, description="Number of rounds.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all randomness.")

    model: str = Field("lenet", description="Model: lenet, conv4, conv6, resnet18 or lstm.")
    width: float = Field(1.0, gt=0, description="Factor on the model's layer widths.")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("cpu", description="Device that trains.")
    epochs: int = Field(3, ge=1, description="Local epochs.")
    batch: int = Field(128, ge=1, description="Local batch size.")
    lr: float = Field(0.1, gt=0, description="Local learning rate.")
    optimizer: Optimizer = Field("sgd", description="Local optimizer.")
    evaluate_every: int = Field(5, ge=1, description="Rounds between evaluations; the last is always evaluated.")

    downlink: Literal["auto", "snapshot", "coded"] = Field(
        "auto",
        description="How clients get the state: by the messages of the rounds that they missed or by a snapshot, "
        "whichever is smaller; always by a snapshot; or by differences of down_rate bits per parameter.",
    )
    down_rate: float = Field(
        1.0, ge=MIN_RATE, le=MAX_RATE, description="Downlink coded: bits per parameter; may be a fraction."
    )

    @model_validator(mode="after")
    def _enough_clients(self) -> Self:
        if self.per_round > self.clients:
            raise ValueError(f"per_round is {self.per_round}, but there are {self.clients} clients")
        return self

    @property
    def participants(self) -> int:
        return self.per_round or self.clients


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Setup:
    """What a method is made from."""

    config: RunSettings
    learner: "Learner"
    threads: int
    """Threads of the codec; they change no byte."""

    @property
    def layout(self) -> Layout:
        return self.learner.layout

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.config.epochs, self.config.batch, self.config.lr, self.config.optimizer)

    def settings(self, kind: type[S]) -> S:
        """Return these settings with the values that the run has for them."""
        return kind.checked({name: getattr(self.config, name) for name in kind.model_fields})

    def parts(self, compressor: str | Compressor) -> tuple["Learner", int, int, Compressor]:
        """Return what every `Method` begins with; a scheme's name stands for its compressor at the run's settings."""
        if isinstance(compressor, str):
            scheme = SCHEMES[compressor]
            compressor = scheme.make(self.layout, self.settings(scheme.settings), self.threads)
        return self.learner, self.config.seed, self.config.clients, compressor


@dataclass(frozen=True)
class MethodEntry:
    """A method by name."""

    name: str
    title: str
    reference: str
    family: str
    """Methods of one family share a colour in reports."""
    settings: tuple[type[Settings], ...]
    """Settings that it has besides `RunSettings`."""
    make: Callable[[Setup], Method]
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Its own defaults, where those of the settings do not suit it."""

    def defaults(self) -> dict[str, object]:
        fields = {name: info for kind in self.settings for name, info in kind.model_fields.items()}
        return {name: info.default for name, info in fields.items()} | dict(self.overrides)
