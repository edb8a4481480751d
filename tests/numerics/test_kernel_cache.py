"""What is damaged in Numba's cache is compiled again, and never run."""

import importlib.util
import pickle
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from klms.numerics.kernel_cache import _Cache

SOURCE = """
from klms.numerics.jit import kernel

@kernel
def add_one(x):
    return x + 1
"""
LONGER, SHORTER = np.int64(41), np.float32(41)  # two signatures of the kernel, in the order in which they are cached
numbers = count()


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A module whose kernel is compiled for two signatures, and the files of its cache with their content."""
    source = tmp_path_factory.mktemp("warm") / "kernels.py"
    source.write_text(SOURCE)
    process = Process(source)
    assert process.call(LONGER) == 42
    assert process.call(SHORTER) == 42
    assert process.misses == 2
    return source, {path: path.read_bytes() for path in process.files()}


class Process:
    """What another process would see: the module imported anew, with nothing compiled."""

    def __init__(self, source):
        spec = importlib.util.spec_from_file_location(f"kernels_{next(numbers)}", source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.kernel = module.add_one

    def call(self, x):
        return self.kernel(x)

    @property
    def misses(self) -> int:
        return sum(self.kernel.stats.cache_misses.values())

    def files(self) -> list[Path]:
        return sorted(Path(self.kernel.stats.cache_path).glob("kernels.add_one-*"))


@pytest.fixture
def cached(warm):
    """The module and its files, sound again."""
    source, files = warm
    for path, content in files.items():
        path.write_bytes(content)
    yield source, *files
    for path, content in files.items():
        if path.is_dir():
            path.rmdir()
        path.write_bytes(content)


def test_a_sound_cache_is_used(cached):
    source, *files = cached
    assert sorted(path.suffix for path in files) == [".nbc", ".nbc", ".nbi"]
    again = Process(source)
    assert again.call(LONGER) == again.call(SHORTER) == 42
    assert again.misses == 0


def damage_of(content: bytes):
    """Contents that a crash, a full disk or a flipped bit leaves."""
    yield b""
    yield content[: len(content) // 2]
    yield pickle.dumps(None)
    for quarter in (1, 2, 3):
        place = quarter * len(content) // 4
        yield content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


@pytest.mark.parametrize("which", range(3))
def test_a_damaged_file_is_replaced(cached, which):
    source, *files = cached
    content = files[which].read_bytes()
    for damaged in damage_of(content):
        files[which].write_bytes(damaged)
        first = Process(source)
        assert first.call(LONGER) == first.call(SHORTER) == 42
        after = Process(source)
        assert after.call(LONGER) == after.call(SHORTER) == 42
        assert after.misses == 0, damaged[:20]


def test_two_processes_replace_it_at_the_same_time(cached):
    """Both have found the damage before either writes, and write one after the other."""
    source, first, *_ = cached
    first.write_bytes(b"")
    both = Process(source), Process(source)
    for process in both:
        kernel = process.kernel
        assert kernel._cache.load_overload((kernel.typeof_pyval(LONGER),), kernel.targetctx) is None
    assert [process.call(LONGER) for process in both] == [42, 42]
    after = Process(source)
    assert after.call(LONGER) == after.call(SHORTER) == 42
    assert after.misses == 0


def test_code_for_other_arguments_is_not_run(cached):
    """Between the moments in which another process writes the index and the file, the index may point to such code."""
    source, first, second, _ = cached
    content = first.read_bytes(), second.read_bytes()
    first.write_bytes(content[1])
    second.write_bytes(content[0])
    process = Process(source)
    assert process.call(LONGER) == 42
    assert isinstance(process.call(LONGER), int)
    assert process.call(SHORTER) == 42
    assert process.misses == 2


def test_a_folder_that_cannot_be_written_is_no_failure(cached, monkeypatch):
    """As root, nothing is read-only: the folder says so itself."""
    source, first, *_ = cached
    first.write_bytes(b"")

    def read_only(self, path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile._open_for_write", read_only)
    for _ in range(2):
        process = Process(source)
        assert process.call(LONGER) == 42


def test_a_folder_in_the_place_of_the_index_is_no_failure(cached):
    source, *_, index = cached
    index.unlink()
    index.mkdir()
    assert Process(source).call(LONGER) == 42


def test_without_any_folder_there_is_no_cache(cached, monkeypatch):
    def nowhere(self, function):
        raise RuntimeError("no locator available")

    monkeypatch.setattr(_Cache, "__init__", nowhere)
    process = Process(cached[0])
    assert process.call(LONGER) == 42
    assert process.kernel.stats.cache_path is None
