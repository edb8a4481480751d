"""The ledger of a run: one record per round, written by the engine and read by everybody else.

A record is one line of JSON. Its fields are declared here and nowhere else. Marks on a field say whether clients report
it and where it is shown. A method, a user's own metric or a newer release may add fields, which are kept.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from klms.errors import RunFolderError
from klms.methods.base import Measurements

WORK_PHASES = ("train", "encode", "decode", "aggregate")
"""Phases that count as work of clients and server; evaluation does not."""


@dataclass(frozen=True)
class Reported:
    """Marks a field that clients report. The record holds the mean over clients, without numbers out of bounds."""

    least: float
    most: float
    by_layer: bool = False
    """Whether the field is a list of one number per layer."""

    def read(self, value: object, layers: int) -> float | list[float] | None:
        """Return the value that a client reports; None if it is out of bounds."""
        if not self.by_layer:
            return self._number(value)
        values = value if isinstance(value, list) else []
        numbers = [number for number in map(self._number, values) if number is not None]
        return numbers if len(numbers) == len(values) == layers else None

    def _number(self, value: object) -> float | None:
        return float(value) if isinstance(value, (int, float)) and self.least <= value <= self.most else None


class Shown(Enum):
    """Marks of a field that say where the field is shown."""

    IN_SUMMARY = "in the summary of a run, as it is at the last evaluation"
    IN_LOG = "in the log line of a round"


@dataclass(frozen=True)
class InTable:
    """Marks a field that has a column of its name in the report's table."""

    hint: str
    """Description of the column's numbers."""
    over_rounds: bool = False
    """Whether the numbers are means over rounds; otherwise they are those of the last evaluation."""


class LedgerRecord(BaseModel):
    """The record of one round."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    round: int = Field(ge=1)
    clients: tuple[int, ...] = ()
    """Clients whose messages were aggregated."""
    digest: str = ""
    """Digest of all messages in order, for comparing two engines, or a run with its repetition."""
    uplink_bytes: int = Field(ge=0, lt=2**63)
    """Bytes of all messages that were aggregated."""
    message_bytes: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] | None = None
    """Bytes of each aggregated message, in the order of `clients`."""
    downlink_bytes: Annotated[int, Shown.IN_LOG] = Field(0, ge=0, lt=2**63)
    """Bytes of all broadcasts to the clients of the round."""
    bits_per_parameter: Annotated[float, Shown.IN_LOG] = Field(ge=0)
    """`8 * len(message) / d`, averaged over the messages of the round; 0 in a round that was skipped."""
    passed_over: float | None = None
    """1 if too few clients answered and the model was left unchanged."""
    undone: float | None = None
    """1 if the outcome of the round was discarded, so that the model is an earlier one."""
    clipped: float | None = None
    """Number of updates whose norm was reduced; absent if there were none."""

    accuracy: Annotated[float | None, Shown.IN_SUMMARY, Shown.IN_LOG, InTable("at the last evaluation")] = None
    accuracy_averaged: Annotated[float | None, Shown.IN_SUMMARY] = None
    accuracy_of_sample: Annotated[float | None, Shown.IN_SUMMARY] = None
    nll: Annotated[float | None, Shown.IN_SUMMARY, InTable("negative log-likelihood, in nats")] = None
    ece: Annotated[float | None, Shown.IN_SUMMARY, InTable("expected calibration error")] = None
    loss: Annotated[float | None, Shown.IN_SUMMARY, Shown.IN_LOG, InTable("at the last evaluation")] = None
    train_loss: Annotated[float | None, Reported(-1e30, 1e30), Shown.IN_LOG] = None
    """Mean loss during local training; the bounds keep a mean over clients finite."""
    epsilon: Annotated[float | None, Shown.IN_SUMMARY] = None
    delta: float | None = None

    bits_up: float | None = None
    """Bits per parameter of the updates without headers and tables, in a run with constant quality."""
    bits_down: float | None = None
    """Bits per parameter of the round's coded step, without headers and tables; 0 if nothing was coded."""
    noise: float | None = None
    """Energy of the noise in the mean update, relative to the energy of the update."""
    relative_error: float | None = None
    """Energy of the noise that both directions eventually add to the model, relative to the energy of the model."""
    repair_share: float | None = None
    """Effort of clients to undo the noise of earlier rounds, relative to a step's progress (`exchange/quality.py`)."""
    harm: Annotated[
        float | None,
        Shown.IN_LOG,
        InTable("harm of the noise of both directions, which a quality holds at its target: mean over rounds", True),
    ] = None

    kl_bits_per_parameter: float | None = None
    block_kl_bits: float | None = None
    """Mean KL per block, in bits."""
    blocks: float | None = None
    index_bits_per_parameter: float | None = None
    block_size_bits_per_parameter: float | None = None
    update_round: float | None = None
    full_round: float | None = None
    kl_by_layer: Annotated[tuple[float, ...] | None, Reported(0, 1e6, by_layer=True)] = None

    replies: Annotated[dict[str, int] | None, Shown.IN_LOG] = None
    """Number of accepted replies, and of bad replies by cause. The local engine records it only after a refusal."""
    resyncs: int | None = None
    """On Flower: number of clients that did not hold the state that the server assumed, and got a snapshot instead."""
    payload_bytes: Annotated[int | None, Shown.IN_LOG] = None
    """On Flower: bytes of the messages with their frames."""
    seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds per phase; the only field that differs between machines of the same kind."""

    @property
    def aggregated(self) -> bool:
        return not self.passed_over

    @property
    def evaluated(self) -> bool:
        return self.accuracy is not None or self.loss is not None

    def shown(self, where: Shown) -> dict[str, Any]:
        """Return the fields with this mark that have a value."""
        marked = {name for name, info in type(self).model_fields.items() if where in info.metadata}
        return self.model_dump(include=marked, exclude_none=True)

    def numbers(self) -> dict[str, float]:
        """Return every scalar of the record by name, nested ones as `seconds/train`; for trackers and spreadsheets."""
        found: dict[str, float] = {}
        for name, value in self.model_dump(exclude_none=True, exclude={"round"}).items():
            nested = [(f"{name}/{inner}", n) for inner, n in value.items()] if isinstance(value, Mapping) else []
            for key, number in nested or [(name, value)]:
                if isinstance(number, (int, float)) and abs(number) < 2**63:
                    found[key] = float(number)
        return found

    def to_json(self) -> str:
        """Return one line of JSON, identical for identical records."""
        return json.dumps(self.model_dump(mode="json", exclude_none=True), sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """Undo `to_json`; raise a `RunFolderError` if the line is invalid."""
        try:
            return cls.model_validate_json(line)
        except RecursionError as error:
            raise RunFolderError("nested too deeply") from error
        except ValidationError as error:
            first = error.errors()[0]
            raise RunFolderError(f"{'.'.join(map(str, first['loc'])) or 'line'}: {first['msg']}") from error


def measured_by_clients(reported: Mapping[str, object], layers: int) -> Measurements:
    """Return those fields of a client's report that a client may report and that have values within bounds."""
    found: Measurements = {}
    for name, info in LedgerRecord.model_fields.items():
        for mark in info.metadata:
            if isinstance(mark, Reported) and (value := mark.read(reported.get(name), layers)) is not None:
                found[name] = value
    return found


