"""Numbers of unknown statistics: what is written is read, at the cost of the entropy, in bounded steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klms.compressors.trellis.adaptive_bits import (
    CLASSES,
    Coder,
    finish,
    new_reader,
    new_writer,
    read_records,
    write_records,
)

NUMBERS = st.integers(0, (1 << (CLASSES - 1)) - 2)


def contexts(numbers: np.ndarray) -> np.ndarray:
    return np.zeros(len(numbers), dtype=np.uint8)


def written(numbers: np.ndarray, minus: np.ndarray, *, signed_zeros: bool) -> np.ndarray:
    writer = new_writer(16 + 16 * numbers.size, 2)
    write_records(writer, contexts(numbers), signed_zeros, numbers, minus)
    return writer.data[: finish(writer)].copy()


@settings(max_examples=60)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans()), max_size=200), st.booleans())
def test_records_are_read_as_they_were_written(records, signed_zeros):
    numbers = np.array([record[:2] for record in records], dtype=np.int64).reshape(-1, 2)
    minus = np.array([sign for _, _, sign in records], dtype=np.uint8)
    reader = new_reader(written(numbers, minus, signed_zeros=signed_zeros), 2)
    found, signs = np.empty_like(numbers), np.empty_like(minus)
    half = len(records) // 2
    assert read_records(reader, contexts(found[:half]), signed_zeros, found[:half], signs[:half])
    assert read_records(reader, contexts(found[half:]), signed_zeros, found[half:], signs[half:])
    np.testing.assert_array_equal(found, numbers)
    np.testing.assert_array_equal(signs, minus if signed_zeros else np.where(numbers[:, 0] > 0, minus, 0))


def test_numbers_cost_their_entropy():
    numbers = np.random.default_rng(0).geometric(0.2, (20_000, 1)) - 1
    signs = int(np.count_nonzero(numbers))
    length = written(numbers, np.zeros(20_000, np.uint8), signed_zeros=False).size
    entropy = -(0.2 * np.log2(0.2) + 0.8 * np.log2(0.8)) / 0.2
    assert entropy < (8 * length - signs) / numbers.size < 1.04 * entropy


class Counting(np.ndarray):
    """An array that counts how often an entry is set."""

    changes = 0

    def __setitem__(self, place, value):
        Counting.changes += 1
        super().__setitem__(place, value)


def steps(data: np.ndarray, numbers: np.ndarray) -> tuple[bool, int]:
    """Read records with the kernel as plain Python; return whether they could be read, and the steps that it took."""
    coder, minus = new_reader(data, 2), np.zeros(len(numbers), np.uint8)
    counting = Coder(coder.data, coder.interval, coder.chances, coder.seen.view(Counting), coder.before)
    Counting.changes = 0
    numbers[:] = 0
    good = getattr(read_records, "py_func", read_records)(counting, contexts(numbers), True, numbers, minus)
    classes = np.log2(numbers + 1).astype(int)
    done = int(np.count_nonzero(numbers[:, -1])) or len(numbers)
    return good, Counting.changes + int(np.maximum(classes - 1, 0).sum()) + done


@pytest.mark.parametrize("kind", ["zeros", "ones", "random", "largest", "free"])
def test_steps_are_bounded_by_records_and_bytes(kind):
    """At most 4 steps for each record, 3 for each further number, 2 for each bit."""
    rng = np.random.default_rng(0)
    numbers = np.zeros((400, 2), np.int64)
    largest = written(np.full((30, 2), (1 << (CLASSES - 1)) - 2), np.ones(30, np.uint8), signed_zeros=True)
    data = {
        "zeros": np.zeros(50, np.uint8),
        "ones": np.full(50, 255, np.uint8),
        "random": rng.integers(0, 256, 200, dtype=np.uint8),
        "largest": largest,
        "free": np.array([0xAB, 0, 0, 1] * 10, np.uint8),
    }[kind]
    good, taken = steps(data, numbers)
    assert taken <= (4 + 3) * len(numbers) + 2 * 8 * (data.size + 4)
    if kind == "largest":
        assert not good  # 30 records are there
