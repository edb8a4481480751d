"""The server's line: `strategy = klms.flower.Compressed(FedAvg(...), bits_per_parameter=1)`."""

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from klms.compressors.piece_rates import MAX_RATE
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.errors import CorruptMessage, InvalidArgument, NothingTrained
from klms.flower import frame, sealing
from klms.flower.delivery import Delivery
from klms.flower.downlink import ModelDownlink, Steps
from klms.flower.model import SMALL, Model, check_finite
from klms.flower.policy import AUTO, ArrayBits, CompressionPolicy
from klms.flower.rates import Rate, Rates
from klms.flower.records import places_of, read
from klms.flower.replies import Round
from klms.flower.request import RECORD
from klms.flower.sealing import ServerKey
from klms.flower.surroundings import check_around, check_kind, check_within
from klms.flower.uplink import Uplink, integers_of
from klms.printable import printable

log = logging.getLogger("flwr")
_STEPS = ("summary", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
"""What `start` calls of a strategy."""


class Compressed(Strategy):
    """Any strategy, with clients that send compressed updates. Clients without the mod take part uncompressed.

    `bits_per_parameter` counts whole payloads, in both directions; `up` and `down` set them apart, and with `down=32`
    the model goes out unchanged. Each may be a function of the round: `lambda round: 1 if round < 10 else 0.1`; `up`
    also of the node: `lambda round, node: ...`. `array_bits` gives some arrays of the updates rates of their own, by
    patterns of their names or by a function: `{"head.*": 8}`; the others share what that leaves of the whole. Instead
    of all these, `budget` is in bytes per round, for all clients and both directions, half for each. The first model
    that a client gets has `first` bits per parameter: 1 will do for one that was not trained before.
    `scheme` is for the updates: one of `klms.compressors.schemes`, with its settings by name, or `auto`, the one of
    least error. Arrays of at most one dimension and `small` entries are sent unchanged. With fewer than `min_replies`
    sound replies the model stays unchanged, or training stops with an error, as `on_failure` says; it always does if no
    reply ever counts. No client has more than `influence` times the median client's weight, nor more than that times
    its share in the step; 0 lets every client have as much as it says. A model that is not finite is thrown away.
    `step` multiplies what was decoded: schemes that send signs alone need it. With `topk`, clients add what was not
    sent to their next update. With `client_secrets`, updates are encrypted so that only the server can read them;
    clients without the mod cannot take part then.

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
        array_bits: ArrayBits | None = None,
        budget: Rate | None = None,
        first: float = 4.0,
        min_replies: int = 1,
        on_failure: Literal["continue", "stop"] = "continue",
        step: float | None = None,
        influence: float = 10.0,
        small: int = SMALL,
        seed: int | None = None,
        rounds_before: int = 0,
        client_secrets: bool = False,
        **settings: object,
    ) -> None:
        check_kind(strategy, _STEPS)
        self._rates = Rates.of(scheme, settings, bits_per_parameter, up, down, array_bits, budget)
        self._key = ServerKey() if client_secrets else None
        if self._key is not None:
            self._rates.overhead = frame.OVERHEAD + sealing.OVERHEAD
        known = self._rates.policy_up(rounds_before + 1) if self._rates.known else None
        if step is None and scheme != AUTO and UPDATE_SCHEMES[scheme].directions_only:
            raise InvalidArgument(f"{scheme} sends directions without lengths: set a step size, such as step=0.002")
        if min_replies < 1 or rounds_before < 0 or small < 0:
            raise InvalidArgument("min_replies must be at least 1; rounds_before and small at least 0")
        if not 0 < (1.0 if step is None else step) < math.inf or not 0 <= (seed or 0) < 2**63:
            raise InvalidArgument("step must be above 0 and finite; seed at least 0 and below 2^63")
        check_within(strategy, None if known is None else known.bits)
        if not (influence == 0 or 1 <= influence < math.inf):
            raise InvalidArgument(f"influence must be 0 or at least 1, got {influence}")
        self.influence = influence
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
        self.down: CompressionPolicy | None = self._rates.policy_down(rounds_before + 1, parameters=1, messages=1)
        """How the model of this round is compressed; None if it is not."""
        self.seed = seed
        self.rounds_before = rounds_before
        self._uplink = Uplink(small, public_key=b"" if self._key is None else self._key.public)
        self._asked = 0
        self._integers: frozenset[str] | None = None  # arrays of the model that held integers when training began
        self._round = Round()
        self._delivery = Delivery()
        self.uplink_bytes = 0
        """Bytes of all payloads that counted, since the start."""
        self.downlink_bytes = 0
        """Bytes of all models that went out, in whatever form, since the start."""

    def summary(self) -> None:
        log.info("\t├──> klms: %s", self._rates.described(self.rounds_before + 1))
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
            self._uplink.seed = secrets.randbits(63) if self.seed is None else self.seed
            self._delivery = Delivery(timeout=self._delivery.timeout)
            self.uplink_bytes = self.downlink_bytes = 0
        size = sum(math.prod(array.shape) for array in arrays.values())
        self.down = self._rates.policy_down(number, size, self._asked or self._likely_clients(grid))
        model = self._model_of_clients(arrays)
        self._round = Round(self.step, self.influence, self._key)
        self._uplink.begin({} if self._delivery.downlink is None else self._delivery.downlink.last_step)
        messages = list(self._inner["configure_train"](server_round, model, config, grid))
        by_node = sorted(messages, key=lambda message: message.metadata.dst_node_id)  # strategies shuffle them
        self._asked = len(messages)
        self._configured += len(messages)
        bits = []
        for client, message in enumerate(by_node):
            node = message.metadata.dst_node_id
            records = self._compressible(message.content)
            if records is None:
                self._round.unasked.add(node)
                continue
            policy = self._rates.policy_up(number, node, size, len(messages))
            bits.append(math.inf if policy.bits is None else policy.bits)
            expected = self._uplink.ask(records, policy, number, client)
            self._round.expected[node][client] = expected
            message.content = RecordDict({**message.content, RECORD: ConfigRecord({**expected.request.values()})})
        self._delivery.prepare(messages, model, grid)
        if self._delivery.downlink is not None:
            self._delivery.downlink.expect(bits)
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
            arrays = self._finite(arrays)
            if self._round.payload_bytes:
                self._uplink.learn()
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

    def _finite(self, arrays: ArrayRecord | None) -> ArrayRecord | None:
        """Return the strategy's result, or None, which leaves the model unchanged, if it is not finite."""
        try:
            check_finite({} if arrays is None else {name: read(array) for name, array in arrays.items()})
        except CorruptMessage as error:
            log.warning("klms: the round is undone: %s after aggregation", printable(error))
            self._round.counts["undone"] += 1
            return None
        return arrays

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
        downlink = self._delivery.downlink
        if not arrays:
            return arrays
        if downlink is None:
            if self.down is None:
                return arrays
            numpy = {name: read(array) for name, array in arrays.items()}
            self._integers = integers_of(numpy) if self._integers is None else self._integers
            model = Model.for_bits(numpy, self.small, self._integers, self.down.bits)
            before = self.rounds_before + 1 if self.rounds_before else 0  # at most one model per round, and the last
            steps = Steps(self._uplink.seed, model.small, self._integers, model.coarse, before)
            downlink = ModelDownlink(self.down, steps, self.first)
            if not downlink.codes(numpy):
                return arrays
            self._delivery.downlink = downlink
        downlink.policy = self.down
        return downlink.advance(arrays)

    def _likely_clients(self, grid: Grid) -> int:
        """Return how many clients the first round will have, as far as the strategy tells."""
        nodes = max(len(list(grid.get_node_ids())), int(getattr(self.strategy, "min_available_nodes", 1)))
        share = float(getattr(self.strategy, "fraction_train", 1.0))
        return max(1, int(nodes * share), int(getattr(self.strategy, "min_train_nodes", 1)))

    def _compressible(self, content: RecordDict) -> Mapping[str, ArrayRecord] | None:
        """Return the arrays of a message; None, with one line in the log, if klms has to let them pass."""
        records = content.array_records
        arrays = [array for record in records.values() for array in record.values()]
        reason = "there is no floating-point array"
        if any(array.dtype.startswith("float") for array in arrays):
            try:
                places_of(records)
                return records
            except InvalidArgument as error:
                reason = str(error)
        if self._key is not None:
            raise InvalidArgument(f"with client_secrets, no update may pass unsealed: {reason}")
        if not self._passed:
            self._passed = True
            log.warning("klms: updates pass uncompressed: %s", printable(reason))
        return None


def _weight_metric(strategy: object) -> str | None:
    """Return the metric that a strategy weights clients by; a strategy around another one asks the innermost."""
    key = getattr(strategy, "weighted_by_key", None)
    if isinstance(key, str) or strategy is None:
        return key
    return _weight_metric(getattr(strategy, "strategy", None))
