"""The request for each client's update, and the side information that the scheme learns from round to round."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from klms.compressors.base import Compressor, Side, SideLearner
from klms.compressors.layout import Layout
from klms.container import Array
from klms.exchange.model import Apart, Model
from klms.exchange.policy import CompressionPolicy, Plan
from klms.exchange.request import CompressionRequest


@dataclass(frozen=True)
class Ask:
    """A request, the model that it refers to, and the compressor and learner for the answers."""

    request: CompressionRequest
    model: Model
    coder: tuple[Compressor, SideLearner] | None


@dataclass
class Uplink:
    """Asks for updates, round by round."""

    seed: int
    public_key: bytes = b""
    """Key with which clients seal their replies; empty if replies are not sealed."""
    updates: bool = False
    """Whether clients answer with differences."""
    apart: Apart | None = None
    """Names of the arrays that are not compressed, decided when the first model is seen."""
    coder: "_Coder | None" = None
    """Coder of the latest plan and layout. If either changes, the side information is built up anew."""

    @property
    def exact(self) -> frozenset[str]:
        """Arrays that are always sent unchanged, such as those that held integers when they were first sent."""
        return frozenset() if self.apart is None else self.apart.exact

    def begin(self) -> None:
        """Start a round, and forget what was learned in the last round if that round was not aggregated."""
        if self.coder is not None:
            self.coder = replace(self.coder, learner=self.coder.compressor.learner(self.coder.side))

    def learn(self) -> None:
        """Adopt the side information learned from the replies of this round."""
        if self.coder is not None:
            self.coder = replace(self.coder, side=self.coder.learner.finish())

    def apart_of(self, arrays: Mapping[str, Array]) -> Apart:
        """Return which arrays are not compressed, as decided when each of them was first seen."""
        self.apart = Apart.of(arrays) if self.apart is None else self.apart.with_new(arrays)
        return self.apart

    def ask(self, arrays: Mapping[str, Array], policy: CompressionPolicy) -> Ask:
        """Return the request for clients that hold these arrays, and the compressor and learner for their answers."""
        apart = self.apart_of(arrays)
        if self.updates:
            arrays = {name: np.zeros(array.shape, dtype=array.dtype) for name, array in arrays.items()}
        model = apart.model(arrays, policy.bits)
        plan = policy.for_model(model)
        request = CompressionRequest(
            plan.scheme.name,
            plan.settings,
            self.seed,
            sent_unchanged=tuple(sorted(model.sent_unchanged)),
            coarse=tuple(sorted(model.coarse)),
            groups=plan.groups,
            server=self.public_key,
            updates=self.updates,
        )
        if not model.layout.d:
            return Ask(request, model, None)
        coder = self._coder_of(plan, model.layout, request)
        return Ask(replace(request, side=coder.side), model, (coder.compressor, coder.learner))

    def _coder_of(self, plan: Plan, layout: Layout, request: CompressionRequest) -> "_Coder":
        which = (plan, layout)
        if self.coder is None or self.coder.which != which:
            compressor = request.compressor(layout, None)
            side = compressor.start()
            self.coder = _Coder(which, compressor, side, compressor.learner(side))
        return self.coder


@dataclass(frozen=True)
class _Coder:
    """A compressor, the side information of this round, and the learner of the next round's side information."""

    which: tuple[Plan, Layout]
    compressor: Compressor
    side: Side
    learner: SideLearner
