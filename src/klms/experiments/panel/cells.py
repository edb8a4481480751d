"""The federations that the panel trains, and the codings of their messages."""

from dataclasses import dataclass

from klms.exchange import quality


@dataclass(frozen=True)
class Federation:
    """A kind of model, with the clients that train it and the server's optimizer."""

    kind: str
    clients: int
    optimizer: str = "FedAvg"
    skewed: bool = False
    rounds: int = 20

    def __str__(self) -> str:
        split = ", skewed" if self.skewed else ""
        return f"{self.kind}, {self.clients} clients, {self.optimizer}{split}"


@dataclass(frozen=True)
class Coding:
    """How messages are coded: not at all, at a constant quality, or at the same fixed rate in both directions."""

    quality: float | None = None
    bits: float | None = None
    constant: tuple[str, float] | None = None
    """A constant of `klms.exchange.quality` that has another value in this run, to show its effect."""
    reordered: bool = False
    """Whether clients see their examples in another order. Without compression, this shows the effect of chance."""

    def __str__(self) -> str:
        if self.constant is not None:
            return f"{self.constant[0]} {self.constant[1]:g}"
        if self.quality is not None:
            return f"quality {self.quality:g}"
        if self.reordered:
            return "another order"
        return "stock" if self.bits is None else f"{self.bits:g} bits"

    @property
    def compressed(self) -> bool:
        return self.quality is not None or self.bits is not None


FEDERATIONS = (
    Federation("transformer", 3),
    Federation("mixer", 5, skewed=True),
    Federation("gru", 3),
    Federation("gpt", 5),
    Federation("resnet, group norm", 3),
    Federation("resnet, batch norm", 5),
    Federation("words", 10),
    Federation("lora", 3, rounds=25),
    Federation("autoencoder", 5, rounds=25),
    Federation("factors", 3, rounds=25),
    Federation("lenet", 10, rounds=40),
    Federation("cnn", 10, rounds=40),
    Federation("autoencoder", 10, "FedAvgM", rounds=25),
    Federation("gru", 5, "FedAvgM"),
    Federation("transformer", 5, "FedAdam"),
    Federation("lora", 10, "FedAdam", skewed=True, rounds=25),
    Federation("autoencoder", 3, "FedAdam", rounds=25),
)
STOCK = Coding()
CODINGS = (
    STOCK,
    Coding(reordered=True),
    Coding(quality=1.0),
    Coding(quality=2.0),
    Coding(quality=0.5),
    Coding(bits=1.0),
    Coding(bits=0.3),
    Coding(bits=0.1),
)
ABLATIONS = tuple(
    Coding(quality=1.0, constant=(name, value))
    for name, values in {"WEIGHTS": (1.0, 2.5, 10.0), "ADAPTIVE": (0.0, 5.0, 20.0), "MOMENTUM": (1.0, 10.0)}.items()
    for value in values
)
"""The default quality with one of its constants changed, in the federations that `affected` names."""
SEEDS = 3


def affected(coding: Coding) -> tuple[Federation, ...]:
    """Return the federations in which an ablation differs from the default quality; for other codings, all of them."""
    if coding.constant is None or coding.constant[0] == "WEIGHTS":
        return FEDERATIONS
    return tuple(one for one in FEDERATIONS if one.optimizer != "FedAvg")


def default_of(coding: Coding) -> str:
    """Return the name and the default value of an ablation's constant."""
    assert coding.constant is not None
    name = coding.constant[0]
    return f"{name} {getattr(quality, name):g}"
