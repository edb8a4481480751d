from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from klms import CorruptMessage, KLMSError, SharedKey, SideInformationMismatch, inspect
from klms.benchmarks.codec import peak_extra_bytes
from klms.compressors.base import Compressor, Side
from klms.compressors.block_coder import BlockCoder, BlockSettings
from klms.compressors.drive import Drive
from klms.compressors.eden import Eden
from klms.compressors.klms_gaussian import DPREC, KLMSGaussian
from klms.compressors.layout import Layout
from klms.compressors.mask import KLMSMask, Mask
from klms.compressors.plain import Float32
from klms.compressors.qsgd import KLMSQSGD, QSGD, round_up
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.compressors.sign import KLMSSign, Sign, plus_probability
from klms.compressors.terngrad import TernGrad
from klms.compressors.topk import TopK
from klms.compressors.trellis import Trellis
from klms.errors import InvalidArgument
from tests.support.mutation import mutate

LAYOUT = Layout(("a", "b"), ((30, 40), (300,)))
D = LAYOUT.d
KEY = SharedKey(1, 2, 3)


def coder(bits: int = 8, fixed: int = 0) -> BlockCoder:
    return BlockSettings(bits=bits, target=6.0, max_size=512, low=4 / 6, high=9 / 6, fixed=fixed).coder(D, None)


def all_schemes():
    return {
        "float32": Float32(LAYOUT),
        "sign": Sign(LAYOUT),
        "stochastic sign": Sign(LAYOUT, 1.0),
        "qsgd 1": QSGD(LAYOUT, 1, 256),
        "qsgd 7": QSGD(LAYOUT, 7, 0),
        "terngrad": TernGrad(LAYOUT),
        "drive": Drive(LAYOUT),
        "eden 0.3": Eden(LAYOUT, 0.3),
        "eden 1": Eden(LAYOUT, 1),
        "eden 2.5": Eden(LAYOUT, 2.5),
        "top-k": TopK(LAYOUT, 0.05),
        "klms sign": KLMSSign(LAYOUT, 1.0, coder()),
        "klms qsgd": KLMSQSGD(LAYOUT, 256, 10.0, coder()),
        "klms gaussian": KLMSGaussian(1.0, coder()),
        "klms gaussian, fixed": KLMSGaussian(1.0, coder(fixed=100)),
        "klms 0.1": Trellis(LAYOUT, 0.1),
        "klms 2": Trellis(LAYOUT, 2.0),
        "dp-rec": DPREC(5.0, 0.3, coder(fixed=10)),
    }


def vector(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.3, D).astype(np.float32)


@pytest.mark.parametrize("name", all_schemes())
def test_what_is_sent_arrives_over_rounds_with_a_learning_side(name):
    scheme = all_schemes()[name]
    side = scheme.start()
    for round_ in range(1, 6):
        learner = scheme.learner(side)
        for client in range(3):
            key = SharedKey(1, round_, client)
            message = scheme.encode(vector(client), side, key=key, rng=np.random.default_rng([round_, client]))
            again = all_schemes()[name].decode(message, dict(side), key=key)
            decoded = scheme.decode(message, side, key=key)
            assert decoded.vector.shape == (D,)
            assert decoded.vector.dtype == np.float32
            np.testing.assert_array_equal(decoded.vector, again.vector)
            assert float(decoded.vector @ vector(client)) > 0
            learner.add(decoded)
        side = learner.finish()


@given(arrays(np.float32, 20, elements=st.floats(0, 2.0**60, width=32)))
def test_norms_are_rounded_up_to_what_float16_holds(norms):
    rounded = round_up(norms)
    assert (rounded >= norms).all()
    assert (rounded <= norms * 1.01).all()
    short = ((norms == 0) | ((norms >= 6e-6) & (norms <= 65504))).all()
    wanted = rounded.astype(np.float16).astype(np.float32) if short else norms
    np.testing.assert_array_equal(rounded, wanted)


def test_norms_of_klms_qsgd_take_two_bytes_each():
    scheme = KLMSQSGD(LAYOUT, 256, 10.0, coder())
    info = inspect(scheme.encode(vector(), scheme.start(), key=KEY, rng=np.random.default_rng(0)))
    assert info.scalar_bytes == 2 * len(info.scalars) == 2 * (scheme.bounds.size - 1)


def test_klms_qsgd_points_where_qsgd_does():
    scheme, x = all_schemes()["klms qsgd"], vector()
    side = scheme.start()
    mean = np.mean(
        [
            scheme.decode(
                scheme.encode(x, side, key=(k := SharedKey(5, 1, n)), rng=np.random.default_rng(n)), side, key=k
            ).vector
            for n in range(300)
        ],
        axis=0,
    )
    assert 0.5 < mean @ x / (x @ x) < 1.1
    assert mean @ x / np.linalg.norm(mean) / np.linalg.norm(x) > 0.8


