"""What one client's block map and reported KL can do to the others."""

import statistics
from contextlib import nullcontext

import numpy as np
import pytest

from klms import Bernoulli, Blocks, Codec, CorruptMessage, SharedKey, adaptive_blocks, fixed_blocks
from klms.codec import Chosen
from klms.codec import blocks as blocks_module
from klms.codec.block_sizes import _Model
from klms.compressors.block_coder import BlockCoder, BlockLearner, BlockSettings
from klms.compressors.schemes import SCHEMES
from klms.errors import OutsizedMessage
from klms.runs.settings import PRESETS

D = 20_000
THETA = Bernoulli(np.full(D, 0.5))


def coder(**given: object) -> BlockCoder:
    return BlockSettings(**{"target": 8.0, "max_size": 4096, **given}).coder(D, None)


def honest(one: BlockCoder, client: int) -> bytes:
    q = Bernoulli(np.clip(0.5 + np.random.default_rng(client).normal(0, 0.05, D), 0, 1))
    return one.encode(q, THETA, one.start(), SharedKey(1, 1, client), np.random.default_rng(client))


def forged(blocks: Blocks, kl: float, client: int = 9, codec: Codec | None = None) -> bytes:
    """A message that decodes, with any map and any KL."""
    codec = codec or Codec(bits=8)
    chosen = Chosen(np.zeros(len(blocks), dtype=np.uint16), kl)
    return codec.write(chosen, THETA, blocks, key=SharedKey(1, 1, client), send_blocks=True)


def round_of(one: BlockCoder, messages: dict[int, bytes], side=None):
    """Return the side information after a round of these messages; those that are refused do not count."""
    side = side or one.start()
    learner = BlockLearner(one, side)
    for client, message in messages.items():
        learner.add(one.decode(message, THETA, side, SharedKey(1, 1, client)))
    return learner.finish()


@pytest.mark.parametrize("kl", [0.0, 1.0, 8.0, 80.0])
def test_a_map_of_single_coordinates_is_refused_before_it_is_decoded(kl, monkeypatch):
    """A fair coin is at most one bit away from anything, so there is no KL that explains a block per coordinate."""
    message = forged(fixed_blocks(D, 1), kl)
    monkeypatch.setattr(_Model, "distribution", None)
    with pytest.raises(CorruptMessage, match="KL"):
        coder().decode(message, THETA, coder().start(), SharedKey(1, 1, 9))


def test_a_mask_that_would_be_smaller_if_it_were_written_plainly_is_refused():
    """Whatever all other clients of the round send: of two, the other one says nothing."""
    one, sure = coder(), Bernoulli(np.full(D, 0.02))
    for share, fits in ((0.1, True), (0.3, False)):  # of the coordinates, at 5.6 bits each
        q = Bernoulli(np.where(np.arange(D) < share * D, 1.0, 0.02))
        message = one.encode(q, sure, one.start(), SharedKey(1, 1, 9), np.random.default_rng(0))
        with nullcontext() if fits else pytest.raises(OutsizedMessage, match="written plainly"):
            one.decode(message, sure, one.start(), SharedKey(1, 1, 9))


@pytest.mark.parametrize("kl", [7.0, 0.0])
def test_blocks_must_be_explained_by_the_reported_kl(kl):
    one, most = coder(), D // 8  # the KL is as large as it can be
    assert one.decode(forged(fixed_blocks(D, 8), 8.0), THETA, one.start(), SharedKey(1, 1, 9)).vector.size == D
    with pytest.raises(CorruptMessage, match="KL"):
        one.decode(
            forged(Blocks([*range(0, most), *range(most, D, 4000), D]), kl), THETA, one.start(), SharedKey(1, 1, 9)
        )


@pytest.mark.parametrize("group", [1, 4])
def test_blocks_above_the_agreed_size_are_refused_before_any_work(group, monkeypatch):
    codec = Codec(bits=4, memory=4)
    one = coder(bits=4, memory=4, group=group, max_size=100, target=1.0)
    blocks = Blocks.divided(Blocks([0, 5000, 7000, 7300, 19_700, D]), group)
    message = forged(blocks, 1.0, codec=codec)
    monkeypatch.setattr(_Model, "distribution", None)
    with pytest.raises(CorruptMessage, match="the maximum is"):
        one.decode(message, THETA, one.start(), SharedKey(1, 1, 9))


