"""The block protocol that all KLMS adaptations share (paper, appendix D): who cuts blocks, and when.

In an UPDATE round every client cuts blocks of its own, codes with them and sends them; the server adopts the
aggregate for the rounds after. In the other rounds all use those. When the mean block KL of a round leaves
`[low, high]`, the next round is an UPDATE round. With `fixed` blocks there is none of that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from klms.codec import (
    Blocks,
    Codec,
    Distribution,
    Sample,
    SharedKey,
    SideInformationMismatch,
    UpdateRule,
    adaptive_blocks,
    aggregate_blocks,
    carried_blocks,
    fixed_blocks,
    inspect,
)
from klms.compressors.base import Side


@dataclass(frozen=True)
class BlockCoder:
    """A codec and its block policy."""

    d: int
    codec: Codec
    target: float
    """Bits of KL in a block; `codec.bits` is what it costs."""
    max_size: int
    rule: UpdateRule
    fixed: int = 0
    """If not 0: blocks of this size, always."""
    aggregate: Literal["location", "count"] = "location"
    """How the server merges the clients' block maps; see `aggregate_blocks`."""
    tells_kl: bool = True
    """Whether messages say their KL. The UPDATE rule needs it; privacy forbids it."""

    def start(self) -> Side:
        """Round 1 is an UPDATE round, unless blocks are fixed."""
        bounds = fixed_blocks(self.d, self.fixed or self.max_size).bounds
        return {"block_bounds": bounds, "block_update": np.array(not self.fixed)}

    def encode(
        self,
        q: Distribution,
        p: Distribution,
        side: Side,
        *,
        key: SharedKey,
        rng: np.random.Generator,
        scalars: Sequence[float] = (),
    ) -> bytes:
        """A client's message."""
        update = bool(side["block_update"])
        blocks = adaptive_blocks(q.kl(p), self.target, self.max_size) if update else _blocks(side)
        return self.codec.encode(
            q, p, blocks, key=key, rng=rng, send_blocks=update, scalars=scalars, send_kl=self.tells_kl
        )

    def decode(self, message: bytes, p: Distribution, side: Side, *, key: SharedKey, scalars: int = 0) -> Sample:
        """The sample in it. Whether it carries blocks, its bits and its number of scalars are the round's to say."""
        info = inspect(message)
        if info.carries_blocks != bool(side["block_update"]):
            raise SideInformationMismatch("the message carries blocks in a round that has some, or none where it must")
        if info.bits != self.codec.bits or len(info.scalars) != scalars:
            raise SideInformationMismatch(
                f"the message has {info.bits} bits a block and {len(info.scalars)} scalars, "
                f"{self.codec.bits} and {scalars} were agreed"
            )
        return self.codec.decode(message, p, key=key, blocks=None if side["block_update"] else _blocks(side))

    def learn(self, side: Side, messages: Sequence[bytes]) -> Side:
        """The block map and the UPDATE flag of the next round."""
        if self.fixed or not messages:
            return side
        if side["block_update"]:
            merged = aggregate_blocks([carried_blocks(message) for message in messages], self.aggregate)
            return {**side, "block_bounds": merged.bounds, "block_update": np.array(False)}
        triggered = self.rule.triggered(inspect(message).mean_kl for message in messages)
        return {**side, "block_update": np.array(triggered)}


def _blocks(side: Side) -> Blocks:
    return Blocks(side["block_bounds"])
