"""A method's entry in the table of methods, and the parts from which a method is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from klms.compressors.base import Compressor
from klms.compressors.layout import Layout
from klms.compressors.scheme import Needs, Settings, without_effect
from klms.compressors.schemes import SCHEMES
from klms.compressors.trellis import MAX_RATE, MIN_RATE
from klms.compressors.with_norm import WithNorm
from klms.exchange.quality import FIRST_ROUND, TARGET, Rates
from klms.exchange.rates import Budget, ConstantQuality, Moment, NamedBits, RateRule
from klms.exchange.robust import Robust
from klms.learning.examples import Optimizer, Schedule
from klms.methods.base import Method
from klms.methods.limits import RobustSettings
from klms.methods.rate_schedule import RateSchedule
from klms.methods.state import RATE, State
from klms.printable import printable

if TYPE_CHECKING:
    from klms.learning.learner import Learner


class DataSettings(Settings):
    """Settings of the data."""

    data: str = Field("mnist", description="Data set, one of `klms data list`.")
    data_dir: Path | None = Field(None, description="Folder with the data in its official format.")
    images: int = Field(0, ge=0, description="Number of training examples to use, drawn by the seed; 0 for all.")
    test_images: int = Field(0, ge=0, description="Number of test examples to evaluate on; 0 for all.")
    vocabulary: int = Field(2000, ge=10, description="Size of a text's vocabulary.")
    length: int = Field(20, ge=2, description="Words per text.")

    @field_validator("data_dir")
    @classmethod
    def _writable(cls, folder: Path | None) -> Path | None:
        """Refuse a path that UTF-8, in which a run folder keeps its settings, cannot represent."""
        try:
            str(folder).encode()
        except UnicodeEncodeError:
            raise ValueError(f"the path {printable(folder)} is not UTF-8: rename it") from None
        return folder


class ClientSettings(Settings):
    """Settings of clients and rounds."""

    needs: ClassVar[Needs] = {"c_max": {"split": "noniid"}, "alpha": {"split": "dirichlet"}}

    split: Literal["iid", "noniid", "dirichlet", "natural"] = Field("iid", description="How clients get their data.")
    c_max: int = Field(4, ge=1, description="Split noniid: largest number of classes per client.")
    alpha: float = Field(0.5, gt=0, description="Split dirichlet: concentration.")
    clients: int = Field(10, ge=1, description="Number of clients.")
    per_round: int = Field(0, ge=0, description="Clients per round; 0 for all.")
    rounds: int = Field(20, ge=1, description="Number of rounds.")
    stop_at: float = Field(0.0, ge=0, le=1, description="End once a test accuracy is at least this; 0 for never.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all randomness; on Flower, see private_randomness.")
    private_randomness: Literal["auto", "seeded", "system"] = Field(
        "auto",
        description="Randomness that clients keep to themselves: seeded, so that a simulation can be repeated; of the "
        "operating system, so that nobody can repeat it; or auto, seeded in `klms run` and of the system on Flower, "
        "where the server then draws the seed as well.",
    )


MODELS = ("lenet", "conv4", "conv6", "resnet18", "lstm")
"""Models that `klms.learning.models` can build, listed here so that a name can be checked without torch."""
TEXT_MODELS = ("lstm",)
"""Those of the models that read texts; the others read images."""


class TrainingSettings(Settings):
    """Settings of the model, its local training and its evaluation."""

    model: str = Field("lenet", description=f"Model: {', '.join(MODELS)}.")
    width: float = Field(1.0, gt=0, description="Factor on the model's layer widths.")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("cpu", description="Device for training.")
    epochs: int = Field(3, ge=1, description="Local epochs.")
    batch: int = Field(128, ge=1, description="Local batch size.")
    lr: float = Field(0.001, gt=0, description="Local learning rate.")
    optimizer: Optimizer = Field("adam", description="Local optimizer.")
    evaluate_every: int = Field(5, ge=1, description="Rounds between evaluations; the last is always evaluated.")

    loss_factor: float = Field(
        10.0, ge=0, description="Return to the last evaluated model if the loss grows by this factor; 0 for never."
    )


class DownlinkSettings(Settings):
    """Settings of the downlink."""

    needs: ClassVar[Needs] = {
        "down_rate": {"downlink": "coded", "down_rate_schedule": "", "round_budget": 0, "quality": 0},
        "down_rate_schedule": {"downlink": "coded", "quality": 0},
        "rate_schedule": {"quality": 0},
        "round_budget": {"quality": 0},
    }

    downlink: Literal["auto", "snapshot", "coded"] = Field(
        "auto",
        description="How clients get the state: by the messages of the rounds that they missed or by a snapshot, "
        "whichever is smaller; always by a snapshot; or by differences of down_rate bits per parameter.",
    )
    down_rate: float = Field(
        1.0, ge=MIN_RATE, le=MAX_RATE, description="Downlink coded: bits per parameter; may be a fraction."
    )
    rate_schedule: str = Field(
        "", description="Rates that change over the rounds instead of rate: 1:5,0.1 for 5 rounds at 1 bit, then 0.1."
    )
    down_rate_schedule: str = Field("", description="Rates that change over the rounds instead of down_rate.")
    round_budget: int = Field(
        0, ge=0, description="Bytes per round in both directions, from which the rates follow; 0 to set them yourself."
    )

    quality: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="Choose the rates of every round so that their noise does no more harm than this allows: 1 for "
        "the default target, 2 for half the harm; 0 if a rate, a schedule or a budget is given.",
    )

    @field_validator("rate_schedule", "down_rate_schedule")
    @classmethod
    def _readable(cls, text: str) -> str:
        if text:
            RateSchedule.parse(text)
        return text


class RunSettings(DownlinkSettings, TrainingSettings, ClientSettings, DataSettings):
    """Settings of every run, whatever its method."""

    method: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.per_round > self.clients:
            raise ValueError(f"per_round is {self.per_round}, but there are {self.clients} clients")
        for kind in RUN_GROUPS:
            for name in kind.needs:
                changed = getattr(self, name) != kind.model_fields[name].default
                if changed and (why := without_effect(kind.needs, name, self)):
                    raise ValueError(why)
        if self.round_budget and (self.rate_schedule or self.down_rate_schedule):
            raise ValueError("round_budget and a schedule both set the rates: omit one of them")
        if self.round_budget and self.downlink == "snapshot":
            raise ValueError("round_budget needs downlink coded or auto: the size of a snapshot cannot be chosen")
        return self

    @property
    def seeded(self) -> bool:
        """Whether the private randomness of every client can be reproduced from the seed."""
        return self.private_randomness != "system"

    @property
    def participants(self) -> int:
        return self.per_round or self.clients

    @property
    def sets_rate(self) -> bool:
        """Whether a schedule or a budget takes the place of the method's `rate`."""
        return bool(self.rate_schedule or self.round_budget)

    @property
    def rates(self) -> RateRule:
        """The rule for the rate of each direction in a round."""
        if self.quality:
            return ConstantQuality(TARGET / self.quality)
        if self.round_budget:  # a client sends one message, and receives one coded step or all relayed messages
            down = 1 if self.downlink == "coded" else self.participants
            return Budget(self.round_budget, messages=1 + down, rounded=False)
        up = RateSchedule.parse(self.rate_schedule).in_round if self.rate_schedule else getattr(self, "rate", None)
        return NamedBits(up, RateSchedule.parse(self.down_rate_schedule or str(self.down_rate)).in_round)

    def moment_after(self, state: State, parameters: int) -> Moment:
        """Return the data that a rate rule gets about the round that follows a state."""
        now = Moment(state.round + 1, parameters, self.participants)
        if RATE not in state.shared:
            return now
        down = FIRST_ROUND if state.learned is None else state.learned.down  # clients do not know this rate
        return replace(now, chosen=Rates(state.rate, down))


