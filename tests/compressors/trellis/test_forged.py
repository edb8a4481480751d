"""Messages of the dense scheme that were made to take time or memory: work is bounded by what an honest one takes."""

import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

import klms
from klms import CorruptMessage
from klms.compressors.layout import Layout
from klms.compressors.trellis import Trellis
from klms.compressors.trellis.outlier_coder import RegionOutliers, read_outliers, write_outliers
from klms.compressors.trellis.pieces import Regions
from klms.errors import InvalidArgument
from tests.support import forgery
from tests.support.forgery import KEY, many


def decode(layout: Layout, message: bytes) -> np.ndarray:
    return Trellis(layout, threads=1, agreed=False).decode(message, {}, key=KEY).vector


def honest(layout: Layout, update: np.ndarray, rate: float) -> bytes:
    scheme = Trellis(layout, rate, threads=1)
    return scheme.encode(update.astype(np.float32), {}, key=KEY, rng=np.random.default_rng(0))


def normal(d: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(d)


# --- work


def calls(work: Callable[[], object]) -> int:
    """Return how many functions are called, of Python and of C."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    work()  # fills caches
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_calls_for_many_small_arrays_do_not_depend_on_what_is_sent():
    """A call takes about a microsecond, as long as a hundred entries."""
    layout = many(300, (16, 16))
    usual = honest(layout, normal(layout.d), 1.0)
    forged = {
        "outliers": forgery.message(layout, outliers=forgery.outliers(layout, 0, 0.1)),
        "products": forgery.message(layout, low_rank=forgery.products(layout, 1)),
        "pieces": forgery.message(layout, rates=(100, 140)),
    }
    most = 2 * calls(lambda: decode(layout, usual))
    for name, message in forged.items():
        assert calls(lambda message=message: decode(layout, message)) < most, name


def test_an_outlier_takes_a_bit():
    """Otherwise the time to decode would not be bounded by the length of the message."""
    regions, out = Regions(np.array([0, 1 << 20]), np.array([1 << 20])), np.zeros(1 << 20, dtype=np.float32)
    found = [RegionOutliers(508, False, np.arange(10), np.ones(10, dtype=np.float32))]
    content = write_outliers(found, 1.0, np.zeros(10, np.float32))[0]
    for count in (8 * (len(content) - 8) + 1, 1 << 20):
        with pytest.raises(CorruptMessage, match=f"cannot hold {count} outliers"):
            read_outliers(content[:2] + count.to_bytes(4, "little") + content[6:], regions, KEY, out)
    assert not out.any()


def test_an_outlier_takes_a_bit_even_where_the_coder_needs_none():
    """If the interval of the coder becomes tiny without leading bytes that agree, thousands of zeros cost nothing."""
    rng = np.random.default_rng(10)
    values = np.concatenate([rng.choice([-1, 1], 40) * rng.integers(1, 100, 40), np.ones(4000)]).astype(np.float32)
    found = [RegionOutliers(508, False, np.arange(4040), values)]
    content = write_outliers(found, 1.0, np.zeros(4040, np.float32))[0]
    assert len(content) == 2 + 6 + 4040 // 8  # 60 bytes without padding
    out = np.zeros(4040, dtype=np.float32)
    read_outliers(content, Regions(np.array([0, 4040]), np.array([4040])), KEY, out)
    np.testing.assert_allclose(out, values, atol=0.51)


def test_padding_has_no_outliers():
    """An array of 129 entries fills a piece of 256."""
    layout = Layout(("a",), ((129,),))
    assert decode(layout, forgery.message(layout, outliers=forgery.outliers(layout, 0))).all()
    found = [RegionOutliers(508, False, np.array([129]), np.ones(1, np.float32))]
    content = write_outliers(found, 1.0, np.zeros(1, np.float32))[0]
    with pytest.raises(CorruptMessage, match="do not decode"):
        decode(layout, forgery.message(layout, outliers=content))


def test_no_message_is_longer_than_at_the_highest_rate():
    layout = Layout(("a",), ((1 << 14,),))
    longest = forgery.message(layout, outliers=forgery.outliers(layout, 100))
    assert decode(layout, longest).size == layout.d
    assert 8 * len(longest) / layout.d > 7
    with pytest.raises(CorruptMessage, match="too many"):
        decode(layout, forgery.message(layout, outliers=forgery.outliers(layout, 10_000)))


def test_pieces_are_not_smaller_than_at_the_agreed_rate():
    """Each takes some microseconds."""
    layout = many(100, (16, 16))
    forged = forgery.message(layout)
    assert Trellis(layout, 1.0).decode(forged, {}, key=KEY).vector.size == layout.d
    with pytest.raises(CorruptMessage, match=r"pieces of 256 entries are too small at 0\.1 bits"):
        Trellis(layout, 0.1).decode(forged, {}, key=KEY)


# --- memory


def peak(work: Callable[[], object]) -> int:
    """Return the most bytes that NumPy and Python hold at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_outliers_take_no_memory():
    layout = Layout(("a",), ((1 << 16,),))
    forged = forgery.message(layout, outliers=forgery.outliers(layout, 1))
    assert peak(lambda: decode(layout, forged)) < 3 * 4 * layout.d


def test_a_few_bytes_that_claim_gigabytes_are_refused_unless_they_are_expected():
    layout = Layout(("a",), ((1 << 28,),))
    bomb = forgery.container(layout, forgery.message(Layout(("a",), ((1 << 10,),))), "<f8")

    def refused() -> None:
        with pytest.raises(InvalidArgument, match=r"2,147,483,648 bytes.*like=.*max_bytes="):
            klms.decompress(bomb, key=KEY)

    assert len(bomb) < 1000
    assert peak(refused) < 1 << 20


@pytest.mark.parametrize(("kind", "most"), [("<f2", 2.6), ("<f4", 2.2), ("<f8", 1.7)])
def test_decoding_takes_about_twice_the_memory_of_the_arrays(kind, most):
    layout = many(4, (300, 200))
    message = forgery.container(layout, forgery.message(layout), kind)
    memory = max(np.dtype(kind).itemsize, 4) * layout.d  # numbers are float32 before they get their type
    assert peak(lambda: klms.decompress(message, key=KEY, threads=1)) < most * memory + (1 << 16)


# --- time, on the clock of the processor


def seconds(work: Callable[[], object]) -> float:
    """Return the least of five measurements."""
    work()
    taken = []
    for _ in range(5):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)


