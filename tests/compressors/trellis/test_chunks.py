"""Updates of several chunks: one price per bit, the same bytes on any number of threads, bounded memory."""

import io
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import klms
from klms import KLMSError, SharedKey
from klms.compression import inspect_update
from klms.compressors.layout import Layout
from klms.compressors.trellis import SCHEME, chunks
from klms.compressors.trellis.chunks import cut, key_of_chunk
from tests.support.mutation import mutate

KEY = SharedKey(3, 1, 4)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 1 << 16)


def mixed(scale: int = 1) -> dict[str, np.ndarray]:
    """Arrays of very different norms and structure."""
    rng = np.random.default_rng(0)
    rows, columns = 250 * scale, 200 * scale
    low_rank = rng.standard_normal((rows, 6)) @ rng.standard_normal((6, columns))
    return {
        "normal": rng.standard_normal((rows, columns), dtype=np.float32),
        "small": 1e-3 * rng.standard_normal((rows, columns), dtype=np.float32),
        "low rank": low_rank.astype(np.float32) + 0.05 * rng.standard_normal((rows, columns), dtype=np.float32),
        "heavy": rng.standard_t(2, rows * columns).astype(np.float32),
        "flat": 0.1 * rng.standard_normal(rows * columns, dtype=np.float32),
        "zeros": np.zeros(70_000, dtype=np.float32),
        "steps": np.arange(5),
        "empty": np.zeros((0, 4), dtype=np.float32),
        "half": rng.standard_normal(30).astype(np.float16),
    }


def error(update, decoded) -> float:
    return sum(float(np.square(decoded[name].astype(float) - array).sum()) for name, array in update.items())


def test_chunks_cover_every_entry_once():
    rng = np.random.default_rng(0)
    for _ in range(50):
        shapes = tuple(tuple(rng.integers(0, 12, rng.integers(0, 4)).tolist()) for _ in range(6))
        layout = Layout(tuple("abcdef"), shapes)
        seen = [np.zeros(size, dtype=int) for size in layout.sizes]
        found = cut(layout, most=40)
        for chunk in found:
            assert 0 < chunk.layout.d <= 40
            for segment, size in zip(chunk.segments, chunk.layout.sizes, strict=True):
                assert segment.stop - segment.start == size
                seen[segment.array][segment.start : segment.stop] += 1
        assert all((count == 1).all() for count in seen)
        assert len(found) <= 2 * layout.d / 40 + 8


def test_the_keys_of_chunks_are_part_of_the_format():
    keys = [key_of_chunk(SharedKey(1, 2, 3), n) for n in range(2)]
    assert keys == [SharedKey(14205403995905430327, 2, 3), SharedKey(14981374328547693168, 2, 3)]
    assert chunks.CHUNK == 1 << 25


def test_a_chunk_has_a_bounded_number_of_arrays_unless_it_is_the_only_one():
    layout = Layout(tuple(map(str, range(10_000))), ((2,),) * 10_000)
    assert [len(chunk.segments) for chunk in cut(layout, most=15_000)] == [4096, 4096, 1808]
    assert [len(chunk.segments) for chunk in cut(layout, most=20_000)] == [10_000]


@pytest.mark.parametrize(("bits", "effort"), [(0.1, "balanced"), (0.5, "fast"), (1.0, "balanced"), (3.0, "balanced")])
def test_chunks_have_about_the_error_of_one_message(monkeypatch, bits, effort):
    update = mixed(2)
    lengths, errors = [], []
    for most in (1 << 30, 1 << 18):
        monkeypatch.setattr(chunks, "CHUNK", most)
        message = klms.compress(update, bits, key=KEY, effort=effort, rng=np.random.default_rng(0))
        decoded = klms.decompress(message, key=KEY)
        assert {name: array.dtype for name, array in decoded.items()} == {n: a.dtype for n, a in update.items()}
        lengths.append(len(message))
        errors.append(error(update, decoded))
    assert lengths[1] == pytest.approx(lengths[0], rel=0.02, abs=200)
    assert errors[1] < 1.1 * errors[0]


def test_bits_go_where_the_energy_is(small_chunks):
    update = {"loud": np.ones((1, 1 << 16), np.float32), "quiet": np.full(1 << 16, 1e-4, np.float32)}
    for name in update:
        update[name] *= np.random.default_rng(0).standard_normal(update[name].shape, dtype=np.float32)
    message = klms.compress(update, 1.0, key=KEY)
    body = io.BytesIO(message)
    body.seek(20 + inspect_update(message)[1].end)
    (loud,) = struct.unpack("<I", body.read(4))
    assert loud > 0.95 * len(message)
    assert len(message) == pytest.approx((1 << 17) / 8, rel=0.02)


def test_any_number_of_threads_gives_the_same_bytes(small_chunks):
    update = mixed()
    messages = {klms.compress(update, 0.7, threads=n, rng=np.random.default_rng(2)) for n in (1, 2, 5)}
    assert len(messages) == 1
    (message,) = messages
    decoded = [klms.decompress(message, threads=n)["normal"] for n in (1, 3)]
    np.testing.assert_array_equal(decoded[0], decoded[1])


