"""Every method by its name: what it is, whose it is, and how it is made of a configuration."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from klms.codec import MAX_BLOCK_SIZE
from klms.compressors.base import Compressor
from klms.compressors.block_coder import BlockCoder
from klms.compressors.dp_rec import DPREC
from klms.compressors.klms_gaussian import KLMSGaussian
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES, SchemeSettings
from klms.learning.network import Network
from klms.learning.training import Schedule
from klms.methods.base import Method
from klms.methods.config import RunConfig
from klms.methods.dense import Dense
from klms.methods.dp_rec import DPRECTraining, epsilon
from klms.methods.fedmask import FedMask
from klms.methods.fedpm import FedPM
from klms.methods.langevin import Langevin, noise_std
from klms.methods.marina import Marina


@dataclass(frozen=True)
class Setup:
    """What a method is made of."""

    config: RunConfig
    network: Network
    threads: int
    """Of the codec; they change no byte."""

    @property
    def layout(self) -> Layout:
        """How the parameters lie in their vector."""
        return self.network.layout

    @property
    def common(self) -> tuple[Network, int, int, int]:
        """The fields of every `Method`."""
        return self.network, self.config.seed, self.config.clients, self.config.participants

    @property
    def schedule(self) -> Schedule:
        """Local training."""
        return Schedule(self.config.epochs, self.config.batch, self.config.lr, self.config.optimizer)

    @property
    def coder(self) -> BlockCoder:
        """The codec with its block policy."""
        return self.settings.coder(self.layout.d, self.threads)

    @property
    def settings(self) -> SchemeSettings:
        """Those of the compressors."""
        return SchemeSettings(**{field.name: getattr(self.config, field.name) for field in fields(SchemeSettings)})

    def scheme(self, name: str) -> Compressor:
        """A compressor of dense updates."""
        return SCHEMES[name](self.layout, self.settings, self.threads)


Make = Callable[[Setup], Method]


@dataclass(frozen=True)
class Entry:
    """A method."""

    name: str
    title: str
    paper: str
    make: Make


def _dense(scheme: str, *, error_feedback: bool = False) -> Make:
    def make(s: Setup) -> Method:
        feedback = error_feedback or s.config.error_feedback
        return Dense(*s.common, s.scheme(scheme), s.schedule, s.config.server_lr, feedback)

    return make


def _marina(s: Setup) -> Method:
    if s.config.error_feedback:
        raise ValueError("marina has no use for error feedback: its differences carry the error on")
    return Marina(*s.common, s.scheme("qsgd"), s.schedule, s.config.server_lr, full=s.config.full)


def _dp_rec(s: Setup) -> Method:
    c = s.config
    size = c.fixed or max(1, round(c.target * 2 * math.log(2) * s.layout.d * (c.sigma / c.clip) ** 2))
    if c.error_feedback:
        raise ValueError("error feedback would send later what clipping and noise hold back: dp-rec cannot have it")
    epsilon(1.0, 1, c.delta)  # so that a missing accountant is told before anything is trained
    codec = replace(s.coder.codec, selection="sample")  # the others are no samples of the mechanism's law
    coder = replace(s.coder, codec=codec, fixed=min(size, MAX_BLOCK_SIZE), tells_kl=False)
    compressor = DPREC(c.clip, c.sigma, coder)
    return DPRECTraining(*s.common, compressor, s.schedule, c.server_lr, clip=c.clip, sigma=c.sigma, delta=c.delta)


def _fedpm(kind: type[FedPM], coder: Callable[[Setup], BlockCoder | None]) -> Make:
    def make(s: Setup) -> Method:
        c = s.config
        return kind(*s.common, coder(s), s.schedule, c.margin, c.reset, c.gain, c.layer_kl)

    return make


def _langevin(compressor: Callable[[Setup], Compressor], *, noise_arrives: bool = False) -> Make:
    def make(s: Setup) -> Method:
        c = s.config
        return Langevin(*s.common, compressor(s), noise_arrives, c.batch, c.gamma, c.precision, c.burn_in)

    return make


def _gaussian(s: Setup) -> Compressor:
    return KLMSGaussian(noise_std(s.config.gamma, s.config.clients, s.config.participants), s.coder)


_KLMS = "Isik et al., AISTATS 2024"
METHODS = {
    entry.name: entry
    for entry in (
        Entry(
            "fedavg",
            "Federated averaging, float32 differences",
            "McMahan et al., AISTATS 2017",
            _dense("float32"),
        ),
        Entry(
            "fedpm", "Probabilistic masks, arithmetic-coded", "Isik et al., ICLR 2023", _fedpm(FedPM, lambda s: None)
        ),
        Entry("fedpm-klms", "Probabilistic masks at their KL", _KLMS, _fedpm(FedPM, lambda s: s.coder)),
        Entry(
            "qsgd",
            "Stochastic rounding to levels of the norm, Elias-coded",
            "Alistarh et al., NeurIPS 2017",
            _dense("qsgd"),
        ),
        Entry(
            "qsgd-klms",
            "Ternary QSGD against last round's frequencies",
            _KLMS,
            _dense("qsgd-klms"),
        ),
        Entry("signsgd", "Signs", "Bernstein et al., ICML 2018", _dense("signsgd")),
        Entry(
            "signsgd-stochastic",
            "Signs drawn with probability sigmoid(v / M)",
            _KLMS,
            _dense("signsgd-stochastic"),
        ),
        Entry(
            "signsgd-klms",
            "Stochastic signs at their KL to a coin",
            _KLMS,
            _dense("signsgd-klms"),
        ),
        Entry(
            "terngrad",
            "Ternary entries of the layer's largest, range-coded",
            "Wen et al., NeurIPS 2017",
            _dense("terngrad"),
        ),
        Entry(
            "drive",
            "Signs after a random rotation, unbiased scale",
            "Vargaftik et al., NeurIPS 2021",
            _dense("drive"),
        ),
        Entry(
            "eden",
            "Levels for a normal law after a random rotation, any rate",
            "Vargaftik et al., ICML 2022",
            _dense("eden"),
        ),
        Entry(
            "klms-rotated",
            "Shared candidates after a random rotation, any rate",
            "klms; compare `klms bench mean`",
            _dense("klms-rotated"),
        ),
        Entry("marina", "QSGD of differences, now and then all", "Gorbunov et al., ICML 2021", _marina),
        Entry(
            "fedmask",
            "Masks by threshold, arithmetic-coded",
            "Li et al., SenSys 2021",
            _fedpm(FedMask, lambda s: None),
        ),
        Entry("dp-rec", "Noisy updates in fixed blocks at their KL", "Triastcyn et al., 2021", _dp_rec),
        Entry(
            "topk",
            "The largest entries, with error feedback",
            "Stich et al., NeurIPS 2018",
            _dense("topk", error_feedback=True),
        ),
        Entry(
            "sgld",
            "Federated Langevin dynamics, float32 gradients",
            "El Mekkaoui et al., UAI 2021",
            _langevin(lambda s: s.scheme("float32")),
        ),
        Entry(
            "qlsd",
            "Langevin dynamics with QSGD gradients",
            "Vono et al., AISTATS 2022",
            _langevin(lambda s: s.scheme("qsgd")),
        ),
        Entry(
            "sgld-klms", "Langevin dynamics whose noise is the sample", _KLMS, _langevin(_gaussian, noise_arrives=True)
        ),
    )
}


def create(config: RunConfig, network: Network, threads: int = 1) -> Method:
    """The method that the configuration names."""
    return METHODS[config.method].make(Setup(config, network, threads))
