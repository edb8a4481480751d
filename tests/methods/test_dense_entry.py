"""Methods that differ from FedAvg in a hook have every setting of FedAvg, without naming any of them."""

from dataclasses import dataclass

import pytest
from pydantic import Field

from klms.compressors.scheme import Settings
from klms.compressors.schemes import SCHEMES, UPDATE_SCHEMES
from klms.methods import dense
from klms.methods.dense import Dense
from klms.methods.entry import Setup
from klms.methods.table import METHODS, RunConfig
from klms.runs.settings import resolve
from tests.support.downlink_runs import config_of, federation_of


class ProxSettings(Settings):
    mu: float = Field(0.01, description="Weight of the proximal term.")


@dataclass(frozen=True)
class Prox(Dense):
    mu: float = 0.0


class ProxConfig(RunConfig):
    mu: float = 0.01


def made(scheme, **given):
    """Return FedProx through a scheme, as a run with these settings has it."""
    entry = dense.entry(SCHEMES[scheme], kind=Prox, settings=(ProxSettings,))
    config = config_of("fedavg" if scheme == "float32" else scheme, **given)
    values = config.model_dump() | {"mu": 0.25}
    return entry.make(Setup(ProxConfig.model_validate(values), federation_of(config).method.learner, threads=1))


@pytest.mark.parametrize("scheme", UPDATE_SCHEMES)
def test_a_subclass_has_what_dense_has(scheme):
    given = {"server_lr": 0.5, "error_feedback": True, "robust": 0.2}
    method = made(scheme, **given)
    plain = federation_of(config_of("fedavg" if scheme == "float32" else scheme, **given)).method
    assert type(method) is Prox
    assert method.mu == 0.25
    for name in ("schedule", "server_lr", "holds_quality", "robust", "error_feedback", "seed", "clients"):
        assert getattr(method, name) == getattr(plain, name), name
    assert method.error_feedback
    assert method.robust is not None
    assert type(method.compressor) is type(plain.compressor)


def test_a_subclass_has_rates_that_change():
    method = made("trellis", rate_schedule="2:1,0.5")
    first = method.init()
    assert method.compressor_after(first).rate == 2.0
    assert method.compressor_after(first.after(first.shared)).rate == 0.5
    assert made("trellis", quality=2.0).holds_quality


def test_own_defaults_settings_and_words_are_part_of_the_entry(monkeypatch):
    entry = dense.entry(
        SCHEMES["signsgd"],
        "prox",
        Prox,
        settings=(ProxSettings,),
        overrides={"mu": 0.5, "epochs": 7},
        title="Signs with a proximal term",
        family="fedprox",
    )
    assert entry.uses("mu")
    assert entry.uses("error_feedback")
    assert entry.defaults()["mu"] == 0.5
    assert entry.defaults()["server_lr"] == SCHEMES["signsgd"].default_step
    assert (entry.title, entry.family) == ("Signs with a proximal term", "fedprox")
    assert entry.reference == SCHEMES["signsgd"].reference
    plain = dense.entry(SCHEMES["signsgd"], "plain", overrides={"epochs": 7})
    monkeypatch.setitem(METHODS, "plain", plain)
    assert resolve("plain").epochs == 7
