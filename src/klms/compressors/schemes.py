"""Every scheme for dense updates by its name, with the settings of all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from klms.codec import Codec, Selection, UpdateRule
from klms.compressors.base import Compressor
from klms.compressors.block_coder import BlockCoder
from klms.compressors.drive import Drive
from klms.compressors.eden import Eden
from klms.compressors.float32 import Float32
from klms.compressors.klms_qsgd import KLMSQSGD
from klms.compressors.klms_rotated import KLMSRotated
from klms.compressors.klms_sign import KLMSSign
from klms.compressors.layout import Layout
from klms.compressors.qsgd import QSGD
from klms.compressors.sign import Sign
from klms.compressors.terngrad import TernGrad
from klms.compressors.topk import TopK


@dataclass(frozen=True)
class SchemeSettings:
    """Named and explained as in `RunConfig`. One that a scheme does not use changes nothing for it."""

    rate: float = 1.0
    keep: float = 0.01
    levels: int = 1
    bucket: int = 4096
    prior: float = 10.0
    scale: float = 2.0
    tern_clip: float = 2.5
    bits: int = 8
    target: float = 8.0
    max_size: int = 4096
    fixed: int = 0
    low: float = 0.7
    high: float = 1.4
    aggregate: Literal["location", "count"] = "location"
    selection: Selection = "sample"

    def coder(self, d: int, threads: int | None) -> BlockCoder:
        """The codec with its block policy."""
        return BlockCoder(
            d=d,
            codec=Codec(bits=self.bits, selection=self.selection, threads=threads),
            target=self.target,
            max_size=self.max_size,
            rule=UpdateRule(self.low * self.target, self.high * self.target),
            fixed=self.fixed,
            aggregate=self.aggregate,
        )


Make = Callable[[Layout, SchemeSettings, int | None], Compressor]
"""The last argument is the number of threads; it changes no byte."""

SCHEMES: dict[str, Make] = {
    "float32": lambda layout, s, threads: Float32(layout.d),
    "qsgd": lambda layout, s, threads: QSGD(layout, s.levels, s.bucket),
    "qsgd-klms": lambda layout, s, threads: KLMSQSGD(layout, s.bucket, s.prior, s.coder(layout.d, threads)),
    "signsgd": lambda layout, s, threads: Sign(layout),
    "signsgd-stochastic": lambda layout, s, threads: Sign(layout, s.scale),
    "signsgd-klms": lambda layout, s, threads: KLMSSign(layout, s.scale, s.coder(layout.d, threads)),
    "terngrad": lambda layout, s, threads: TernGrad(layout, s.tern_clip),
    "drive": lambda layout, s, threads: Drive(layout.d, threads=threads),
    "eden": lambda layout, s, threads: Eden(layout.d, s.rate, threads),
    "klms-rotated": lambda layout, s, threads: KLMSRotated(layout.d, s.rate, s.bits, threads),
    "topk": lambda layout, s, threads: TopK(layout, s.keep),
}
