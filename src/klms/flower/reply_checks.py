"""Checks of what strategies take for granted in replies, so that one odd client does not spoil the round for all."""

import math
from collections import Counter
from collections.abc import Iterable

from flwr.app import RecordDict
from flwr.serverapp.strategy import Strategy

from klms.errors import CorruptMessage, SideInformationMismatch

_LARGEST_WEIGHT = 1e15  # so that sums of weights stay finite

Signature = tuple[tuple[str, ...], ...]


def weight_metric(strategy: Strategy) -> str | None:
    """Return the metric that a strategy weights clients by; a strategy around another one asks the innermost."""
    inner: object = strategy
    while inner is not None:
        key = getattr(inner, "weighted_by_key", None)
        if isinstance(key, str):
            return key
        inner = getattr(inner, "strategy", None)
    return None


def signature(content: RecordDict, arrays: str, dtypes: Iterable[object]) -> Signature:
    """Return names, types and lengths of what a reply holds: aggregation takes them from one reply for all."""
    metrics = [
        tuple(f"{name}:{len(value) if isinstance(value, list) else 0}" for name, value in sorted(record.items()))
        for record in content.metric_records.values()
    ]
    return (tuple(content.metric_records), *metrics, (arrays, *map(str, dtypes)))


def most_common(replies: Iterable[tuple[Signature, RecordDict]], weight: str | None) -> Signature | None:
    """Return the signature of most replies; among equally common ones, one with a weight."""
    replies = list(replies)
    counts = Counter(signature for signature, _ in replies)
    weighted = {signature for signature, content in replies if weight is None or _weights(content, weight)}
    return max(counts, key=lambda which: (counts[which], which in weighted), default=None)


def check(content: RecordDict, found: Signature, expected: Signature | None, weight: str | None) -> None:
    """Raise an error if a reply does not look like most replies, or if a metric would spoil an average."""
    if found != expected:
        raise SideInformationMismatch("its records, metrics or types differ from those of most clients")
    for record in content.metric_records.values():
        for name, value in record.items():
            if not all(math.isfinite(number) for number in (value if isinstance(value, list) else [value])):
                raise CorruptMessage(f"{name} is not finite")
    if weight is not None:
        weights = _weights(content, weight)
        if len(weights) != 1 or not isinstance(weights[0], (int, float)) or not 0 < weights[0] <= _LARGEST_WEIGHT:
            raise CorruptMessage(f"{weight} must be one number above 0 and at most {_LARGEST_WEIGHT:g}, got {weights}")


def _weights(content: RecordDict, key: str) -> list[object]:
    return [record[key] for record in content.metric_records.values() if key in record]