def test_a_zero_update_is_fine_everywhere():
    for scheme in all_schemes().values():
        side = scheme.start()
        message = scheme.encode(np.zeros(D, dtype=np.float32), side, key=KEY, rng=np.random.default_rng(0))
        assert np.isfinite(scheme.decode(message, side, key=KEY).vector).all()


@pytest.mark.parametrize("size", [1e-38, 1e-40, 1e-44])
def test_updates_below_the_smallest_normal_float32_have_signs(size):
    update = np.full(D, size, dtype=np.float32) * np.sign(vector())
    p = plus_probability(update, LAYOUT, 2.0)
    assert np.isfinite(p).all()
    assert ((p >= 0.5) == (update > 0))[p != 0.5].all()
    for name in ("stochastic sign", "klms sign"):
        scheme = all_schemes()[name]
        message = scheme.encode(update, scheme.start(), key=KEY, rng=np.random.default_rng(0))
        assert np.isin(scheme.decode(message, scheme.start(), key=KEY).vector, (-1, 1)).all()


def test_stochastic_signs_have_the_papers_law():
    p = plus_probability(vector(), LAYOUT, 2.0)
    scale = 2.0 * np.sqrt(np.mean(vector()[LAYOUT.parts[0]].astype(float) ** 2))
    np.testing.assert_allclose(p[:5], 1 / (1 + np.exp(-vector()[:5] / scale)), rtol=1e-5)