@pytest.mark.parametrize("group", [1, 3, 255])
@pytest.mark.parametrize("std", [0.0, 0.01, 0.3])
def test_honest_maps_are_within_all_limits(group, std):
    """The limits are those of the rule by which blocks are cut, so that no honest client ever meets them."""
    rng = np.random.default_rng(group)
    for max_size in (1, 7, 300, 65536):
        one = coder(bits=4, memory=4, group=group, max_size=max_size, target=2.0)
        q = Bernoulli(np.clip(0.5 + rng.normal(0, std, D) * (np.arange(D) > D // 2), 0, 1))
        message = one.encode(q, THETA, one.start(), SharedKey(1, 1, 0), rng)
        assert one.decode(message, THETA, one.start(), SharedKey(1, 1, 0)).blocks is not None


def test_one_client_cannot_make_the_next_round_dearer():
    one = coder()
    messages = {client: honest(one, client) for client in range(9)}
    blocks = [len(one.decode(m, THETA, one.start(), SharedKey(1, 1, c)).blocks) for c, m in messages.items()]
    adopted = round_of(one, messages)
    assert not adopted["block_update"]
    attacked = round_of(one, {**messages, 9: forged(fixed_blocks(D, 8), 8.0)})
    assert attacked["block_update"]  # not adopted: the next round, too, every client has its own blocks
    assert np.array_equal(attacked["block_bounds"], one.start()["block_bounds"])
    literal = round_of(coder(spread=1e6), {**messages, 9: forged(fixed_blocks(D, 8), 8.0)})
    assert literal["block_bounds"].size > 10 * statistics.median(blocks)


def test_the_median_of_maps_stays_among_the_honest_ones():
    one = coder(aggregate="median")
    messages = {client: honest(one, client) for client in range(7)}
    bad = {client: forged(fixed_blocks(D, 8), 8.0, client) for client in (7, 8, 9)}
    kept = [one.decode(m, THETA, one.start(), SharedKey(1, 1, c)).blocks.bounds for c, m in messages.items()]
    merged = round_of(one, messages | bad)["block_bounds"]
    assert min(map(len, kept)) <= merged.size <= max(map(len, kept))
    for m, place in enumerate(merged[1:-1].tolist(), 1):
        assert min(b[min(m, b.size - 1)] for b in kept) <= place <= max(b[min(m, b.size - 1)] for b in kept)


def test_a_forged_kl_cannot_keep_bad_blocks():
    """Nine clients whose blocks have a hundredth of the target, and one that makes up for it in the average."""
    one = coder()
    side = {**one.start(), "block_update": np.array(False), "block_bounds": fixed_blocks(D, 20).bounds}
    codec, shared = Codec(bits=8), fixed_blocks(D, 20)

    def message(client: int, kl: float) -> bytes:
        chosen = Chosen(np.zeros(len(shared), dtype=np.uint16), kl)
        return codec.write(chosen, THETA, shared, key=SharedKey(1, 1, client))

    with pytest.raises(CorruptMessage, match="p allows"):
        one.decode(message(9, 80.0), THETA, side, SharedKey(1, 1, 9))
    messages = {client: message(client, 0.05) for client in range(9)} | {9: message(9, 19.0)}
    assert round_of(one, messages, side)["block_update"]
    assert 1.9 < np.mean([0.05] * 9 + [19.0]) < 2.0
    literal = coder(spread=1e6, low=0.2, high=1.0)
    assert not round_of(literal, messages, side)["block_update"]
    assert round_of(coder(low=0.2, high=1.0), messages, side)["block_update"]


def test_maps_that_merge_into_blocks_that_are_too_large_do_not_stop_the_server():
    d, size = 400_000, blocks_module.MAX_BLOCK_SIZE
    usual = fixed_blocks(d, size)
    odd = Blocks.of_sizes([1] * 5 + [60_000] * 6 + [d - 5 - 6 * 60_000])
    merger = blocks_module.BlockMerger(d)
    for blocks in (usual, odd):
        merger.add(blocks)
    assert merger.merged().sizes.max() <= size


def test_the_paper_preset_believes_every_client():
    assert SCHEMES["mask-klms"].settings.checked(PRESETS["paper"]).spread == 1e6


def test_adaptive_blocks_are_at_most_so_many():
    rng = np.random.default_rng(3)
    for _ in range(200):
        kl = rng.exponential(rng.choice([0.01, 1.0, 5.0]), int(rng.integers(1, 400)))
        target, max_size, group = float(rng.uniform(0.5, 9)), int(rng.integers(1, 90)), int(rng.integers(1, 9))
        blocks = adaptive_blocks(kl, target, max_size, min(group, kl.size))
        most = blocks_module.most_blocks(kl.size, kl.sum(), target, max_size, min(group, kl.size))
        assert len(blocks) <= most * (1 + 1e-9)