@pytest.mark.parametrize("budget", [3000, 9000, 90_000])
def test_the_budget_holds_for_all_chunks_together(small_chunks, budget):
    message = klms.compress(mixed(), budget_bytes=budget)
    assert 0.9 * budget < len(message) <= budget
    assert klms.decompress(message)["steps"].tolist() == [0, 1, 2, 3, 4]


def test_chunks_are_unbiased(small_chunks):
    x = np.random.default_rng(0).standard_normal((2, 40_000)).astype(np.float32)
    x[1] *= 0.1
    update = {"a": x[0], "b": x[1]}
    slopes = []
    for n in range(40):
        decoded = klms.decompress(klms.compress(update, 0.2, effort="fast", rng=np.random.default_rng(n)))
        slopes.append([float(decoded[name] @ update[name] / (update[name] @ update[name])) for name in "ab"])
    off = np.abs(np.mean(slopes, axis=0) - 1) / (np.std(slopes, axis=0) / 40**0.5)
    assert (off < 4).all()


def test_progress_reaches_its_end(small_chunks):
    told: list[tuple[int, int]] = []
    message = klms.compress(mixed(), 0.3, progress=lambda *step: told.append(step))
    assert told == sorted(told)
    assert len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1]
    told.clear()
    klms.decompress(message, progress=lambda *step: told.append(step))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]


def test_damaged_messages_raise_typed_errors(small_chunks):
    rng = np.random.default_rng(0)
    update = {"a": rng.standard_t(2, (300, 300)).astype(np.float32), "n": np.array(3)}
    message, other = (klms.compress(update, bits, rng=rng, effort="fast") for bits in (0.05, 0.2))
    frame, _ = inspect_update(message)
    for _ in range(300):
        body = mutate(message[20:-4], other[20:-4], rng)
        try:
            decoded = klms.decompress(replace(frame, body=body).to_bytes(), max_bytes=1 << 20)
        except KLMSError:
            continue
        assert np.isfinite(decoded["a"]).all()


def test_a_chunk_that_claims_more_bytes_than_there_are_is_refused(small_chunks):
    message = klms.compress({"a": np.ones(1 << 17, np.float32)}, 0.05)
    frame, described = inspect_update(message)
    body = message[20:-4]
    for length in (0, 1, (1 << 32) - 1):
        forged = body[: described.end] + struct.pack("<I", length) + body[described.end + 4 :]
        with pytest.raises(KLMSError):
            klms.decompress(replace(frame, body=forged).to_bytes())
    with pytest.raises(KLMSError, match="more in the message"):
        klms.decompress(replace(frame, body=body + b"\0").to_bytes())


@pytest.mark.parametrize("turned", [False, True])
def test_memory_beside_a_large_update_is_that_of_a_chunk(small_chunks, turned):
    """The update has 20 chunks."""
    update = {"a": np.random.default_rng(0).standard_normal((2048, 640), dtype=np.float32)}
    if turned:
        update = {"a": np.asfortranarray(update["a"])}
    chunk = 4 << 16
    file = io.BytesIO()
    klms.compress_to(file, update, 0.5, threads=1)  # and compile the kernels
    message = file.getvalue()
    file = io.BytesIO()
    assert _peak(lambda: klms.compress_to(file, update, 0.5, threads=1)) < len(message) * 2 + 8 * chunk
    assert _peak(lambda: klms.decompress(message, threads=1)) < update["a"].nbytes + 4 * chunk


def compressor(rate=0.5):
    layout = Layout(("a", "b", "c"), ((300, 300), (0, 4), (50_000,)))
    return SCHEME.make(layout, SCHEME.settings(rate=rate), 1)


def test_a_compressor_of_a_large_model_codes_chunks(small_chunks):
    update = np.random.default_rng(0).standard_normal(140_000, dtype=np.float32)
    update[90_000:] *= 1e-3
    coder = compressor()
    assert len(coder.chunks) == 3
    message = coder.encode(update, {}, key=KEY, rng=np.random.default_rng(1))
    assert len(message) == pytest.approx(0.5 * 140_000 / 8, rel=0.02)
    decoded = coder.decode(message, {}, key=KEY).vector
    assert np.sum((decoded - update) ** 2) < 0.8 * np.sum(update**2)  # 1 or more, if all entries had the same bits


def test_a_compressor_of_a_large_model_refuses_damage_and_more_bytes_than_were_agreed(small_chunks):
    rng = np.random.default_rng(0)
    update = rng.standard_t(2, 140_000).astype(np.float32)
    message, other = (compressor(rate).encode(update, {}, key=KEY, rng=rng) for rate in (0.05, 0.5))
    with pytest.raises(KLMSError, match="too many"):
        compressor(0.05).decode(other, {}, key=KEY)
    for broken, words in [(message + b"\0", "after its chunks"), (message[:-1], "in the middle")]:
        with pytest.raises(KLMSError, match=words):
            compressor(0.05).decode(broken, {}, key=KEY)
    for _ in range(100):
        with suppress(KLMSError):
            assert np.isfinite(compressor(0.05).decode(mutate(message, other, rng), {}, key=KEY).vector).all()


def _peak(work) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