def test_one_bit_schemes_cost_one_bit():
    for name in ("sign", "stochastic sign"):
        message = all_schemes()[name].encode(vector(), {}, key=KEY, rng=np.random.default_rng(0))
        assert len(message) == 12 + -(-D // 8)


def test_the_update_protocol():
    """Round 1 cuts and sends blocks; then all use the aggregate, until the KL leaves its range."""
    scheme = KLMSGaussian(1.0, coder())
    side = scheme.start()
    assert side["block_update"]

    def round_(number: int, size: float, side):
        learner = scheme.learner(side)
        messages = []
        for client in range(4):
            key = SharedKey(1, number, client)
            messages.append(scheme.encode(size * vector(client), side, key=key, rng=np.random.default_rng(client)))
            learner.add(scheme.decode(messages[-1], side, key=key))
        return messages, learner.finish()

    messages, side = round_(1, 1.0, side)
    assert all(inspect(m).carries_blocks for m in messages)
    assert not side["block_update"]
    assert len(side["block_bounds"]) - 1 <= max(inspect(m).blocks for m in messages)
    messages, side = round_(2, 1.0, side)
    assert not any(inspect(m).carries_blocks for m in messages)
    assert not side["block_update"]
    messages, side = round_(3, 0.3, side)
    assert side["block_update"]
    messages, side = round_(4, 0.3, side)
    assert all(inspect(m).carries_blocks for m in messages)
    assert not side["block_update"]


def test_a_message_that_is_not_of_the_round_is_refused():
    """Its own block map, other bits, surplus scalars: a client does not decide on those."""
    scheme = KLMSGaussian(1.0, coder())
    first = scheme.start()
    later = {**first, "block_update": np.array(False)}
    carries = scheme.encode(vector(), first, key=KEY, rng=np.random.default_rng(0))
    with pytest.raises(SideInformationMismatch, match="carries a block map"):
        scheme.decode(carries, later, key=KEY)
    bare = scheme.encode(vector(), later, key=KEY, rng=np.random.default_rng(0))
    with pytest.raises(SideInformationMismatch, match="carries no block map"):
        scheme.decode(bare, first, key=KEY)
    other = KLMSGaussian(1.0, coder(bits=9))
    with pytest.raises(SideInformationMismatch, match=r"9.*were agreed"):
        scheme.decode(other.encode(vector(), first, key=KEY, rng=np.random.default_rng(0)), first, key=KEY)


def test_dp_rec_tells_nothing_but_its_sample():
    """The KL is a function of the clipped update alone: in the message it would undo the noise."""
    scheme = DPREC(5.0, 0.3, replace(coder(fixed=10), tells_kl=False))
    message = scheme.encode(vector(), scheme.start(), key=KEY, rng=np.random.default_rng(0))
    assert inspect(message).mean_kl == 0


def test_fixed_blocks_are_never_cut_anew():
    scheme = KLMSGaussian(1.0, coder(fixed=100))
    side = scheme.start()
    for number, size in enumerate((1.0, 5.0, 0.01)):
        key = SharedKey(1, number, 0)
        message = scheme.encode(size * vector(), side, key=key, rng=np.random.default_rng(0))
        assert not inspect(message).carries_blocks
        assert inspect(message).blocks == D // 100
        learner = scheme.learner(side)
        learner.add(scheme.decode(message, side, key=key))
        side = learner.finish()


@given(arrays(np.uint8, D, elements=st.integers(0, 1)))
def test_masks_arrive(mask):
    np.testing.assert_array_equal(Mask(LAYOUT).unpack(Mask(LAYOUT).pack(mask)), mask)


def test_a_skewed_mask_costs_its_entropy():
    layout = Layout(("w",), ((100_000,),))
    mask = (np.random.default_rng(0).random(100_000) < 0.1).astype(np.uint8)
    f = mask.mean()
    entropy = -(f * np.log2(f) + (1 - f) * np.log2(1 - f)) * mask.size / 8
    assert len(Mask(layout).pack(mask)) < 1.002 * entropy + 24


def masks() -> dict[str, Compressor]:
    return {"mask": Mask(LAYOUT), "mask by threshold": Mask(LAYOUT, sampled=False), "klms mask": KLMSMask(coder())}


def probabilities(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.05, 0.95, D).astype(np.float32)


def material(name: str, scheme: Compressor, seed: int = 0) -> tuple[np.ndarray, Side]:
    """Return what the scheme can send, and its side information."""
    if name not in masks():
        return vector(seed), scheme.start()
    return probabilities(seed), {**scheme.start(), "theta": np.full(D, 0.5, dtype=np.float32)}


@pytest.mark.parametrize("name", masks())
def test_schemes_for_masks_send_masks(name):
    scheme = masks()[name]
    update, side = material(name, scheme)
    mean = np.zeros(D)
    for number in range(100):
        key = SharedKey(1, 1, number)
        message = scheme.encode(update, side, key=key, rng=np.random.default_rng(number))
        decoded = scheme.decode(message, side, key=key).vector
        assert decoded.dtype == np.uint8
        assert set(np.unique(decoded)) == {0, 1}
        mean += decoded / 100
    wanted = (update >= 0.5) if name == "mask by threshold" else update
    assert np.corrcoef(mean, wanted)[0, 1] > 0.9


@pytest.mark.parametrize("mutants", [4000, pytest.param(300_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", [*all_schemes(), *masks()])
def test_hostile_messages_get_typed_errors(name, mutants):
    """Mutated as the codec's own messages are; what still decodes is a finite vector of the right size."""
    schemes = all_schemes() | masks()
    scheme = schemes[name]
    update, side = material(name, scheme)
    rng = np.random.default_rng(7)
    good = scheme.encode(update, side, key=KEY, rng=rng)
    others = [s.encode(*material(n, s, 1), key=KEY, rng=rng) for n, s in schemes.items()]
    refused = 0

    def attack() -> None:
        nonlocal refused
        for _ in range(mutants):
            try:
                out = scheme.decode(
                    mutate(good, others[int(rng.integers(len(others)))], rng, KEY), side, key=KEY
                ).vector
            except KLMSError:
                refused += 1
            else:
                assert out.shape == (D,)
                assert np.isfinite(out).all()

    extra = peak_extra_bytes(attack)
    assert extra is None or extra < 64 << 20
    assert 0.6 * mutants < refused < mutants


def test_schemes_do_not_read_each_other():
    message = Sign(LAYOUT).encode(vector(), {}, key=KEY, rng=np.random.default_rng(0))
    with pytest.raises(SideInformationMismatch, match="scheme 2; scheme 3 was agreed"):
        QSGD(LAYOUT, 1, 0).decode(message, {}, key=KEY)
    with pytest.raises(SideInformationMismatch, match="parameters"):
        Sign(Layout(("a",), ((D + 1,),))).decode(message, {}, key=KEY)
    with pytest.raises(CorruptMessage):
        KLMSSign(LAYOUT, 1.0, coder()).decode(message, coder().start(), key=KEY)


@pytest.mark.parametrize("counts", [np.zeros((2, 3), np.uint16), np.zeros((1, 20), np.uint16), np.zeros((2, 20))])
def test_counts_of_another_model_are_refused(counts):
    scheme = UPDATE_SCHEMES["qsgd-klms"].create(Layout(("a",), ((20,),)), {})
    side = {**scheme.start(), "counts": counts}
    with pytest.raises(SideInformationMismatch, match="counts must be uint16 of shape"):
        scheme.encode(np.ones(20, np.float32), side, key=SharedKey(1, 2, 3), rng=np.random.default_rng(0))


def test_more_norms_than_a_message_holds_are_refused_before_any_work():
    with pytest.raises(InvalidArgument, match=r"70,000 norms.*larger bucket"):
        UPDATE_SCHEMES["qsgd-klms"].create(Layout(("a",), ((70_000,),)), {"bucket": 1})
