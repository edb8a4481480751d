"""What clients and networks do wrong, by plan: which client has which fault in which round."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from klms import Bernoulli, Codec, fixed_blocks
from klms.codec import Chosen, inspect
from klms.container import Arrays
from klms.engine.downlink import Broadcasts
from klms.engine.federation import Federation
from klms.engine.local import LocalClients, update
from klms.engine.rounds import Wanted, one_round
from klms.errors import KLMSError
from klms.methods.base import Upload
from klms.methods.fedpm import FedPM
from klms.methods.state import State
from klms.methods.table import RunConfig
from tests.support.messages import sealed

LOST = ("crash", "drop", "slow")
"""Nothing arrives, or too late; what is slow arrives in a later round."""
HARMLESS = ("duplicate", "reorder")
"""What the client sends is right."""
REFUSED = ("corrupt", "truncate", "replay", "not a number")
HOSTILE = ("wrong state", "huge", "forged map", "opposite")
"""Nothing is wrong with the bytes: what they do is bounded."""
FAULTS = (*LOST, *HARMLESS, *REFUSED, *HOSTILE)


def plan(rounds: int, clients: int, share: float = 0.3, faults: Sequence[str] = FAULTS) -> dict[tuple[int, int], str]:
    """Return the faults by round and client: in every round the same share of clients, and all kinds equally often."""
    rng = np.random.default_rng(0)
    kinds = (faults[n % len(faults)] for n in range(10**9))
    bad = ((number, rng.choice(clients, round(share * clients), replace=False)) for number in range(1, rounds + 1))
    return {(number, int(client)): next(kinds) for number, those in bad for client in those}


def nobody(state: State, wanted: Wanted) -> Iterator[Upload]:
    """Do the work of no client."""
    return iter(())


@dataclass
class FaultyClients(LocalClients):
    """Clients of the local engine with faults; with `only_good`, those that would have one are absent instead."""

    federation: Federation | None = None
    faults: dict[tuple[int, int], str] = field(default_factory=dict)
    only_good: bool = False
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    """What became of the messages with each fault."""
    _late: list[Upload] = field(default_factory=list)
    _sent: dict[int, Upload] = field(default_factory=dict)
    _faulty: dict[int, str] = field(default_factory=dict)
    _errors: dict[int, list[str]] = field(default_factory=dict)
    _arriving_late: set[int] = field(default_factory=set)

    def run(self, broadcasts: Broadcasts, wanted: Wanted) -> Iterator[Upload]:
        list(super().run(broadcasts, []))  # the replica follows the broadcast
        state, number = broadcasts.state, broadcasts.state.round + 1
        late, self._late, self._faulty, self._errors = self._late, [], {}, {}
        self._arriving_late = {upload.client for upload in late}
        assert self.federation is not None
        for client, keeps in wanted:
            fault = self.faults.get((number, client))
            if fault is None:
                yield self._remembered(update(self.federation, state, client, keeps))
            elif not self.only_good:
                self._faulty[client] = fault
                yield from self._sent_with(fault, state, client, keeps)
        yield from () if self.only_good else late

    def _remembered(self, upload: Upload) -> Upload:
        self._sent.setdefault(upload.client, upload)
        return upload

    def _sent_with(self, fault: str, state: State, client: int, keeps: Arrays) -> Iterator[Upload]:
        assert self.federation is not None
        upload = update(self.federation, state, client, keeps)
        message = upload.message
        if fault in LOST:
            self._late += [upload] if fault == "slow" else []
        elif fault in HARMLESS:
            yield upload
            yield from [upload] if fault == "duplicate" else []
        else:
            if fault == "corrupt":
                changed = bytearray(message)
                changed[len(message) // 2] ^= 4
                message = bytes(changed)
            elif fault == "truncate":
                message = message[: len(message) // 2]
            elif fault == "replay":
                other = update(self.federation, state, (client + 1) % self.federation.method.clients)
                message = self._sent.get(client, other).message
            else:
                message = hostile(self.federation, fault, state, client, message)
            yield replace(upload, message=message)

    def refuse(self, client: int, error: KLMSError) -> None:
        self._errors.setdefault(client, []).append(type(error).__name__)

    def enough(self, count: int) -> bool:
        return count > 0

    def report(self) -> dict[str, object]:
        """Note what became of the round's faults. What was late comes last, and is always refused."""
        for client, fault in self._faulty.items():
            found = self.outcomes.setdefault(fault, Counter())
            errors = self._errors.get(client, [])
            if client in self._arriving_late:
                errors = errors[:-1]
            if fault in LOST:
                found["missing"] += 1
            else:
                found["counted" if fault in HARMLESS or not errors else "refused"] += 1
                found.update(errors)
        return {}


def hostile(federation: Federation, fault: str, state: State, client: int, message: bytes) -> bytes:
    """Return the message of a client that means harm and keeps to the format, as far as its scheme lets it."""
    method = federation.method
    key, rng = method.key(state.round + 1, client), np.random.default_rng(client)
    compressor, masks = method.compressor_after(state), isinstance(method, FedPM)
    if fault == "wrong state":
        return update(federation, replace(method.init(), round=state.round), client).message
    if fault == "not a number":
        numbers = np.full(method.layout.d, np.nan, dtype="<f4").tobytes()
        return sealed(b"KB\x02\x01" + method.layout.d.to_bytes(4, "little") + numbers, key)
    if fault == "forged map" and masks and inspect(message).carries_blocks:
        p, blocks = Bernoulli(state.vector("theta")), fixed_blocks(method.layout.d, 8)
        chosen = Chosen(np.zeros(len(blocks), dtype=np.uint16), 0.99 * p.most_kl / len(blocks))
        return Codec(bits=inspect(message).bits).write(chosen, p, blocks, key=key, send_blocks=True)
    if masks and fault == "opposite":  # the law that is furthest from what all others say
        return compressor.encode(1 - state.vector("theta"), state.shared, key=key, rng=rng)
    if masks:  # freely chosen indices: a mask at random
        noise = rng.random(method.layout.d, dtype=np.float32)
        return compressor.encode(noise, state.shared, key=key, rng=rng)
    factor = np.float32(-1 if fault == "opposite" else 1e6)
    vector = compressor.decode(message, state.shared, key=key).vector * factor
    return compressor.encode(vector, state.shared, key=key, rng=rng)


def trained(federation: Federation, config: RunConfig, clients: FaultyClients) -> tuple[list[float], State]:
    """Return the accuracy after every evaluated round, and the last state."""
    state, accuracies = federation.method.init(), []
    while state.round < config.rounds:
        result = one_round(federation, config, state, clients)
        state = result.state
        if result.record.accuracy is not None:
            accuracies.append(result.record.accuracy)
    return accuracies, state