def updates(layout: Layout, rate: float) -> dict[str, np.ndarray]:
    """Honest updates, some of which need other sections than a normal one."""
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], layout.d)
    low_rank = [rng.standard_normal((shape[0], 8)) @ rng.standard_normal((8, shape[-1])) for shape in layout.shapes]
    return {
        "normal": normal(layout.d),
        "signs": signs,
        "sparse signs": signs * (rng.random(layout.d) < rate / 5),
        "heavy tails": rng.standard_t(2, layout.d),
        "low rank": np.concatenate([matrix.ravel() for matrix in low_rank]),
    }


def forgeries(layout: Layout, rate: float) -> dict[str, bytes]:
    """Messages that make the most of every section, from few bits to many."""
    made = {
        f"outliers of {steps} steps, {share:g} of all entries": {
            "outliers": forgery.outliers(layout, steps, share, rate)
        }
        for steps, share in ((0, 0.1), (0, 0.3), (0, 0.6), (0, 1), (1, 1), (10, 1), (100, 1), (600, 1))
    }
    made |= {
        f"products of {size} steps": {"low_rank": forgery.products(layout, size)} for size in (0, 2, 20, 100, 1 << 18)
    }
    made |= {"pieces at 8 bits": {"rates": (255,)}, "pieces of all rates": {"rates": tuple(range(1, 256))}}
    made["all sections"] = (
        made["outliers of 1 steps, 1 of all entries"] | made["products of 2 steps"] | {"rates": (150,)}
    )
    return {name: forgery.message(layout, rate=rate, **sections) for name, sections in made.items()}


@pytest.mark.soak
@pytest.mark.parametrize("rate", [0.1, 0.3, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize(("count", "shape"), [(1, (1024, 1024)), (64, (128, 128)), (1024, (32, 32))])
def test_forged_messages_take_at_most_three_times_as_long_as_honest_ones(count, shape, rate):
    """As honest ones with as many parameters at the same rate, of which some take several times as long as others."""
    layout = many(count, shape)
    scheme = Trellis(layout, rate, threads=1)

    def time_of(message: bytes) -> float:
        return seconds(lambda: scheme.decode(message, {}, key=KEY)) / layout.d * 1e9

    honest_times = {name: time_of(honest(layout, update, rate)) for name, update in updates(layout, rate).items()}
    forged_times = {}
    for name, message in forgeries(layout, rate).items():
        with suppress(CorruptMessage):  # it is too long
            forged_times[name] = time_of(message)
    usual, slowest = honest_times["normal"], max(honest_times, key=honest_times.__getitem__)
    worst = max(forged_times, key=forged_times.__getitem__)
    print(
        f"\n{count} arrays of {shape} at {rate} bits, ns per parameter: normal {usual:.1f}, slowest honest ({slowest}) "
        f"{honest_times[slowest]:.1f}; slowest forged ({worst}) {forged_times[worst]:.1f}: "
        f"{forged_times[worst] / honest_times[slowest]:.1f} and {forged_times[worst] / usual:.1f} times"
    )
    assert forged_times[worst] < 3 * honest_times[slowest]


@pytest.mark.soak
def test_many_arrays_take_at_most_three_times_as_long_as_honest_ones():
    layout = many(50_000, (128,))
    nothing = [RegionOutliers(508, False, np.zeros(0, np.int64), np.zeros(0, np.float32))] * 50_000
    content = write_outliers(nothing, 1.0, np.zeros(0, np.float32))[0]
    forged = forgery.container(layout, forgery.message(layout, outliers=content))
    usual = forgery.container(layout, honest(layout, normal(layout.d), 0.1))
    times = [seconds(lambda message=message: klms.decompress(message, key=KEY)) for message in (forged, usual)]
    print(f"\n{len(forged):,} bytes: {times[0]:.2f} s; honest, {len(usual):,} bytes: {times[1]:.2f} s")
    assert times[0] < 3 * times[1]
