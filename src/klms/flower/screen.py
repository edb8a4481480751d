"""What strategies take for granted in their clients' replies, and one odd client must not spoil for all."""

import math
from collections import Counter
from collections.abc import Sequence

from flwr.app import RecordDict
from flwr.serverapp.strategy import Strategy

from klms.codec import CorruptMessage, SideInformationMismatch

_HEAVIEST = 1e15  # so that sums of weights stay finite

Shape = tuple[tuple[str, ...], ...]


def weight_key(strategy: Strategy) -> str | None:
    """The metric that a strategy weighs clients by; strategies around strategies ask the innermost."""
    inner: object = strategy
    while inner is not None:
        key = getattr(inner, "weighted_by_key", None)
        if isinstance(key, str):
            return key
        inner = getattr(inner, "strategy", None)
    return None


def shape(content: RecordDict) -> Shape:
    """Names, dtypes and lengths: aggregation takes them from one reply for all."""
    metrics, arrays = content.metric_records, content.array_records
    return (
        *(
            tuple(f"{name}:{len(value) if isinstance(value, list) else 0}" for name, value in sorted(record.items()))
            for record in metrics.values()
        ),
        *(tuple(f"{name}:{array.dtype}" for name, array in record.items()) for record in arrays.values()),
        tuple(metrics),
        tuple(arrays),
    )


def usual(contents: Sequence[RecordDict], key: str | None) -> Shape | None:
    """The shape of most replies; of shapes with as many, one that can be weighed."""
    counts = Counter(shape(content) for content in contents)
    able = {shape(content) for content in contents if key is None or _weights(content, key)}
    return max(counts, key=lambda which: (counts[which], which in able), default=None)


def check(content: RecordDict, expected: Shape | None, key: str | None) -> None:
    """Whether a reply may go to the strategy."""
    if shape(content) != expected:
        raise SideInformationMismatch("its records or metrics have other names or types than those of most clients")
    for record in content.metric_records.values():
        for name, value in record.items():
            if not all(math.isfinite(number) for number in (value if isinstance(value, list) else [value])):
                raise CorruptMessage(f"{name} is not finite")
    if key is not None:
        weights = _weights(content, key)
        if len(weights) != 1 or not isinstance(weights[0], (int, float)) or not 0 < weights[0] <= _HEAVIEST:
            raise CorruptMessage(f"{key} must be one number above 0, and is {weights}")


def _weights(content: RecordDict, key: str) -> list[object]:
    return [record[key] for record in content.metric_records.values() if key in record]
