"""The answers of one part of a round: which of them count, and the arrays that the strategy inside gets.

A strategy of Flower takes much for granted: that all replies have the same records, arrays and metrics, and a weight
each. One odd client would spoil the round for all, so it is left out and counted.
"""

import logging
from collections import Counter
from collections.abc import Sequence

from flwr.app import Message

from klms.container import Array
from klms.errors import KLMSError, SideInformationMismatch
from klms.exchange.model import Model
from klms.exchange.robust import Robust
from klms.flower.answer import Answer
from klms.flower.phase import Phase
from klms.frame import cause_of, digest_of
from klms.methods.limits import MessageBound
from klms.printable import printable

log = logging.getLogger("flwr")


def taken(answers: Sequence[Answer], phase: Phase, key: str | None, robust: Robust | None) -> list[Message]:
    """Decode the answers to training that count, and return them; strategies want all their arrays in memory.

    `key` is the metric by which the strategy weights clients; None if there is none.
    """
    usable = [one for one in answers if one.usable(key)]
    signatures = Counter(one.signature for one in usable)
    usual = max(signatures, key=lambda signature: signatures[signature], default=None)
    bound = _bound_among([one for one in usable if one.signature == usual])
    decoded: list[tuple[Answer, dict[str, Array]]] = []
    for one in answers:
        try:
            if not one.usable(key):
                raise SideInformationMismatch("it has no arrays, or no metric to weight them by")
            if one.signature != usual:
                raise SideInformationMismatch("its records, arrays or metrics differ from those of most clients")
            one.check_weight(key)
            if one.reply is not None:
                bound.check(one.reply.message)
            decoded.append((one, one.decode(phase.server)))
        except KLMSError as error:
            _refuse(one, phase, error)
    if robust is not None and decoded:
        decoded = _averaged(decoded, phase, robust)
    phase.counts["ok"] += len(decoded)
    phase.counts["uncompressed"] += sum(not one.coded for one, _ in decoded)
    return _put(decoded, phase)


def passed(answers: Sequence[Answer], phase: Phase) -> list[Message]:
    """Decode the answers to evaluation, and return them; there, arrays are not expected but may be there."""
    decoded: list[tuple[Answer, dict[str, Array]]] = []
    for one in answers:
        try:
            decoded.append((one, one.decode(phase.server)))
        except KLMSError as error:
            _refuse(one, phase, error)
    return _put(decoded, phase)


def _averaged(
    decoded: Sequence[tuple[Answer, dict[str, Array]]], phase: Phase, robust: Robust
) -> list[tuple[Answer, dict[str, Array]]]:
    """Return the answers with the robust average in the place of what each has: weights then make no difference."""
    bases = {id(one.asked.base): one.asked.base.arrays if one.asked.base else {} for one, _ in decoded}
    digests = {which: digest_of(0, arrays) for which, arrays in bases.items()}
    (usual, _), *others = Counter(digests[id(one.asked.base)] for one, _ in decoded).most_common()
    kept = [(one, arrays) for one, arrays in decoded if digests[id(one.asked.base)] == usual]
    base = bases[id(kept[0][0].asked.base)]
    if others or not base:
        phase.run.tell("robust", "klms: robust compares those clients only that klms has sent the same arrays")
    if not base:
        return list(decoded)
    model = Model(base, sent_unchanged=phase.server.uplink.integers or frozenset())
    average, clipped = robust.average_arrays(model, [arrays for _, arrays in kept])
    phase.counts["clipped"] += clipped
    return [(one, average) for one, _ in kept]


def _put(decoded: Sequence[tuple[Answer, dict[str, Array]]], phase: Phase) -> list[Message]:
    for one, arrays in decoded:
        phase.run.entries_up += one.entries
        one.put(arrays)
    return [one.message for one, _ in decoded]


def _refuse(one: Answer, phase: Phase, error: KLMSError) -> None:
    phase.counts[cause_of(error)] += 1
    log.warning("klms: the reply of node %d does not count: %s", one.message.metadata.src_node_id, printable(error))


def _bound_among(answers: Sequence[Answer]) -> MessageBound:
    """Return the bound on messages that answer the same request; those of a round have one compressor."""
    coded = [one.reply for one in answers if one.reply is not None and one.reply.expected.coder is not None]
    factor = coded[0].expected.coder[0].message_factor if coded and coded[0].expected.coder else 0.0
    return MessageBound(factor, [reply.message for reply in coded])