def bits_per_parameter(records: Iterable[LedgerRecord]) -> float:
    """Return the bitrate of a run: the mean over all rounds that were not skipped; 0 if there is no such round."""
    rates = [record.bits_per_parameter for record in records if record.aggregated]
    return statistics.fmean(rates) if rates else 0.0


def uplink_bytes(records: Iterable[LedgerRecord]) -> int:
    """Return the bytes that all clients sent, in all rounds."""
    return sum(record.uplink_bytes for record in records)


def downlink_bytes(records: Iterable[LedgerRecord]) -> int:
    """Return the bytes that were sent to all clients, in all rounds."""
    return sum(record.downlink_bytes for record in records)


def total_bytes(records: Sequence[LedgerRecord]) -> int:
    """Return the bytes that were sent in both directions, in all rounds."""
    return uplink_bytes(records) + downlink_bytes(records)


def times_smaller_up(records: Iterable[LedgerRecord]) -> float | None:
    """Return how many times smaller the uplink is than float32; None if nothing was aggregated."""
    return _ratio(32.0, bits_per_parameter(records))


def times_smaller_total(records: Sequence[LedgerRecord]) -> float | None:
    """Return how many times smaller both directions together are than float32 in both; None if nothing was aggregated.

    The float32 model would go to and from every client whose message was aggregated. Bytes that were sent to other
    clients, or in rounds that were skipped, count against us.
    """
    # A round's messages have 8 * uplink_bytes bits, which are bits_per_parameter times the parameters of its clients.
    rated = [record for record in records if record.aggregated and record.bits_per_parameter]
    float32 = sum(2 * 32 * record.uplink_bytes / record.bits_per_parameter for record in rated)
    return _ratio(float32, total_bytes(records)) if rated else None


def _ratio(whole: float, part: float) -> float | None:
    """Return `whole / part`; None if the ratio is not finite, as in a damaged ledger."""
    return whole / part if part and math.isfinite(whole / part) else None


def seconds_by_phase(records: Iterable[LedgerRecord]) -> dict[str, float]:
    """Return the seconds of each phase, summed over rounds."""
    total: dict[str, float] = {}
    for record in records:
        for phase, seconds in record.seconds.items():
            total[phase] = total.get(phase, 0.0) + seconds
    return total


def seconds_per_round(records: Sequence[LedgerRecord]) -> float | None:
    """Return the mean time of a round; None if there is no round.

    The first round, which also compiles kernels, counts only if it is the only one.
    """
    counted = records[1:] or records
    return seconds_by_phase(counted).get("total", 0.0) / len(counted) if counted else None


def coding_share(records: Sequence[LedgerRecord]) -> float | None:
    """Return the fraction of the working time that goes into encoding and decoding; None if no time was recorded."""
    spent = seconds_by_phase(records)
    work = sum(spent.get(phase, 0.0) for phase in WORK_PHASES)
    return (spent.get("encode", 0.0) + spent.get("decode", 0.0)) / work if work else None


def last_evaluated(records: Sequence[LedgerRecord]) -> LedgerRecord | None:
    """Return the last record that holds an evaluation."""
    return next((record for record in reversed(records) if record.evaluated), None)
