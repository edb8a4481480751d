"""The server's line: `strategy = klms.flower.Compressed(FedAvg(...), bits_per_parameter=1)`."""

import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from klms.compressors.base import Compressor, Side
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES, SchemeSettings
from klms.flower.choice import AUTO, LENGTHLESS, Choice
from klms.flower.frame import ARRAYS, Ticket, fingerprint
from klms.flower.mod import the_arrays
from klms.flower.model import SMALL, Model
from klms.flower.order import RECORD, Order
from klms.flower.replies import Expected, Round

log = logging.getLogger("flwr")


class Compressed(Strategy):
    """Any strategy, with clients that send compressed updates. Clients without the mod take part as they are.

    `scheme` is one of `klms.compressors.schemes`, with its settings by name, or `auto`: the one of least error at
    `bits_per_parameter`, which counts the whole payload. Arrays of at most one dimension and `small` entries pass as
    they are. `min_replies` sound replies make a round; with fewer the model stays as it is. `step` multiplies what was
    decoded: schemes that send signs alone need one. `error_feedback` lets clients add what a scheme lost to their next
    update (topk: always, unless told otherwise).

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
        error_feedback: bool | None = None,
        small: int = SMALL,
        seed: int | None = None,
        rounds_before: int = 0,
        **settings: object,
    ) -> None:
        if step is None and scheme in LENGTHLESS:
            raise ValueError(f"{scheme} sends directions without lengths: say how far to go, for instance step=0.002")
        if min_replies < 1 or rounds_before < 0 or small < 0:
            raise ValueError("min_replies must be at least 1; rounds_before and small at least 0")
        self.strategy = strategy
        self.choice = Choice.of(scheme, bits_per_parameter, settings)
        self.min_replies = min_replies
        self.step = 1.0 if step is None else step
        self.error_feedback = scheme == "topk" if error_feedback is None else error_feedback
        self.small = small
        self.seed = secrets.randbits(63) if seed is None else seed
        self.rounds_before = rounds_before
        self._compressors: dict[tuple[str, SchemeSettings, Layout], Compressor] = {}
        self._side: Side = {}
        self._round = Round()

    def summary(self) -> None:
        """Log what is compressed, and how."""
        bits = "" if self.choice.bits is None else f" at {self.choice.bits:g} bits per parameter"
        log.info("\t├──> klms: updates through '%s'%s", self.choice.scheme, bits)
        log.info("\t│\t├── At least %d sound replies a round", self.min_replies)
        log.info("\t│\t└── Seed %d, rounds before this start: %d", self.seed, self.rounds_before)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """What the strategy sends, with our order in every message."""
        number = self.rounds_before + server_round
        self._round = Round(self.step)
        agreed: dict[int, Expected] = {}  # strategies give all clients one and the same record
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        in_order = sorted(
            messages, key=lambda message: message.metadata.dst_node_id
        )  # strategies sample without a seed
        for client, message in enumerate(in_order):
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
        counting, failed = self._round.sort(list(replies), getattr(self.strategy, "weighted_by_key", None))
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
        parameters = self._round.parameters
        metrics["klms-uplink-bytes"] = self._round.payload_bytes
        metrics["klms-bits-per-parameter"] = 8 * self._round.payload_bytes / parameters if parameters else 0.0
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
        model = Model({name: array.numpy() for name, array in record.items()}, self.small)
        scheme, settings = self.choice.for_model(model)
        compressor = self._compressor(scheme, settings, model.layout) if model.layout.d else None
        if compressor is not None and not self._side:
            self._side = compressor.start()
        order = Order(scheme, settings, self.seed, number, 0, self.small, self.error_feedback, self._side)
        ticket = Ticket(ARRAYS, number, 0, fingerprint([*order.agreed(), *model.parts()]))
        return Expected(ticket, order, model, compressor)

    def _compressor(self, scheme: str, settings: SchemeSettings, layout: Layout) -> Compressor:
        """Kept over the rounds: some compute things once."""
        which = (scheme, settings, layout)
        if which not in self._compressors:
            self._compressors = {which: SCHEMES[scheme](layout, settings, None)}
        return self._compressors[which]

    def _learn(self) -> None:
        """The side information of the next round, of those schemes that have any."""
        if self._side and self._round.vectors:
            (compressor,) = self._compressors.values()
            self._side = compressor.learn(self._side, self._round.messages, self._round.vectors)