RUN_GROUPS: tuple[type[Settings], ...] = (DataSettings, ClientSettings, TrainingSettings, DownlinkSettings)
"""The groups of `RunSettings`, in the order in which help texts list them."""

S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Setup:
    """The parts from which a method is made."""

    config: RunSettings
    learner: "Learner"
    threads: int
    """Number of threads of the codec; it does not affect the bytes."""
    examples: int | None = None
    """Training examples of all clients together; None if they are not known in this process."""

    @property
    def layout(self) -> Layout:
        return self.learner.layout

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.config.epochs, self.config.batch, self.config.lr, self.config.optimizer)

    def settings(self, kind: type[S]) -> S:
        """Return settings of this kind with the values of the run."""
        return kind.checked({name: getattr(self.config, name) for name in kind.model_fields})

    @property
    def robust(self) -> Robust | None:
        share = self.settings(RobustSettings).robust
        return Robust(share) if share else None

    def parts(self, compressor: str | Compressor) -> tuple["Learner", int, int, Compressor]:
        """Return the first fields of a `Method`; a scheme's name stands for its compressor with the run's settings."""
        if isinstance(compressor, str):
            scheme = SCHEMES[compressor]
            compressor = scheme.make(self.layout, self.settings(scheme.settings), self.threads)
        return self.learner, self.config.seed, self.config.clients, compressor

    def by_round(self, name: str) -> Callable[[State], Compressor] | None:
        """Return a function from a state to the compressor of the next round; None if the rate never changes.

        Messages whose rate the server chooses also carry the norm of the update.
        """
        if not self.config.sets_rate and not self.config.quality:
            return None
        scheme, settings = SCHEMES[name], self.settings(SCHEMES[name].settings)

        @lru_cache(maxsize=8)
        def at(rate: float | None) -> Compressor:
            return scheme.make(self.layout, settings.model_copy(update={"rate": rate}), self.threads)

        rule = self.config.rates

        def after(state: State) -> Compressor:
            compressor = at(rule.up(self.config.moment_after(state, self.layout.d)))
            return compressor if rule.target is None else WithNorm(compressor)

        return after


