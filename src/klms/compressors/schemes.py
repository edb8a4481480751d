"""The list of schemes. To add one, list the file that defines it here, or declare an entry point (`plugins.py`)."""

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

# Packages that declare schemes may import modules that use this list, so it must exist before their schemes are added.
SCHEMES.update(declared("klms.schemes", Scheme, SCHEMES))
UPDATE_SCHEMES.update({name: scheme for name, scheme in SCHEMES.items() if scheme.codes == "updates"})
