"""The server's line: `strategy = klms.flower.Compressed(FedAvg(...), bits_per_parameter=1)`."""

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from klms.compressors.base import Compressor, Side, SideLearner
from klms.compressors.layout import Layout
from klms.compressors.piece_rates import MAX_RATE
from klms.compressors.scheme import Settings
from klms.errors import InvalidArgument, NothingTrained
from klms.flower.delivery import Delivery
from klms.flower.downlink import UNCOMPRESSED, ModelDownlink, Steps
from klms.flower.frame import ARRAYS, MessageFrame, fingerprint
from klms.flower.model import SMALL, Model
from klms.flower.policy import AUTO, BEST, CompressionPolicy
from klms.flower.replies import Expected, Round
from klms.flower.request import RECORD, CompressionRequest
from klms.flower.surroundings import check_around, check_within

log = logging.getLogger("flwr")
Rate = float | Callable[[int], float]
"""Bits per parameter, always the same or by round."""
_STEPS = ("summary", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
"""What `start` calls of a strategy."""


class Compressed(Strategy):
    """Any strategy, with clients that send compressed updates. Clients without the mod take part uncompressed.

    `bits_per_parameter` counts whole payloads, in both directions; `up` and `down` set them apart, and with `down=32`
    the model goes out unchanged. Each may be a function of the round: `lambda round: 1 if round < 10 else 0.1`. The
    first model that a client gets has `first` bits per parameter: 1 will do for one that was not trained before.
    `scheme` is for the updates: one of `klms.compressors.schemes`, with its settings by name, or `auto`, the one of
    least error. Arrays of at most one dimension and `small` entries are sent unchanged. With fewer than `min_replies`
    sound replies the model stays unchanged, or training stops with an error, as `on_failure` says; it always does if no
    reply ever counts. `step` multiplies what was decoded: schemes that send signs alone need it. With `topk`, clients
    add what was not sent to their next update.

    The shared randomness is a function of `(seed, round)`. Without a `seed` every start draws its own. With one, a
    server that resumes from a model must pass the number of `rounds_before`, since Flower always counts from 1.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        scheme: str = AUTO,
        bits_per_parameter: Rate | None = None,
        up: Rate | None = None,
        down: Rate | None = None,
        first: float = 4.0,
        min_replies: int = 1,
        on_failure: Literal["continue", "stop"] = "continue",
        step: float | None = None,
        small: int = SMALL,
        seed: int | None = None,
        rounds_before: int = 0,
        **settings: object,
    ) -> None:
        if bits_per_parameter is not None and up is not None:
            raise InvalidArgument("bits_per_parameter is for both directions: use up= and down= to set them apart")
        self._rates = bits_per_parameter if up is None else up, bits_per_parameter if down is None else down
        self._named = scheme, settings
        self._policies: dict[object, CompressionPolicy] = {}
        self.policy, self.down = self._policies_in(rounds_before + 1)
        if step is None and self.policy.directions_only:
            raise InvalidArgument(f"{scheme} sends directions without lengths: set a step size, such as step=0.002")
        if min_replies < 1 or rounds_before < 0 or small < 0:
            raise InvalidArgument("min_replies must be at least 1; rounds_before and small at least 0")
        if not 0 < (1.0 if step is None else step) < math.inf or not 0 <= (seed or 0) < 2**63:
            raise InvalidArgument("step must be above 0 and finite; seed at least 0 and below 2^63")
        check_within(strategy, self.policy.bits)
        if not 0 < first <= MAX_RATE:
            raise InvalidArgument(f"first must be above 0 and at most {MAX_RATE:g} bits per parameter, got {first}")
        self.first = first
        self.strategy = strategy
        self._inner: dict[str, Callable[..., Any]] = {name: getattr(strategy, name) for name in _STEPS}
        self._configured = self._counted = 0
        self.min_replies = min_replies
        self.on_failure = on_failure
        self._warned = self._passed = False
        self.step = 1.0 if step is None else step
        self.small = small
        self.seed = seed
        self.rounds_before = rounds_before
        self._drawn_seed = 0
        self._integers: frozenset[str] | None = None
        self._coder: _Coder | None = None
        self._round = Round()
        self._delivery = Delivery()
        self.uplink_bytes = 0
        """Bytes of all payloads that counted, since the start."""
        self.downlink_bytes = 0
        """Bytes of all models that went out, in whatever form, since the start."""

    def _policies_in(self, number: int) -> tuple[CompressionPolicy, CompressionPolicy | None]:
        """Return how updates are compressed in a round, and how the model is; None if that is not."""
        scheme, settings = self._named
        up, down = (rate(number) if callable(rate) else rate for rate in self._rates)
        if ("up", up) not in self._policies:
            self._policies["up", up] = CompressionPolicy.of(scheme, up, settings)
        policy = self._policies["up", up]
        if down is None:  # a scheme whose rate cannot be set says nothing of the downlink
            down = UNCOMPRESSED if policy.bits is None else policy.bits
        if down < UNCOMPRESSED and ("down", down) not in self._policies:
            self._policies["down", down] = CompressionPolicy.of(BEST, down, {})
        return policy, self._policies.get(("down", down))

    def summary(self) -> None:
        bits = "" if self.policy.bits is None else f" at {self.policy.bits:g} bits per parameter"
        down = "uncompressed" if self.down is None else f"at {self.down.bits:g} bits per parameter"
        log.info("\t├──> klms: updates compressed with '%s'%s, the model sent %s", self.policy.scheme, bits, down)
        log.info("\t│\t└── At least %d sound replies per round", self.min_replies)
        self._inner["summary"]()

    def start(self, *arguments: Any, **keywords: Any) -> Result:
        """Run the strategy's own `start`, which a custom strategy may have changed, with compression inside.

        While it runs, what it calls of itself are our methods, which call its own in turn.
        """
        with suppress(TypeError, ValueError):  # a start of another signature, without a timeout
            given = signature(self.strategy.start).bind_partial(*arguments, **keywords).arguments
            self._delivery.timeout = float(given.get("timeout", self._delivery.timeout))
        self._configured = self._counted = 0
        own = vars(self.strategy)
        before = {name: own[name] for name in _STEPS if name in own}
        own.update({name: getattr(self, name) for name in _STEPS})
        try:
            result: Result = self.strategy.start(*arguments, **keywords)
        finally:
            for name in _STEPS:
                del own[name]
            own.update(before)
        if self._configured and not self._counted:
            raise NothingTrained("no reply counted in any round, so the model is the one that training began with")
        return result

    def __getattr__(self, name: str) -> Any:
        """Return what the strategy has and this class has not: its own settings and methods."""
        if name.startswith("__") or "strategy" not in vars(self):
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Add a compression request to every message of the strategy."""
        number = self.rounds_before + server_round
        check_around(self, self.strategy)
        if server_round == 1:
            self._drawn_seed = secrets.randbits(63) if self.seed is None else self.seed
            self._delivery = Delivery(timeout=self._delivery.timeout)
            self.uplink_bytes = self.downlink_bytes = 0
        self.policy, self.down = self._policies_in(number)
        model = self._model_of_clients(arrays)
        self._round = Round(self.step)
        if self._coder is not None:  # a round that was not aggregated must leave no trace
            self._coder = replace(self._coder, learner=self._coder.compressor.learner(self._coder.side))
        by_record: dict[int, Expected] = {}  # strategies send one and the same record to all clients
        messages = list(self._inner["configure_train"](server_round, model, config, grid))
        by_node = sorted(messages, key=lambda message: message.metadata.dst_node_id)  # strategies shuffle them
        self._configured += len(messages)
        for client, message in enumerate(by_node):
            record = self._compressible(message.content)
            if record is None:
                self._round.unasked.add(message.metadata.dst_node_id)
                continue
            if id(record) not in by_record:
                by_record[id(record)] = self._expect(record, number)
            first = by_record[id(record)]
            request = replace(first.request, client=client)
            expected = replace(first, frame=replace(first.frame, client=client), request=request)
            self._round.expected[message.metadata.dst_node_id][client] = expected
            message.content = RecordDict({**message.content, RECORD: ConfigRecord({**request.values()})})
        self._delivery.prepare(messages, model, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the sound replies, count the others by cause, and leave the aggregation to the strategy."""
        replies = self._delivery.settle(replies)
        start = time.perf_counter()
        received = self._round.receive(replies, _weight_metric(self.strategy))
        seconds = time.perf_counter() - start
        arrays, metrics, ok = None, None, self._round.counts["ok"]
        if self._round.counts["uncompressed"] and not self._warned:
            self._warned = True
            log.warning(
                "klms: %d replies came uncompressed: those ClientApps lack the mod", self._round.counts["uncompressed"]
            )
        if ok >= self.min_replies:
            self._counted += ok
            arrays, metrics = self._inner["aggregate_train"](server_round, received)
            if arrays is not None and self._delivery.downlink is not None:
                arrays = self._delivery.downlink.add_lost(arrays)
            if self._coder is not None and self._round.payload_bytes:
                self._coder = replace(self._coder, side=self._coder.learner.finish())
        elif self.on_failure == "stop":
            raise NothingTrained(f"round {server_round}: {ok} replies count, {self.min_replies} are needed")
        else:
            log.warning("klms: %d replies count, %d are needed: the model stays unchanged", ok, self.min_replies)
        metrics = MetricRecord() if metrics is None else metrics
        metrics.update({f"klms-{word}": count for word, count in self._round.counts.items()})
        metrics["klms-uplink-bytes"] = self._round.payload_bytes
        self.uplink_bytes += self._round.payload_bytes
        metrics.update(self._downlink_metrics())
        metrics["klms-bits-per-parameter"] = 8 * self._round.payload_bytes / max(1, self._round.parameters)
        metrics["klms-decode-seconds"] = round(seconds, 4)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model only to nodes that do not hold it."""
        model = self._model_of_clients(arrays)
        messages = list(self._inner["configure_evaluate"](server_round, model, config, grid))
        self._delivery.prepare(messages, model, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        metrics: MetricRecord | None = self._inner["aggregate_evaluate"](server_round, self._delivery.settle(replies))
        if self._delivery.messages:
            metrics = MetricRecord() if metrics is None else metrics
            metrics.update(self._downlink_metrics())
        return metrics

    def _downlink_metrics(self) -> dict[str, int]:
        self.downlink_bytes += self._delivery.sent_bytes
        return {"klms-downlink-bytes": self._delivery.sent_bytes, "klms-resyncs": self._delivery.resyncs}

    def _model_of_clients(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the model that clients train or evaluate: what they can decode of this one."""
        if self.down is None or not arrays:
            return arrays
        numpy = {name: array.numpy() for name, array in arrays.items()}
        if self._integers is None:
            self._integers = frozenset(name for name, array in numpy.items() if array.dtype.kind != "f")
        if self._delivery.downlink is None:
            model = Model.for_bits(numpy, self.small, self._integers, self.down.bits)
            steps = Steps(self._drawn_seed, model.small, self._integers, model.coarse)
            downlink = ModelDownlink(self.down, steps, self.first)
            if not downlink.codes(numpy):
                return arrays
            self._delivery.downlink = downlink
        self._delivery.downlink.policy = self.down
        return self._delivery.downlink.advance(arrays)

    def _compressible(self, content: RecordDict) -> ArrayRecord | None:
        """Return the arrays of a message; None, with one line in the log, if klms has to let them pass."""
        records = list(content.array_records.values())
        if len(records) != 1:
            reason = f"messages have {len(records)} ArrayRecords, and klms compresses one"
        elif not any(array.dtype.startswith(("float", "bfloat")) for array in records[0].values()):
            reason = "there is no floating-point array"
        else:
            return records[0]
        if not self._passed:
            self._passed = True
            log.warning("klms: updates pass uncompressed: %s", reason)
        return None

    def _expect(self, record: ArrayRecord, number: int) -> Expected:
        """Return what the first of the clients with these arrays is asked for.

        The coder is kept over the rounds; for another model, its side information starts again.
        """
        arrays = {name: array.numpy() for name, array in record.items()}
        if self._integers is None:
            self._integers = frozenset(name for name, array in arrays.items() if array.dtype.kind != "f")
        model = Model.for_bits(arrays, self.small, self._integers, self.policy.bits)
        scheme, settings = self.policy.for_model(model)
        which = (scheme.name, settings, model.layout)
        if model.layout.d and (self._coder is None or self._coder.which != which):
            compressor = scheme.make(model.layout, settings, None)
            side = compressor.start()
            self._coder = _Coder(which, compressor, side, compressor.learner(side))
        coder = self._coder if model.layout.d else None
        unchanged, side = tuple(sorted(self._integers)), coder.side if coder else {}
        coarse = tuple(sorted(model.coarse))
        numbers = self._drawn_seed, number, 0, model.small
        request = CompressionRequest(scheme.name, settings, *numbers, unchanged, side, coarse)
        frame = MessageFrame(ARRAYS, number, 0, fingerprint([*request.agreed(), *model.parts()]))
        return Expected(frame, request, model, (coder.compressor, coder.learner) if coder else None)


@dataclass(frozen=True)
class _Coder:
    """A compressor with the side information of this round, and the learner of the next round's."""

    which: tuple[str, Settings, Layout]
    compressor: Compressor
    side: Side
    learner: SideLearner


def _weight_metric(strategy: object) -> str | None:
    """Return the metric that a strategy weights clients by; a strategy around another one asks the innermost."""
    key = getattr(strategy, "weighted_by_key", None)
    if isinstance(key, str) or strategy is None:
        return key
    return _weight_metric(getattr(strategy, "strategy", None))
