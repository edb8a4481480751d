"""Every method by its name: what it is, whose it is, and how it is made of a configuration."""

from collections.abc import Callable
from dataclasses import dataclass

from klms.codec import Codec, UpdateRule
from klms.compressors.base import Compressor
from klms.compressors.block_coder import BlockCoder
from klms.compressors.float32 import Float32
from klms.compressors.klms_gaussian import KLMSGaussian
from klms.compressors.klms_qsgd import KLMSQSGD
from klms.compressors.klms_sign import KLMSSign
from klms.compressors.qsgd import QSGD
from klms.compressors.sign import Sign
from klms.learning.network import Network
from klms.learning.training import Schedule
from klms.methods.base import Method
from klms.methods.config import RunConfig
from klms.methods.dense import Dense
from klms.methods.fedpm import FedPM
from klms.methods.langevin import Langevin, noise_std

Make = Callable[[RunConfig, Network], Method]


@dataclass(frozen=True)
class Entry:
    """A method."""

    name: str
    title: str
    paper: str
    make: Make


def _coder(config: RunConfig, network: Network) -> BlockCoder:
    return BlockCoder(
        d=network.layout.d,
        codec=Codec(bits=config.bits, selection=config.selection, threads=1),
        target=config.target,
        max_size=config.max_size,
        rule=UpdateRule(config.low * config.target, config.high * config.target),
        fixed=config.fixed,
        aggregate=config.aggregate,
    )


def _schedule(config: RunConfig) -> Schedule:
    return Schedule(config.epochs, config.batch, config.lr, config.optimizer)


def _dense(compressor: Callable[[RunConfig, Network], Compressor]) -> Make:
    def make(config: RunConfig, network: Network) -> Method:
        return Dense(
            network,
            config.seed,
            config.clients,
            config.participants,
            compressor(config, network),
            _schedule(config),
            config.server_lr,
        )

    return make


def _fedpm(coder: Callable[[RunConfig, Network], BlockCoder | None]) -> Make:
    def make(config: RunConfig, network: Network) -> Method:
        return FedPM(
            network,
            config.seed,
            config.clients,
            config.participants,
            coder(config, network),
            _schedule(config),
            config.margin,
            config.reset,
        )

    return make


def _langevin(compressor: Callable[[RunConfig, Network], Compressor], *, noise_arrives: bool = False) -> Make:
    def make(config: RunConfig, network: Network) -> Method:
        return Langevin(
            network,
            config.seed,
            config.clients,
            config.participants,
            compressor(config, network),
            noise_arrives,
            config.batch,
            config.gamma,
            config.precision,
            config.burn_in,
        )

    return make


def _gaussian(config: RunConfig, network: Network) -> Compressor:
    return KLMSGaussian(noise_std(config.gamma, config.clients, config.participants), _coder(config, network))


_KLMS = "Isik et al., AISTATS 2024"
METHODS = {
    entry.name: entry
    for entry in (
        Entry(
            "fedavg",
            "Federated averaging, float32 differences",
            "McMahan et al., AISTATS 2017",
            _dense(lambda c, n: Float32(n.layout.d)),
        ),
        Entry("fedpm", "Probabilistic masks, arithmetic-coded", "Isik et al., ICLR 2023", _fedpm(lambda c, n: None)),
        Entry("fedpm-klms", "Probabilistic masks at their KL", _KLMS, _fedpm(_coder)),
        Entry(
            "qsgd",
            "Stochastic rounding to levels of the norm, Elias-coded",
            "Alistarh et al., NeurIPS 2017",
            _dense(lambda c, n: QSGD(n.layout, c.levels, c.bucket)),
        ),
        Entry(
            "qsgd-klms",
            "Ternary QSGD against last round's frequencies",
            _KLMS,
            _dense(lambda c, n: KLMSQSGD(n.layout, c.bucket, c.prior, _coder(c, n))),
        ),
        Entry("signsgd", "Signs", "Bernstein et al., ICML 2018", _dense(lambda c, n: Sign(n.layout))),
        Entry(
            "signsgd-stochastic",
            "Signs drawn with probability sigmoid(v / M)",
            _KLMS,
            _dense(lambda c, n: Sign(n.layout, c.scale)),
        ),
        Entry(
            "signsgd-klms",
            "Stochastic signs at their KL to a coin",
            _KLMS,
            _dense(lambda c, n: KLMSSign(n.layout, c.scale, _coder(c, n))),
        ),
        Entry(
            "sgld",
            "Federated Langevin dynamics, float32 gradients",
            "El Mekkaoui et al., UAI 2021",
            _langevin(lambda c, n: Float32(n.layout.d)),
        ),
        Entry(
            "qlsd",
            "Langevin dynamics with QSGD gradients",
            "Vono et al., AISTATS 2022",
            _langevin(lambda c, n: QSGD(n.layout, c.levels, c.bucket)),
        ),
        Entry(
            "sgld-klms", "Langevin dynamics whose noise is the sample", _KLMS, _langevin(_gaussian, noise_arrives=True)
        ),
    )
}


def create(config: RunConfig, network: Network) -> Method:
    """The method that the configuration names."""
    return METHODS[config.method].make(config, network)
