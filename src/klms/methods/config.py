"""The settings of a run: one flat, typed model, the same for the command line and for TOML."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PositiveInt = Field(ge=1)


class RunConfig(BaseModel):
    """What a run depends on. A field that a method does not use changes nothing for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    data: str = "mnist"
    data_dir: Path | None = Field(None, description="A folder with the data in its official format.")
    images: int = Field(0, ge=0, description="Use so many training examples, drawn by the seed; 0: all.")
    test_images: int = Field(0, ge=0, description="Evaluate on so many test examples; 0: all.")
    vocabulary: int = Field(2000, ge=10, description="Words of a text's vocabulary.")
    length: int = Field(20, ge=2, description="Words of a text.")

    split: Literal["iid", "noniid", "dirichlet", "natural"] = "iid"
    c_max: int = Field(4, ge=1, description="Classes a client sees at most, for split noniid.")
    alpha: float = Field(0.5, gt=0, description="Concentration, for split dirichlet.")
    clients: int = Field(10, ge=1)
    per_round: int = Field(0, ge=0, description="Clients in a round; 0: all.")
    rounds: int = Field(20, ge=1)
    seed: int = Field(0, ge=0, lt=2**63)

    model: str = "lenet"
    width: float = Field(1.0, gt=0, description="Factor on the model's layer widths.")
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    epochs: int = Field(3, ge=1, description="Local epochs.")
    batch: int = Field(128, ge=1)
    lr: float = Field(0.1, gt=0, description="Local learning rate.")
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    server_lr: float = Field(1.0, gt=0)

    margin: float = Field(0.01, gt=0, lt=0.5, description="FedPM: theta stays in [margin, 1 - margin].")
    gain: float = Field(1.0, gt=0, description="FedPM: factor on the frozen weights; sqrt(2) for deep models.")
    reset: int = Field(1, ge=1, description="FedPM: rounds between resets of the Beta prior.")
    levels: int = Field(1, ge=1, le=2**20, description="QSGD: levels of the norm.")
    bucket: int = Field(4096, ge=0, description="QSGD: entries that share a norm; 0: a layer.")
    prior: float = Field(10.0, gt=0, description="QSGD-KLMS: clients that the expected frequencies are worth.")
    scale: float = Field(2.0, gt=0, description="Stochastic SignSGD: M in root mean squares of the layer.")
    gamma: float = Field(1e-5, gt=0, description="Langevin: step size.")
    precision: float = Field(5.0, ge=0, description="Langevin: precision of the Gaussian prior.")
    burn_in: int = Field(0, ge=0, description="Langevin: rounds before samples count.")

    tern_clip: float = Field(2.5, ge=0, description="TernGrad: clip at so many root mean squares; 0: not.")
    rate: float = Field(1.0, gt=0, le=8, description="EDEN, klms-rotated: bits of a parameter; fractions too.")
    keep: float = Field(0.01, gt=0, le=1, description="Top-k: share of the entries that is sent.")
    full: float = Field(0.1, gt=0, le=1, description="MARINA: probability of a round of whole updates.")
    clip: float = Field(1.0, gt=0, description="DP-REC: largest norm of an update.")
    sigma: float = Field(0.004, gt=0, description="DP-REC: noise on each coordinate.")
    delta: float = Field(1e-5, gt=0, lt=1, description="DP-REC: delta of the privacy report.")
    error_feedback: bool = Field(False, description="Clients add what was lost to their next update (topk: always).")

    bits: int = Field(8, ge=1, le=16, description="KLMS: bits of an index.")
    target: float = Field(8.0, gt=0, description="KLMS: bits of KL in a block.")
    max_size: int = Field(4096, ge=1, le=65536, description="KLMS: largest adaptive block.")
    fixed: int = Field(0, ge=0, le=65536, description="KLMS: size of fixed blocks; 0: adaptive ones.")
    low: float = Field(0.7, ge=0, description="KLMS: cut blocks anew when their KL is below low * target,")
    high: float = Field(1.4, gt=0, description="or above high * target.")
    aggregate: Literal["location", "count"] = Field("location", description="KLMS: how block maps are merged.")
    selection: Literal["sample", "greedy", "matched"] = "sample"

    layer_kl: bool = Field(False, description="FedPM-KLMS: record the KL of every layer.")
    evaluate_every: int = Field(5, ge=1, description="Rounds between evaluations; the last is always evaluated.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.per_round > self.clients:
            raise ValueError(f"per_round is {self.per_round}, but there are {self.clients} clients")
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")
        return self

    @property
    def participants(self) -> int:
        """Clients in a round."""
        return self.per_round or self.clients
