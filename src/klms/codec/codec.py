"""`Codec`: `(q, p, blocks, key) -> bytes -> sample` (Algorithms Fixed-KLMS, Adaptive-KLMS and KLMS-Decoder)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from klms.codec import message as wire
from klms.codec.blocks import MAX_BLOCK_SIZE, Blocks
from klms.codec.candidates import MAX_BITS, shared_words
from klms.codec.distributions import Distribution, Values
from klms.codec.message import Chosen
from klms.codec.paths import SEGMENT, addresses, new_paths, select_paths
from klms.codec.selection import SELECTIONS, Batch, Selection, select
from klms.errors import CorruptMessage, InvalidArgument, SideInformationMismatch
from klms.numerics.checks import check_name, integer, thread_count
from klms.numerics.elementary import LN_2
from klms.numerics.jit import Int64, UInt16
from klms.numerics.parallel import over
from klms.numerics.philox import SharedKey

Sample = Values

_BYTES_PER_COORDINATE, _SPARE_BYTES = 8, 1 << 19  # limits on a message: for indices and sizes, and for scalars
_BATCH_SCORES = 1 << 16  # scores per call of a kernel (half a megabyte), unless a single block has more


@dataclass(frozen=True)
class Decoded:
    """A decoded message."""

    vector: Sample  # the decoded sample, update or mask
    header: wire.MessageInfo | None = None  # header of a codec message; None for other schemes
    blocks: Blocks | None = None  # block map that the message was coded with


@dataclass(frozen=True)
class Codec:
    """Sends a sample of `q` to a receiver that holds `p`, with `bits` bits per block.

    Args:
        bits: Bits per block, for `2^bits` candidates; from 1 to 16. Encoding time is proportional to `2^bits`.
        selection: Rule by which the encoder selects a candidate: `sample`, `matched` or `greedy`.
        threads: Maximum number of threads, by default one per core. The bytes do not depend on it.
        memory: Number of bits of earlier indices that candidates depend on, at most `16 - bits`; 0 in the paper.

    >>> from klms import Bernoulli, adaptive_blocks
    >>> p, q = Bernoulli(np.full(1000, 0.5)), Bernoulli(np.full(1000, 0.6))
    >>> blocks = adaptive_blocks(q.kl(p), target=8.0)
    >>> key = SharedKey(seed=7, round=3, client=12)
    >>> message = Codec(bits=8).encode(q, p, blocks, key=key, rng=np.random.default_rng(0))
    >>> sample = Codec().decode(message, p, key=key, blocks=blocks)
    >>> len(message), sample.shape, sample.dtype
    (36, (1000,), dtype('uint8'))
    """

    bits: int = 8  # bits per block, for `K = 2^bits` candidates; encoding time is proportional to `K`
    selection: Selection = "sample"  # rule by which the encoder selects a candidate; see `selection.py`
    threads: int | None = None  # maximum number of threads, by default one per core; the bytes do not depend on it
    memory: int = 0  # bits of earlier indices that candidates depend on (`paths.py`), at most `16 - bits`; paper: 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", integer("bits", self.bits, 1, MAX_BITS))
        object.__setattr__(self, "memory", integer("memory", self.memory, 0, MAX_BITS - self.bits))
        check_name("selection", self.selection, SELECTIONS)
        object.__setattr__(self, "threads", thread_count(self.threads))

    def encode(
        self,
        q: Distribution,
        p: Distribution,
        blocks: Blocks,
        *,
        key: SharedKey,
        rng: Generator | None = None,
        send_blocks: bool = False,
        scalars: Sequence[float] = (),
        send_kl: bool = True,
    ) -> bytes:
        """Encode a sample of `q` as a message: `choose`, then `write`.

        Args:
            q: Distribution of the sender, of the same family as `p`.
            p: Distribution that the sender and the receiver hold.
            blocks: Block map, for instance `adaptive_blocks(q.kl(p), target)`.
            key: Shared randomness; no two messages may have the same key.
            rng: Private randomness of the sender; `greedy` needs none. Never derive it from the key.
            send_blocks: Whether the message carries the block map, for a receiver that does not have it.
            scalars: Numbers to send with the sample, as float32.
            send_kl: Whether the message states its mean KL.

        Returns:
            The message.
        """
        chosen = self.choose(q, p, blocks, key=key, rng=rng)
        return self.write(chosen, p, blocks, key=key, send_blocks=send_blocks, scalars=scalars, send_kl=send_kl)

    def choose(
        self, q: Distribution, p: Distribution, blocks: Blocks, *, key: SharedKey, rng: Generator | None = None
    ) -> Chosen:
        """Select the candidate of each block, so that together they are close to a sample of `q`.

        `rng` is private randomness, which `greedy` does not need. Never derive it from the key: the receiver knows it.
        """
        q.check_same_family(p)
        _check_blocks(blocks, p)
        address_bits = self.bits + self.memory
        shared = shared_words(key, blocks, address_bits)
        segment = SEGMENT if self.memory else 1  # number of blocks that are selected together
        segments = np.append(blocks.bounds[:-1:segment], blocks.d)
        uniforms = np.empty(0)
        if self.selection != "greedy":
            if not isinstance(rng, Generator):
                raise InvalidArgument(f"selection {self.selection!r} draws at random: rng must be a numpy Generator")
            uniforms = rng.random(len(blocks) + (segments.size - 1 if self.memory else 0))
        indices = np.empty(len(blocks), dtype=np.uint16)
        nats = np.empty(len(blocks))
        size = SEGMENT if self.memory and self.selection == "matched" else max(_BATCH_SCORES >> address_bits, 1)

        def choose_segments(first: int, end: int, _: Int64) -> None:
            paths = new_paths(self.bits, self.memory)
            scores = np.empty((size, 1 << address_bits))
            wanted = np.empty(size)
            last = min(end * segment, len(blocks))
            for start in range(first * segment, last, size):
                count = min(size, last - start)
                batch = Batch(start, scores[:count], wanted[:count], nats[start : start + count])
                q.score(p, blocks, shared, batch)
                if self.memory:
                    select_paths(batch, self.selection, uniforms, paths, indices)
                else:
                    select(batch, self.selection, uniforms, indices)

        over(segments, self.threads, choose_segments)
        return Chosen(indices, float(nats.mean()) / LN_2)

    def candidates(self, indices: UInt16, p: Distribution, blocks: Blocks, *, key: SharedKey) -> Sample:
        """Generate the candidates with the given indices, one per block: uint8 for Bernoulli, float32 otherwise."""
        self._check_indices(indices, p, blocks)
        return self._candidates(indices, self.bits, self.memory, p, blocks, key)

    def write(
        self,
        chosen: Chosen,
        p: Distribution,
        blocks: Blocks,
        *,
        key: SharedKey,
        send_blocks: bool = False,
        scalars: Sequence[float] = (),
        send_kl: bool = True,
    ) -> bytes:
        """Write the message from which the holder of `p` and `key` decodes the chosen candidates.

        `send_blocks` includes the block map, for a receiver that does not have it. `scalars` are sent as float32.
        Without `send_kl` the message states a KL of 0: the KL would reveal more about `q` than the sample does.
        """
        self._check_indices(chosen.indices, p, blocks)
        sent = chosen if send_kl else replace(chosen, mean_kl=0.0)
        return wire.write(sent, p, blocks, key, self.bits, self.memory, scalars, send_blocks)

    def decode(self, message: bytes, p: Distribution, *, key: SharedKey, blocks: Blocks | None = None) -> Sample:
        """Decode the sample of a message.

        Args:
            message: Bytes of `encode`; they need not be trusted.
            p: The distribution that the sender used as `p`.
            key: The key that the sender used.
            blocks: Block map, for a message that carries none.

        Returns:
            The sample: uint8 for Bernoulli, float32 otherwise.

        Raises:
            KLMSError: The bytes are damaged, or `p`, the key or the blocks differ from the sender's.
        """
        return self.read(message, p, key=key, blocks=blocks).vector

    def read(
        self,
        message: bytes,
        p: Distribution,
        *,
        key: SharedKey,
        blocks: Blocks | None = None,
        check: Callable[[wire.MessageInfo], None] | None = None,
        max_size: int = MAX_BLOCK_SIZE,
    ) -> Decoded:
        """Decode a message, with its header and block map.

        `blocks` is required if the message carries no block map, and ignored if it does. Nothing in `message` is
        trusted: bytes that do not decode raise a `KLMSError`. Two arguments bound the time that an untrusted message
        can take: `check` may raise a `KLMSError` for a header that differs from what was agreed, before any work is
        done; and a carried map is refused unless it can have been cut with `max_size`. The number of bits per block
        comes from the message, not from this codec.
        """
        if len(message) > _BYTES_PER_COORDINATE * p.d + _SPARE_BYTES:  # checked before the checksum is computed
            raise CorruptMessage(f"{len(message)} bytes are too many for {p.d} coordinates")
        parsed = wire.parse(message)
        header = parsed.header
        if check is not None:
            check(header)
        if header.family != p.family or header.d != p.d:
            raise SideInformationMismatch(
                f"the message is for {header.d} {header.family} coordinates, but p has {p.d} {p.family} coordinates"
            )
        if header.carries_blocks:
            blocks = parsed.blocks(max_size)
        elif blocks is None:
            raise SideInformationMismatch("the message carries no block map and none was given: pass blocks=")
        elif not isinstance(blocks, Blocks):
            _check_blocks(blocks, p)
        elif blocks.d != header.d or len(blocks) != header.blocks:
            raise SideInformationMismatch(
                f"the message has {header.blocks} blocks over {header.d} coordinates, "
                f"but the block map has {len(blocks)} over {blocks.d}"
            )
        if wire.agreement_tag(p, blocks, key) != header.tag:
            raise SideInformationMismatch(
                "the sender used a different p, key (seed, round, client) or block map; decoding would yield noise"
            )
        return Decoded(self._candidates(parsed.indices(), header.bits, header.memory, p, blocks, key), header, blocks)

    def _candidates(
        self, indices: UInt16, bits: int, memory: int, p: Distribution, blocks: Blocks, key: SharedKey
    ) -> Sample:
        if memory:
            indices = addresses(indices, bits, memory)
        return p.candidates(indices, blocks, shared_words(key, blocks, bits + memory), self.threads)

    def _check_indices(self, indices: UInt16, p: Distribution, blocks: Blocks) -> None:
        _check_blocks(blocks, p)
        if indices.dtype != np.uint16 or indices.shape != (len(blocks),) or int(indices.max()) >> self.bits:
            raise InvalidArgument(f"indices must be {len(blocks)} uint16 numbers below {1 << self.bits}, one per block")


def _check_blocks(blocks: object, p: Distribution) -> None:
    if not isinstance(blocks, Blocks):
        kind = type(blocks).__name__
        raise InvalidArgument(f"blocks must be Blocks, such as klms.fixed_blocks({p.d}, size=32), got {kind}")
    if blocks.d != p.d:
        raise InvalidArgument(f"blocks cover {blocks.d} coordinates, but p has {p.d}")
