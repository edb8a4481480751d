"""`Codec`: `(q, p, blocks, key) -> bytes -> sample` (Algorithms Fixed-KLMS, Adaptive-KLMS and KLMS-Decoder)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from klms.codec import discrete, gaussian
from klms.codec import message as wire
from klms.codec.blocks import Blocks
from klms.codec.candidates import MAX_BITS, generators, windows
from klms.codec.checks import integer
from klms.codec.distributions import Discrete, Distribution, Gaussian
from klms.codec.errors import SideInformationMismatch
from klms.codec.parallel import over
from klms.codec.philox import SharedKey
from klms.codec.quantiles import normal_quantiles
from klms.codec.selection import GREEDY, SELECTIONS

Selection = Literal["sample", "greedy", "matched"]
Sample = npt.NDArray[np.uint8] | npt.NDArray[np.float32]

_LN_2 = float(np.log(2.0))


@dataclass(frozen=True)
class Codec:
    """Sends a sample of `q` to whoever holds `p`, at `bits` bits a block.

    >>> from klms import Bernoulli, adaptive_blocks
    >>> p, q = Bernoulli(np.full(1000, 0.5)), Bernoulli(np.full(1000, 0.6))
    >>> blocks = adaptive_blocks(q.kl(p), target=8.0)
    >>> key = SharedKey(seed=7, round=3, client=12)
    >>> message = Codec(bits=8).encode(q, p, blocks, key=key, rng=np.random.default_rng(0))
    >>> sample = Codec().decode(message, p, key=key, blocks=blocks)
    >>> len(message), sample.shape, sample.dtype
    (36, (1000,), dtype('uint8'))
    """

    bits: int = 8
    """Candidates a block: `K = 2^bits`. Encoding takes time proportional to `K`, decoding does not."""
    selection: Selection = "sample"
    """How the encoder chooses among them; see `selection.py`."""
    threads: int | None = None
    """At most so many threads; all cores by default. The bytes do not depend on it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", integer("bits", self.bits, 1, MAX_BITS))
        if self.selection not in SELECTIONS:
            raise ValueError(f"selection must be one of {', '.join(SELECTIONS)}; got {self.selection!r}")
        if self.threads is not None:
            object.__setattr__(self, "threads", integer("threads", self.threads, 1, 1024))

    def encode(
        self,
        q: Distribution,
        p: Distribution,
        blocks: Blocks,
        *,
        key: SharedKey,
        rng: np.random.Generator | None = None,
        send_blocks: bool = False,
        scalars: Sequence[float] = (),
        send_kl: bool = True,
    ) -> bytes:
        """A message from which the holder of `p` and `key` decodes a sample that is close to one of `q`.

        `rng` is the sender's own randomness: never derive it from the key, which the receiver knows. `send_blocks`
        puts the block map into the message, for a receiver that does not have it. `scalars` travel along as float32.
        Without `send_kl` the message says 0 for its KL, which is a function of `q` and not of the sample.
        """
        q.check_same_family(p)
        if blocks.d != p.d:
            raise ValueError(f"blocks cover {blocks.d} coordinates, p has {p.d}")
        rule = SELECTIONS.index(self.selection)
        if rule == GREEDY:
            uniforms = np.zeros(len(blocks))
        elif not isinstance(rng, np.random.Generator):
            raise ValueError(f"rng must be a numpy Generator for selection {self.selection!r}: it draws the index")
        else:
            uniforms = rng.random(len(blocks))
        indices = np.empty(len(blocks), dtype=np.uint16)
        kls = np.empty(len(blocks))
        largest = int(blocks.sizes.max())
        table = generators(key, largest, self.bits).view(np.int16)
        shared = (largest, windows(key, len(blocks)), table, key.words(), rule, uniforms, indices, kls)
        if isinstance(q, Discrete) and isinstance(p, Discrete):
            arguments = (q.probabilities, p.thresholds, *shared)
            over(blocks.bounds, self.threads, discrete.encode_blocks, *arguments)
        elif isinstance(q, Gaussian) and isinstance(p, Gaussian):
            tables = (gaussian.fine_cells(), gaussian.walsh_terms(), normal_quantiles())
            parameters = (q.mean, q.std, p.mean, p.std, *tables, *shared)
            over(blocks.bounds, self.threads, gaussian.encode_blocks, *parameters)
        else:
            raise ValueError(f"q and p must be laws that the codec knows, got {type(q).__name__}")
        return wire.write(
            p,
            blocks,
            key,
            bits=self.bits,
            indices=indices,
            mean_kl=float(kls.mean()) / _LN_2 if send_kl else 0.0,
            scalars=scalars,
            send_blocks=send_blocks,
        )

    def decode(self, message: bytes, p: Distribution, *, key: SharedKey, blocks: Blocks | None = None) -> Sample:
        """The sample: uint8 for Bernoulli, float32 for the others.

        `blocks` is needed when the message carries none, and not looked at when it carries its own. Nothing of
        `message` is trusted; what does not decode raises a `KLMSError`. The number of bits is the message's, not this
        codec's.
        """
        message = wire.as_bytes(message)
        info = wire.inspect(message)
        if info.family != p.family or info.d != p.d:
            raise SideInformationMismatch(
                f"the message is for {info.d} {info.family} coordinates, p has {p.d} {p.family} ones"
            )
        if info.carries_blocks:
            blocks = wire.carried_blocks(message, info)
        elif blocks is None:
            raise SideInformationMismatch("the message carries no block map and none was given: pass blocks=")
        elif blocks.d != info.d or len(blocks) != info.blocks:
            raise SideInformationMismatch(
                f"the message has {info.blocks} blocks over {info.d} coordinates, "
                f"the block map {len(blocks)} over {blocks.d}"
            )
        if wire.agreement_tag(p, blocks, key) != info.tag:
            raise SideInformationMismatch(
                "the sender held another p, key (seed, round, client) or block map; decoding would yield noise"
            )
        indices = wire.indices(message, info)
        largest = int(blocks.sizes.max())
        table = np.ascontiguousarray(generators(key, largest, info.bits).T)
        shared = (largest, windows(key, len(blocks)), table, key.words())
        if isinstance(p, Discrete):
            sample: Sample = np.empty(p.d, dtype=p.values.dtype)
            discretely = (indices, p.thresholds, *shared, p.values, sample)
            over(blocks.bounds, self.threads, discrete.decode_blocks, *discretely)
        elif isinstance(p, Gaussian):
            sample = np.empty(p.d, dtype=np.float32)
            normally = (indices, p.mean, p.std, normal_quantiles(), *shared, sample)
            over(blocks.bounds, self.threads, gaussian.decode_blocks, *normally)
        else:
            raise ValueError(f"p must be a law that the codec knows, got {type(p).__name__}")
        return sample
