"""The dense scheme: its settings, and its `Scheme`, which codes updates of any size."""

from pydantic import Field

from klms.compressors.scheme import Scheme, Settings
from klms.compressors.trellis.chunks import ChunkedTrellis
from klms.compressors.trellis.message import NUMBER, Effort, Trellis
from klms.compressors.trellis.rates import MAX_RATE, MIN_RATE


class TrellisSettings(Settings):
    """Settings of `trellis`."""

    rate: float = Field(1.0, ge=MIN_RATE, le=MAX_RATE, description="trellis: bits per parameter; may be a fraction.")
    effort: Effort = Field("balanced", description="trellis: trade-off between encoding time and error.")


SCHEME = Scheme(
    name="trellis",
    title="Paths through a trellis after a random rotation, rates by layer, outliers apart",
    reference="klms; compare `klms bench mean`",
    settings=TrellisSettings,
    make=lambda layout, settings, threads: ChunkedTrellis(Trellis(layout, settings.rate, settings.effort, threads)),
    operating_points=tuple(
        {"rate": rate, "effort": effort}
        for effort in ("fast", "balanced", "best")
        for rate in (0.02, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 3, 4)
    ),
    wire_number=NUMBER,
)