@dataclass(frozen=True)
class MethodEntry:
    """A method's entry in the table of methods."""

    name: str
    title: str
    reference: str
    family: str
    """Methods of one family share a colour in reports."""
    settings: tuple[type[Settings], ...]
    """Groups of settings that the method has in addition to `RunSettings`."""
    make: Callable[[Setup], Method]
    overrides: Mapping[str, object] = field(default_factory=dict)
    """The method's own defaults, where the defaults of the settings do not suit the method."""
    unused: frozenset[str] = frozenset()
    """Settings of these groups and of `RunSettings` that the method does not use."""

    @property
    def groups(self) -> tuple[type[Settings], ...]:
        """All groups of the method's settings, in the order in which help texts list them."""
        return (*RUN_GROUPS, *self.settings)

    def uses(self, setting: str) -> bool:
        return setting not in self.unused and any(setting in kind.model_fields for kind in self.groups)

    @property
    def needs(self) -> Needs:
        """Values that other settings must have for a setting to have an effect.

        Settings that override `rate` must be unset for `rate` to have an effect.
        """
        together: dict[str, Mapping[str, object]] = {"rate": {"rate_schedule": "", "round_budget": 0, "quality": 0}}
        for kind in self.groups:
            together |= kind.needs
        return together

    @property
    def takes_rate(self) -> bool:
        return any("rate" in kind.model_fields for kind in self.settings)

    @property
    def holds_quality(self) -> bool:
        """Whether the method can choose its rates itself. If it can, that is its default."""
        return bool(self.overrides.get("quality"))

    def defaults(self) -> dict[str, object]:
        fields = {name: info for kind in self.settings for name, info in kind.model_fields.items()}
        return {name: info.default for name, info in fields.items()} | dict(self.overrides)
