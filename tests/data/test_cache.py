"""The cache: what is kept is read again; a damaged file is a `DataError`; a failed write leaves nothing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from klms.data import cache
from klms.data.text import Document, collect
from klms.errors import DataError
from tests.data import files
from tests.data.files import fields, small


@pytest.mark.parametrize("owners", [True, False])
def test_images_come_back(tmp_path: Path, owners: bool) -> None:
    path = tmp_path / "deep" / "mnist.npz"
    cache.write(path, small(owners))
    assert fields(cache.read(path, "mnist")) == fields(small(owners))


def test_text_comes_back(tmp_path: Path) -> None:
    corpus = collect("chat", [Document("a", ["déjà", "vu"], held_out) for held_out in (True, False)])
    cache.write(tmp_path / "chat.npz", corpus)
    assert fields(cache.read(tmp_path / "chat.npz", "chat")) == fields(corpus)


def test_no_damage_goes_unnoticed(tmp_path: Path) -> None:
    # One flipped bit at each of 300 places, and 40 truncations: refused, or in bytes that hold no data.
    path = tmp_path / "mnist.npz"
    cache.write(path, small())
    whole, wanted = path.read_bytes(), fields(small())
    refused = 0
    for at in np.linspace(0, len(whole) - 1, 300).astype(int):
        damaged = bytearray(whole)
        damaged[at] ^= 16
        path.write_bytes(bytes(damaged))
        try:
            assert fields(cache.read(path, "mnist")) == wanted
        except DataError:
            refused += 1
    assert refused > 150
    for end in np.linspace(0, len(whole) - 1, 40).astype(int):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"mnist\.npz is damaged"):
            cache.read(path, "mnist")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mnist.npz"
    cache.write(path, small())
    before = path.read_bytes()

    def fails(file, **arrays: object) -> None:
        file.write(b"half of it")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", fails)
    with pytest.raises(DataError, match="no space"):
        cache.write(path, small())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_another_release_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write(tmp_path / "mnist.npz", small())
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    with pytest.raises(DataError, match=r"outdated .*another release"):
        cache.read(tmp_path / "mnist.npz", "mnist")


def test_no_pickle_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    with path.open("wb") as file:
        np.savez(file, train_x=np.array([files.Hostile(tmp_path / "was-run")], dtype=object))
    with pytest.raises(DataError, match="allow_pickle"):
        cache.read(path, "mnist")
    assert not (tmp_path / "was-run").exists()


def stored(tmp_path: Path, save=np.savez, **changes: object) -> Path:
    """A valid file, except for these changes."""
    data = small()
    arrays = {field: getattr(data, field) for field in ("train_x", "train_y", "test_x", "test_y")}
    arrays |= {"classes": np.array(10), "version": np.array(cache.VERSION)}
    with (tmp_path / "mnist.npz").open("wb") as file:
        save(file, **(arrays | changes))
    return tmp_path / "mnist.npz"


def test_nothing_is_rounded_and_nothing_unpacks_to_more_than_the_file(tmp_path: Path) -> None:
    assert fields(cache.read(stored(tmp_path), "mnist")) == fields(small())
    for changes in ({"classes": np.array(10.7)}, {"version": np.array(cache.VERSION + 0.5)}, {"train_y": np.zeros(3)}):
        with pytest.raises(DataError):
            cache.read(stored(tmp_path, **changes), "mnist")
    with pytest.raises(DataError, match="unpacks to more"):
        cache.read(stored(tmp_path, np.savez_compressed, train_x=np.zeros((1 << 14, 1, 28, 28), np.uint8)), "mnist")


@pytest.mark.parametrize(
    ("field", "dtype"), [("tokens", float), ("bounds", float), ("owners", bool), ("held_out", int)]
)
def test_the_arrays_of_a_text_have_their_types(tmp_path: Path, field: str, dtype: type) -> None:
    corpus = collect("chat", [Document("a", ["to", "be"], held_out) for held_out in (True, False)])
    cache.write(tmp_path / "chat.npz", replace(corpus, **{field: getattr(corpus, field).astype(dtype)}))
    with pytest.raises(DataError, match="do not match"):
        cache.read(tmp_path / "chat.npz", "chat")


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("KLMS_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.location("mnist") == Path("/home/someone/.cache/klms/mnist.npz")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert cache.location("mnist") == Path("/caches/klms/mnist.npz")
    monkeypatch.setenv("KLMS_DATA", "/own")
    assert cache.location("mnist") == Path("/own/mnist.npz")
    assert cache.location("mnist", tmp_path) == tmp_path / "mnist.npz"
