"""The block protocol that all KLMS schemes share (paper, appendix D): who cuts blocks, and when.

In an UPDATE round every client cuts its own blocks, codes with them and sends their sizes. The server merges the
clients' block maps, and all clients use the merged map in the following rounds. When the mean KL per block leaves
`[low, high]`, the next round is an UPDATE round. With fixed blocks, there are no UPDATE rounds. If every client keeps
its own blocks, every round is an UPDATE round: this suits clients that differ, and costs few bytes if blocks are cut in
groups.
"""

import statistics
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from pydantic import Field, model_validator

from klms.codec import (
    MAX_BITS,
    MAX_BLOCK_SIZE,
    MAX_GROUP,
    BlockMerger,
    Blocks,
    Codec,
    Decoded,
    Distribution,
    MessageInfo,
    Sample,
    Selection,
    SharedKey,
    UpdateRule,
    adaptive_blocks,
    fixed_blocks,
    most_blocks,
)
from klms.compressors.base import Compressor, Side, SideLearner, Vector
from klms.compressors.scheme import Needs, Settings
from klms.errors import CorruptMessage, OutsizedMessage, SideInformationMismatch

T = TypeVar("T")
Source = npt.NDArray[np.generic]
Scalars = Sequence[float] | Callable[[Sample], Sequence[float]]
"""Numbers that a message carries in addition to its sample; they may be a function of the sample."""
_ROUNDING = 1.01  # margin for a reported KL, which is rounded to float32 and added up in any order


ADAPTIVE = ("max_size", "group", "low", "high", "aggregate", "spread")
"""Settings of adaptive blocks."""


class BlockSettings(Settings):
    """Settings of the codec and its blocks, common to all KLMS schemes."""

    needs: ClassVar[Needs] = {name: {"fixed": 0} for name in ("target", *ADAPTIVE)}

    bits: int = Field(8, ge=1, le=MAX_BITS, description="KLMS: bits per block index.")
    memory: int = Field(
        0, ge=0, lt=MAX_BITS, description="KLMS: bits of earlier indices that candidates depend on; 0 as in the paper."
    )
    target: float = Field(8.0, gt=0, description="KLMS: bits of KL per block.")
    max_size: int = Field(4096, ge=1, le=MAX_BLOCK_SIZE, description="KLMS: largest adaptive block.")
    group: int = Field(
        1, ge=1, le=MAX_GROUP, description="KLMS with memory: equal blocks per adaptive cut; more of them save bytes."
    )
    fixed: int = Field(0, ge=0, le=MAX_BLOCK_SIZE, description="KLMS: size of fixed blocks; 0 for adaptive blocks.")
    low: float = Field(0.7, ge=0, description="KLMS: cut new blocks when their mean KL is below low * target.")
    high: float = Field(1.4, gt=0, description="KLMS: cut new blocks when their mean KL is above high * target.")
    aggregate: Literal["location", "count", "median", "own"] = Field(
        "location", description="KLMS: how the server merges block maps; own: each client sends its own in every round."
    )
    spread: float = Field(
        4.0, ge=1, description="KLMS: limit on reported KL and merged block maps, in multiples of the median client's."
    )
    message_factor: float = Field(
        10.0, ge=0, description="KLMS: refuse messages beyond this many times the median client's bits; 0 for no limit."
    )
    selection: Selection = Field("sample", description="KLMS: how a client chooses among the candidates of a block.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")
        if self.bits + self.memory > MAX_BITS:
            raise ValueError(f"bits and memory must be at most {MAX_BITS} in all, got {self.bits} and {self.memory}")
        return self

    def coder(self, d: int, threads: int | None) -> "BlockCoder":
        codec = Codec(bits=self.bits, memory=self.memory, selection=self.selection, threads=threads)
        return BlockCoder(d, self, codec)


