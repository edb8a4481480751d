"""The list of schemes. A new one is a file that describes it, and its name here; or an entry point (`plugins.py`)."""

from typing import Any

from klms.compressors import drive, eden, mask, plain, qsgd, quic_fl, sign, sparseloco, terngrad, topk, trellis
from klms.compressors.scheme import Scheme
from klms.plugins import declared

_FILES = (plain, mask, qsgd, sign, terngrad, drive, eden, quic_fl, trellis, topk, sparseloco)

SCHEMES: dict[str, Scheme[Any]] = {
    scheme.name: scheme for file in _FILES for scheme in vars(file).values() if isinstance(scheme, Scheme)
}
UPDATE_SCHEMES: dict[str, Scheme[Any]] = {}
"""Schemes for the difference between two models, as FedAvg and Flower apps send it."""

# Whoever declares a scheme may import what uses the list, which therefore exists before theirs are added to it.
SCHEMES.update(declared("klms.schemes", Scheme, SCHEMES))
UPDATE_SCHEMES.update({name: scheme for name, scheme in SCHEMES.items() if scheme.codes == "updates"})
