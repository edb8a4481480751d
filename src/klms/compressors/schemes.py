"""The list of schemes. A new one is a file that describes it, and a line here."""

from typing import Any

from klms.compressors import (
    drive,
    eden,
    float32,
    klms_mask,
    klms_qsgd,
    klms_rotated,
    klms_sign,
    mask,
    qsgd,
    sign,
    terngrad,
    topk,
)
from klms.compressors.scheme import Scheme

SCHEMES: dict[str, Scheme[Any]] = {
    scheme.name: scheme
    for scheme in (
        float32.SCHEME,
        mask.SAMPLED,
        mask.THRESHOLD,
        klms_mask.SCHEME,
        qsgd.SCHEME,
        klms_qsgd.SCHEME,
        sign.SCHEME,
        sign.STOCHASTIC,
        klms_sign.SCHEME,
        terngrad.SCHEME,
        drive.SCHEME,
        eden.SCHEME,
        klms_rotated.SCHEME,
        topk.SCHEME,
    )
}
UPDATE_SCHEMES = {name: scheme for name, scheme in SCHEMES.items() if scheme.codes == "updates"}
"""Schemes for the difference between two models, as FedAvg and Flower apps send it."""