@dataclass(frozen=True)
class BlockCoder:
    """A codec and its block policy."""

    d: int
    settings: BlockSettings
    codec: Codec
    tells_kl: bool = True  # whether messages report their KL: the UPDATE rule needs it, privacy forbids it

    def start(self) -> Side:
        """Return the block map of round 1, which is an UPDATE round unless blocks are fixed."""
        bounds = fixed_blocks(self.d, self.settings.fixed or self.settings.max_size).bounds
        return {"block_bounds": bounds, "block_update": np.array(not self.settings.fixed)}

    def encode(
        self,
        q: Distribution,
        p: Distribution,
        side: Side,
        key: SharedKey,
        rng: Generator,
        scalars: Scalars = (),
    ) -> bytes:
        """Return a client's message."""
        update, own = bool(side["block_update"]), self.settings
        if update:
            kl = q.kl_in_parts(p, threads=self.codec.threads)
            blocks = adaptive_blocks(kl, own.target, own.max_size, self._group)
        else:
            blocks = _blocks(side)
        chosen = self.codec.choose(q, p, blocks, key=key, rng=rng)
        if callable(scalars):
            scalars = scalars(self.codec.candidates(chosen.indices, p, blocks, key=key))
        return self.codec.write(chosen, p, blocks, key=key, send_blocks=update, scalars=scalars, send_kl=self.tells_kl)

    def decode(self, message: bytes, p: Distribution, side: Side, key: SharedKey, scalars: int = 0) -> Decoded:
        """Read a message; raise unless it has the agreed bits, memory and number of scalars.

        The message must carry a block map in an UPDATE round, and none in other rounds.
        """
        update = bool(side["block_update"])

        def check(header: MessageInfo) -> None:
            if header.carries_blocks != update:
                raise SideInformationMismatch(
                    "the message carries a block map in a round in which all clients share one"
                    if header.carries_blocks
                    else "the message carries no block map in an UPDATE round"
                )
            found = (header.bits, header.memory, len(header.scalars))
            agreed = (self.codec.bits, self.codec.memory, scalars)
            if found != agreed:
                raise SideInformationMismatch(
                    f"the message has {found} bits per block, bits of memory and scalars; {agreed} were agreed"
                )
            self._check_claims(header, p)

        shared, most = (None, self.settings.max_size) if update else (_blocks(side), MAX_BLOCK_SIZE)
        return self.codec.read(message, p, key=key, blocks=shared, check=check, max_size=most)

    def _check_claims(self, header: MessageInfo, p: Distribution) -> None:
        """Raise if the claimed KL is impossible, exceeds a plain sample's size, or is too small for so many blocks."""
        kl, own = header.mean_kl * header.blocks, self.settings
        if kl > _ROUNDING * p.most_kl:
            raise CorruptMessage(f"the message claims {kl:.4g} bits of KL; p allows {p.most_kl:.4g} at most")
        if kl > _ROUNDING * p.plain_bits:
            plain = f"written plainly, a sample takes {p.plain_bits:.4g}"
            raise OutsizedMessage(f"the message claims {kl:.4g} bits of KL; {plain}")
        if not header.carries_blocks or not self.tells_kl:
            return
        most = most_blocks(self.d, _ROUNDING * kl, own.target, own.max_size, min(self._group, self.d))
        if header.blocks > most:
            raise CorruptMessage(f"{header.blocks} blocks for {kl:.4g} bits of KL; {most:.0f} at most were agreed")

    @property
    def _group(self) -> int:
        return self.settings.group if self.settings.memory else 1


class BlockCompressor(Compressor):
    """A scheme that sends samples through the codec. It defines `q` and `p`; `coder` takes care of the blocks."""

    coder: BlockCoder

    @abstractmethod
    def q(self, update: Vector) -> tuple[Distribution, Scalars]:
        """Return the client's distribution and the scalars to send.

        The client's message is a sample of the distribution.
        """

    @abstractmethod
    def p(self, side: Side) -> Distribution:
        """Return the distribution that server and clients share."""

    @property
    def d(self) -> int:
        return self.coder.d

    def _encode(self, update: Vector, side: Side, key: SharedKey, rng: Generator) -> bytes:
        q, scalars = self.q(update)
        return self.coder.encode(q, self.p(side), side, key, rng, scalars)

    def _decode(self, message: bytes, side: Side, key: SharedKey) -> Decoded:
        return self.coder.decode(message, self.p(side), side, key)

    @property
    def message_factor(self) -> float:
        return 0.0 if self.coder.settings.fixed else self.coder.settings.message_factor

    def start(self) -> Side:
        return self.coder.start()

    def learner(self, side: Side) -> SideLearner:
        return BlockLearner(self.coder, side)


class BlockLearner(SideLearner):
    """Merges the clients' block maps in an UPDATE round, and averages their reported KL in other rounds.

    No single client can dominate the result. A merged map with more than `spread` times the median client's blocks is
    not adopted, since it would make the following rounds more expensive for all; instead, the next round is again an
    UPDATE round. Reported KL is clipped to within a factor of `spread` of the median client's.
    """

    def __init__(self, coder: BlockCoder, side: Side) -> None:
        super().__init__(side)
        own = coder.settings
        self._spread = own.spread
        self._rule = UpdateRule(own.low * own.target, own.high * own.target)
        self._merger = None if own.fixed or own.aggregate == "own" else BlockMerger(coder.d, own.aggregate)
        self._kls: list[float] = []
        self._block_numbers: list[int] = []

    def add(self, decoded: Decoded) -> None:
        assert decoded.header is not None
        assert decoded.blocks is not None
        self._kls.append(decoded.header.mean_kl)
        self._block_numbers.append(len(decoded.blocks))
        if self._merger is not None and self._side["block_update"]:
            self._merger.add(decoded.blocks)

    def finish(self) -> Side:
        if self._merger is None or not self._kls:
            return self._side
        if self._side["block_update"]:
            merged = self._merger.merged()
            if len(merged) > self._spread * statistics.median_low(self._block_numbers):
                return self._side
            return {**self._side, "block_bounds": merged.bounds, "block_update": np.array(False)}
        median = statistics.median_low(self._kls)
        kls = np.clip(self._kls, median / self._spread, median * self._spread)
        return {**self._side, "block_update": np.array(self._rule.triggered(kls.tolist()))}


def _blocks(side: Side) -> Blocks:
    return Blocks(side["block_bounds"])


class Once(Generic[T]):
    """A value that is computed from an array and kept until a call passes another array.

    Thus it is computed once per round.
    """

    def __init__(self) -> None:
        self._held: tuple[Source, T] | None = None

    def __call__(self, source: Source, make: Callable[[Source], T]) -> T:
        held = self._held  # one read and one write, so that no other thread sees a value with another source
        if held is None or held[0] is not source:
            self._held = held = source, make(source)
        return held[1]
