"""The uplink of `Compressed`: what each client is asked for, and the side information that its scheme learns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from flwr.app import ArrayRecord

from klms.compressors.base import Compressor, Side, SideLearner
from klms.compressors.layout import Layout
from klms.flower.frame import ARRAYS, MessageFrame, fingerprint
from klms.flower.model import Array, Model
from klms.flower.policy import CompressionPolicy, Plan
from klms.flower.records import gathered, places_of, read
from klms.flower.replies import Expected
from klms.flower.request import CompressionRequest


def integers_of(arrays: Mapping[str, Array]) -> frozenset[str]:
    """Return the names of arrays that are not floating-point, which strategies may turn into such by averaging."""
    return frozenset(name for name, array in arrays.items() if array.dtype.kind != "f")


@dataclass
class Uplink:
    """Asks for updates, round by round."""

    small: int
    seed: int = 0
    """Of the shared randomness."""
    public_key: bytes = b""
    """What clients seal their payloads with; empty if they do not."""
    integers: frozenset[str] | None = None
    """Arrays that held integers when they were first sent."""
    coder: "_Coder | None" = None
    """Of the latest model; for another one, side information starts again."""
    last_step: Mapping[str, Array] = field(default_factory=dict)
    """What clients may know of the last step of the model; see `history_of`."""
    _expected: dict[tuple[object, ...], Expected] = field(default_factory=dict)

    def begin(self, last_step: Mapping[str, Array]) -> None:
        """Start a round; one that was not aggregated must leave no trace."""
        self.last_step = last_step
        self._expected.clear()
        if self.coder is not None:
            self.coder = replace(self.coder, learner=self.coder.compressor.learner(self.coder.side))

    def ask(self, records: Mapping[str, ArrayRecord], policy: CompressionPolicy, number: int, client: int) -> Expected:
        """Return what a client with these arrays is asked for in round `number`."""
        key = (id(policy), *map(id, records.values()))  # strategies send the very same records to all clients
        if key not in self._expected:
            self._expected[key] = self._expect(records, policy, number)
        first = self._expected[key]
        request = replace(first.request, client=client)
        return replace(first, frame=replace(first.frame, client=client), request=request)

    def learn(self) -> None:
        """Take up the side information that the replies of this round have taught."""
        if self.coder is not None:
            self.coder = replace(self.coder, side=self.coder.learner.finish())

    def _expect(self, records: Mapping[str, ArrayRecord], policy: CompressionPolicy, number: int) -> Expected:
        places = places_of(records)
        arrays = {name: read(array) for name, array in gathered(places, records).items()}
        if self.integers is None:
            self.integers = integers_of(arrays)
        model = Model.for_bits(arrays, self.small, self.integers, policy.bits)
        plan = policy.for_model(model)
        request = CompressionRequest(
            plan.scheme.name,
            plan.settings,
            self.seed,
            number,
            client=0,
            small=model.small,
            sent_unchanged=tuple(sorted(self.integers)),
            coarse=tuple(sorted(model.coarse)),
            groups=plan.groups,
            server=self.public_key,
        )
        coder = None
        if model.layout.d:
            coder = self._coder_of(plan, model.layout, request)
            request = replace(request, side=coder.side)
        frame = MessageFrame(ARRAYS, number, 0, fingerprint([*request.agreed(), *model.parts()]))
        last_step = self.last_step if request.uses_history else {}
        return Expected(frame, request, model, places, (coder.compressor, coder.learner) if coder else None, last_step)

    def _coder_of(self, plan: Plan, layout: Layout, request: CompressionRequest) -> "_Coder":
        which = (plan, layout)
        if self.coder is None or self.coder.which != which:
            compressor = request.compressor(layout, None)
            side = compressor.start()
            self.coder = _Coder(which, compressor, side, compressor.learner(side))
        return self.coder


@dataclass(frozen=True)
class _Coder:
    """A compressor with the side information of this round, and the learner of the next round's."""

    which: tuple[Plan, Layout]
    compressor: Compressor
    side: Side
    learner: SideLearner
