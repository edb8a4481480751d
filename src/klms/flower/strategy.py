"""The server's line: `strategy = klms.flower.Compressed(FedAvg(...), bits_per_parameter=1)`."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from inspect import signature
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from klms.errors import CorruptMessage, InvalidArgument, NothingTrained
from klms.exchange.robust import Robust
from klms.exchange.server import Server
from klms.flower.answer import Alike, check_finite_like
from klms.flower.phase import Phase, Run
from klms.flower.records import arrays_of, record_of
from klms.flower.surroundings import check_kind, check_within
from klms.printable import printable

log = logging.getLogger("flwr")
_HOOKS = ("summary", "configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
"""Methods of a strategy that its `start` calls."""


class Compressed(Strategy):
    """Any strategy, with models and updates at few bits per parameter. Clients without the mod take part uncompressed.

    `exchange` are the arguments of `klms.Server`: `bits_per_parameter`, `up`, `down`, `budget`, `scheme`, `seed` and so
    on. A function that sets a rate may ask for the `round` and, for the uplink, for the `client`, which is the id of
    the node as text. With fewer than `min_replies` sound replies, the model stays unchanged or training stops with an
    error, as `on_failure` says. If no reply is accepted in any round, training always ends with an error. Updates are
    passed on as clients sent them, unless `robust` gives the share of clients that may be hostile; the influence of
    hostile clients is then bounded (`klms.exchange.robust`). A model that is not finite is discarded.
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        min_replies: int = 1,
        on_failure: Literal["continue", "stop"] = "continue",
        robust: float = 0.0,
        **exchange: Any,
    ) -> None:
        if isinstance(strategy, Compressed):
            raise InvalidArgument("the strategy is compressed already: Compressed takes the strategy itself")
        check_kind(strategy, _HOOKS)
        if min_replies < 1:
            raise InvalidArgument(f"min_replies must be at least 1, got {min_replies}")
        if on_failure not in ("continue", "stop"):
            raise InvalidArgument(f'on_failure must be "continue" or "stop", got {on_failure!r}')
        self.min_replies = min_replies
        self.on_failure = on_failure
        self.robust = Robust(robust) if robust else None
        self._exchange = exchange
        self._begin()
        check_within(strategy, self.server.rates.known(self.server.round))
        self._inner: dict[str, Callable[..., Any]] = {name: getattr(strategy, name) for name in _HOOKS}
        self._timeout = 3600.0
        self.strategy = strategy

    def _begin(self) -> None:
        self.server = Server(**self._exchange)
        """The exchange with the clients; every start makes a new one."""
        self._run = Run()
        self._phase: Phase | None = None
        self._given = ArrayRecord()
        self._started = False

    @property
    def uplink_bytes(self) -> int:
        """Bytes of all accepted replies since the start."""
        return self.server.uplink_bytes

    @property
    def downlink_bytes(self) -> int:
        """Bytes of all models that were sent since the start, compressed or not."""
        return self.server.downlink_bytes

    def summary(self) -> None:
        """Log what is compressed; an outer strategy that calls this gets an error, since it would see no arrays."""
        if not self._started:
            raise InvalidArgument(
                "a strategy around Compressed would see payloads instead of arrays, and clip none of them: "
                "write Compressed(ThatStrategy(strategy, ...))"
            )
        log.info("\t├──> klms: %s", self.server.rates.described(self.server.round))
        log.info("\t│\t└── At least %d sound replies per round", self.min_replies)
        self._inner["summary"]()

    def start(self, *arguments: Any, **keywords: Any) -> Result:
        """Run the `start` of the wrapped strategy (Flower's, or an override of it) with compression inside.

        While `start` runs, the strategy's hooks are replaced by ours, which delegate to them.
        """
        with suppress(TypeError, ValueError):  # a `start` with another signature, without a timeout
            given = signature(self.strategy.start).bind_partial(*arguments, **keywords).arguments
            self._timeout = float(given.get("timeout", self._timeout))
        self._begin()
        self._started = True
        own = vars(self.strategy)
        before = {name: own[name] for name in _HOOKS if name in own}
        own.update({name: getattr(self, name) for name in _HOOKS})
        try:
            result: Result = self.strategy.start(*arguments, **keywords)
        finally:
            for name in _HOOKS:
                del own[name]
            own.update(before)
        if self._run.asked and not self._run.counted:
            untrained = "no reply counted in any round, so the model is the one that training began with"
            raise NothingTrained(untrained + self._run.because)
        up = 8 * self.uplink_bytes / max(1, self._run.entries_up)
        down = 8 * self.downlink_bytes / max(1, self._run.entries_down)
        text = "klms: %s bytes up, %.3g bits per parameter; %s bytes down, %.3g bits per parameter"
        log.info(text, f"{self.uplink_bytes:,}", up, f"{self.downlink_bytes:,}", down)
        return result

    def __getattr__(self, name: str) -> Any:
        """Return those settings and methods of the strategy that this class does not have."""
        if name.startswith("__") or "strategy" not in vars(self):
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set the strategy's own settings on the strategy, where they have an effect."""
        inside = vars(self).get("strategy")
        if inside is not None and name not in vars(self) and not name.startswith("_") and hasattr(inside, name):
            setattr(inside, name, value)
        else:
            super().__setattr__(name, value)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **own: Any
    ) -> Iterable[Message]:
        """Put a request into every message of the strategy."""
        self.server.clients = self.server.clients or self._likely_clients(grid)
        number = int(self._exchange.get("rounds_before", 0)) + server_round
        self.server.begin(max(number, self.server.unused_round))
        self._given = arrays
        messages = self._prepared("configure_train", server_round, arrays, config, grid, **own)
        self._run.asked += len(messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Decode the sound replies, count the others by cause, and leave the aggregation to the strategy."""
        phase = self._phase
        if phase is None:  # a `start` of the strategy's own has made the messages, of which klms knows nothing
            aggregated: tuple[ArrayRecord | None, MetricRecord | None]
            aggregated = self._inner["aggregate_train"](server_round, replies)
            return aggregated
        answers, failed = phase.settle(replies)
        if lacking := sum(one.reply is None and bool(one.asked.places) for one in answers):
            text = "klms: %d replies are uncompressed: their ClientApps lack the mod"
            self._run.tell("mod", text, lacking)
        start = time.perf_counter()
        bytes_before, entries_before = self.uplink_bytes, self._run.entries_up
        alike = _alike(self.strategy) if self.robust is None else Alike.WHOLLY
        key = None if alike == Alike.NOT else _weight_metric(self.strategy)
        messages = phase.trained(answers, key, self.robust, alike)
        seconds = time.perf_counter() - start
        arrays, metrics = None, None
        if len(messages) >= self.min_replies:
            self._run.counted += len(messages)
            arrays, metrics = self._inner["aggregate_train"](server_round, [*messages, *failed])
            arrays = self._finite(arrays)
            self.server.uplink.learn()
        elif phase.asked:
            too_few = f"{len(messages)} replies count, {self.min_replies} are needed"
            if self.on_failure == "stop":
                raise NothingTrained(f"round {server_round}: {too_few}{self._run.because}")
            log.warning("klms: %s: the model stays unchanged", too_few)
            if failed and not messages:
                self._inner["aggregate_train"](server_round, failed)  # strategies may count failures
        nbytes = self.uplink_bytes - bytes_before
        metrics = self._with_counts(metrics, nbytes)
        metrics["klms-bits-per-parameter"] = 8 * nbytes / max(1, self._run.entries_up - entries_before)
        metrics["klms-decode-seconds"] = round(seconds, 4)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **own: Any
    ) -> Iterable[Message]:
        """Send the model only to nodes that do not hold it."""
        return self._prepared("configure_evaluate", server_round, arrays, config, grid, **own)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        metrics: MetricRecord | None
        if self._phase is None:
            metrics = self._inner["aggregate_evaluate"](server_round, replies)
            return metrics
        answers, failed = self._phase.settle(replies)
        before = self.uplink_bytes
        messages = self._phase.evaluated(answers)
        metrics = self._inner["aggregate_evaluate"](server_round, [*messages, *failed])
        if metrics is None or not self._phase.asked:
            return metrics
        metrics = self._with_counts(metrics, self.uplink_bytes - before)
        if self.server.quality is not None:  # of the training in this round
            measured = asdict(self.server.quality)
            metrics.update({f"klms-{name.replace('_', '-')}": value for name, value in measured.items()})
        return metrics

    def _with_counts(self, metrics: MetricRecord | None, uplink_bytes: int) -> MetricRecord:
        """Add the nonzero counts of this part of the round to the strategy's metrics."""
        assert self._phase is not None
        counts = {**self._phase.counts, "uplink-bytes": uplink_bytes, "downlink-bytes": self._phase.sent_bytes}
        metrics = MetricRecord() if metrics is None else metrics
        metrics.update({f"klms-{word}": count for word, count in counts.items() if count})
        return metrics

    def _prepared(
        self, hook: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, **own: Any
    ) -> list[Message]:
        coded = self._coded(arrays, closer=hook == "configure_evaluate")
        sent = None if coded is None else ArrayRecord(dict(coded))  # strategies may change the record that they get
        messages = list(self._inner[hook](server_round, arrays if coded is None else coded, config, grid, **own))
        self._phase = Phase(self.server, self._run, grid, self._timeout, sent)
        self._phase.prepare(messages)
        return messages

    def _coded(self, arrays: ArrayRecord, *, closer: bool) -> ArrayRecord | None:
        """Lead clients to a model, and return the model to which updates are added.

        If `arrays` are sent uncompressed, return None.
        """
        if not arrays or not self.server.codes(sum(math.prod(array.shape) for array in arrays.values())):
            return None
        wanted = arrays_of(arrays)
        if not any(array.dtype.kind == "f" for array in wanted.values()):
            return None
        try:
            model = self.server.lead(wanted, closer=closer)
        except InvalidArgument as error:
            self._run.tell("plain", "klms: the model goes out uncompressed: %s", error)
            return None
        return arrays if self.server.held.own is not None else record_of(model)

    def _finite(self, arrays: ArrayRecord | None) -> ArrayRecord | None:
        """Return the strategy's result. If it is not finite, return None, so that the model stays unchanged."""
        assert self._phase is not None
        try:
            check_finite_like({} if arrays is None else arrays_of(arrays), self._given)
        except CorruptMessage as error:
            log.warning("klms: the round is undone: %s after aggregation", printable(error))
            self._phase.counts["undone"] += 1
            return None
        return arrays

    def _likely_clients(self, grid: Grid) -> int:
        """Return the expected number of clients of the first round, from the settings of the strategy."""
        nodes = max(len(list(grid.get_node_ids())), int(getattr(self.strategy, "min_available_nodes", 1)))
        share = float(getattr(self.strategy, "fraction_train", 1.0))
        return max(1, int(nodes * share), int(getattr(self.strategy, "min_train_nodes", 1)))


def _alike(strategy: object) -> Alike:
    """Return how alike answers must be for a strategy: Flower's own aggregation takes no answers that differ."""
    if not _is_flower_s(type(strategy).aggregate_train):  # type: ignore[attr-defined]
        return Alike.NOT
    if not _is_flower_s(getattr(strategy, "train_metrics_aggr_fn", None)):
        return Alike.IN_ARRAYS
    inside = getattr(strategy, "strategy", None)
    return Alike.WHOLLY if inside is None else _alike(inside)


def _is_flower_s(function: object) -> bool:
    return getattr(function, "__module__", "flwr.").startswith("flwr.")


def _weight_metric(strategy: object) -> str | None:
    """Return the metric by which a strategy weights clients; for nested strategies, that of the innermost."""
    key = getattr(strategy, "weighted_by_key", None)
    if isinstance(key, str) or strategy is None:
        return key
    return _weight_metric(getattr(strategy, "strategy", None))
