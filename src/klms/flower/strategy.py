"""The server's line: `strategy = klms.flower.Compressed(FedAvg(...), bits_per_parameter=1)`."""

import logging
import math
import secrets
import time
from collections.abc import Iterable
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    Strategy,
)

from klms.compressors.base import Compressor, Side
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES, SchemeSettings
from klms.flower import screen
from klms.flower.choice import AUTO, LENGTHLESS, Choice
from klms.flower.frame import ARRAYS, Ticket, fingerprint
from klms.flower.mod import the_arrays
from klms.flower.model import SMALL, Model
from klms.flower.order import RECORD, Order
from klms.flower.replies import Expected, Round

log = logging.getLogger("flwr")
_CLIPS_AT_CLIENTS = (DifferentialPrivacyClientSideAdaptiveClipping, DifferentialPrivacyClientSideFixedClipping)


class Compressed(Strategy):
    """Any strategy, with clients that send compressed updates. Clients without the mod take part as they are.

    `scheme` is one of `klms.compressors.schemes`, with its settings by name, or `auto`: the one of least error at
    `bits_per_parameter`, which counts the whole payload. Arrays of at most one dimension and `small` entries pass as
    they are. `min_replies` sound replies make a round; with fewer the model stays as it is. `step` multiplies what was
    decoded: schemes that send signs alone need one. With `topk`, clients add what was not sent to their next update.

    The shared randomness is a function of `(seed, round)`. Without a `seed` every start draws its own. With one, a
    server that goes on with a model must say how many `rounds_before` there were, since Flower counts from 1 each time.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        scheme: str = AUTO,
        bits_per_parameter: float | None = None,
        min_replies: int = 1,
        step: float | None = None,
        small: int = SMALL,
        seed: int | None = None,
        rounds_before: int = 0,
        **settings: object,
    ) -> None:
        if step is None and scheme in LENGTHLESS:
            raise ValueError(f"{scheme} sends directions without lengths: say how far to go, for instance step=0.002")
        if min_replies < 1 or rounds_before < 0 or small < 0:
            raise ValueError("min_replies must be at least 1; rounds_before and small at least 0")
        if not 0 < (1.0 if step is None else step) < math.inf or not 0 <= (seed or 0) < 2**63:
            raise ValueError("step must be above 0 and finite; seed at least 0 and below 2^63")
        if isinstance(strategy, _CLIPS_AT_CLIENTS):
            raise ValueError(
                f"{type(strategy).__name__} clips before klms encodes, and what is decoded may be longer than its "
                "noise allows for: take the one that clips at the server"
            )
        self.strategy = strategy
        self.choice = Choice.of(scheme, bits_per_parameter, settings)
        self.min_replies = min_replies
        self.step = 1.0 if step is None else step
        self.small = small
        self.seed = seed
        self.rounds_before = rounds_before
        self._drawn = 0
        self._integers: frozenset[str] | None = None
        self._compressor: tuple[tuple[str, SchemeSettings, Layout], Compressor] | None = None
        self._side: Side = {}
        self._round = Round()

    def summary(self) -> None:
        """Log what is compressed, and how."""
        bits = "" if self.choice.bits is None else f" at {self.choice.bits:g} bits per parameter"
        log.info("\t├──> klms: updates through '%s'%s", self.choice.scheme, bits)
        log.info("\t│\t└── At least %d sound replies a round", self.min_replies)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What the strategy sends, with our order in every message."""
        number = self.rounds_before + server_round
        if server_round == 1:
            self._drawn = secrets.randbits(63) if self.seed is None else self.seed
        self._round = Round(self.step)
        agreed: dict[int, Expected] = {}  # strategies give all clients one and the same record
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        by_node = sorted(messages, key=lambda message: message.metadata.dst_node_id)  # strategies shuffle as they like
        for client, message in enumerate(by_node):
            _, record = the_arrays(message.content)
            if id(record) not in agreed:
                agreed[id(record)] = self._agree(record, number)
            base = agreed[id(record)]
            expected = replace(
                base, ticket=replace(base.ticket, client=client), order=replace(base.order, client=client)
            )
            self._round.ask(message.metadata.dst_node_id, expected)
            message.content = RecordDict({**message.content, RECORD: ConfigRecord({**expected.order.values()})})
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode what is sound, count the rest by cause, and leave the aggregation to the strategy."""
        start = time.perf_counter()
        counting, failed = self._round.sort(list(replies), screen.weight_key(self.strategy))
        seconds = time.perf_counter() - start
        arrays, metrics = None, None
        if len(counting) >= self.min_replies:
            arrays, metrics = self.strategy.aggregate_train(server_round, [*counting, *failed])
            self._learn()
        else:
            log.warning("klms: %d replies count, %d are needed: the model stays", len(counting), self.min_replies)
        metrics = MetricRecord() if metrics is None else metrics
        for word, count in self._round.counts.items():
            metrics[f"klms-{word}"] = count
        metrics["klms-uplink-bytes"] = self._round.payload_bytes
        metrics["klms-bits-per-parameter"] = self._round.bits_per_parameter
        metrics["klms-decode-seconds"] = round(seconds, 4)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the strategy does."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """As the strategy does."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def _agree(self, record: ArrayRecord, number: int) -> Expected:
        """What the first of the clients with these arrays is told, and must show."""
        arrays = {name: array.numpy() for name, array in record.items()}
        if self._integers is None:
            self._integers = frozenset(name for name, array in arrays.items() if array.dtype.kind != "f")
        model = Model(arrays, self.small, self._integers)
        scheme, settings = self.choice.for_model(model)
        compressor = self._made(scheme, settings, model.layout) if model.layout.d else None
        kept, feedback = tuple(sorted(self._integers)), scheme == "topk"
        order = Order(scheme, settings, self._drawn, number, 0, self.small, feedback, kept, self._side)
        ticket = Ticket(ARRAYS, number, 0, fingerprint([*order.agreed(), *model.parts()]))
        return Expected(ticket, order, model, compressor)

    def _made(self, scheme: str, settings: SchemeSettings, layout: Layout) -> Compressor:
        """The compressor, kept over the rounds; with another model, its side information begins anew."""
        which = (scheme, settings, layout)
        if self._compressor is None or self._compressor[0] != which:
            self._compressor = (which, SCHEMES[scheme](layout, settings, None))
            self._side = self._compressor[1].start()
        return self._compressor[1]

    def _learn(self) -> None:
        """The side information of the next round, of those schemes that have any."""
        messages, vectors = self._round.learned()
        if self._side and vectors and self._compressor is not None:
            self._side = self._compressor[1].learn(self._side, messages, vectors)
