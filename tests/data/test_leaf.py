"""LEAF's JSON: images by writer, sentences and lists of words by user, and windows of characters joined again."""

import json
from pathlib import Path

import numpy as np
import pytest

from klms.data import leaf
from klms.errors import DataError
from tests.data import files


def test_images_by_writer(tmp_path: Path) -> None:
    black, white = [0.0] * 784, [1.0] * 784
    files.leaf(tmp_path / "train" / "a.json", {"w1": ([black, white], [61, 0]), "w2": ([white], [5])})
    files.leaf(tmp_path / "train" / "b.json", {"w3": ([[0.5] * 784], [1])})
    files.leaf(tmp_path / "test" / "a.json", {"w2": ([black], [7]), "w4": ([], [])})
    data = leaf.image("femnist", tmp_path, 28, 62)
    assert data.train_x.shape == (4, 1, 28, 28)
    assert data.train_x[:, 0, 0, 0].tolist() == [0, 255, 255, 128]
    assert data.train_y.tolist() == [61, 0, 5, 1]
    assert data.train_owner is not None
    assert data.train_owner.tolist() == [0, 0, 1, 2]
    assert data.test_owner is not None
    assert data.test_owner.tolist() == [1]
    assert data.train_owner.dtype == np.int64


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ([[0.0] * 783], [1], "784 numbers"),
        ([[0.0] * 729], [1], "784 numbers"),
        ([[0.0] * 784, [0.0]], [1, 2], "784 numbers"),
        ([[]], [1], "784 numbers"),
        (["text"], [1], "784 numbers"),
        (["0" * 784], [1], "784 numbers"),
        ([0.5], [1], "784 numbers"),
        ([["0.5"] * 784], [1], "784 numbers"),
        ([[True] * 784], [1], "784 numbers"),
        ([[None] * 784], [1], "784 numbers"),
        ([[[0.5]] * 784], [1], "784 numbers"),
        ([[2.0] * 784], [1], "from 2.0 to 2.0"),
        ([[-0.1] * 784], [1], r"in \[0, 1\]"),
        ([[float("nan")] * 784], [1], r"in \[0, 1\]"),
        ([[10**400] * 784], [1], "too large"),
        ([[0.0] * 784], ["a"], r"label 0 is not an integer in \[0, 62\)"),
        ([[0.0] * 784], ["1"], "label 0"),
        ([[0.0] * 784] * 2, [1, 1.7], "label 1"),
        ([[0.0] * 784], [1.0], "label 0"),
        ([[0.0] * 784], [True], "label 0"),
        ([[0.0] * 784], [None], "label 0"),
        ([[0.0] * 784], [62], "label 0"),
        ([[0.0] * 784], [-1], "label 0"),
        ([[0.0] * 784], [10**30], "label 0"),
    ],
)
def test_only_images_with_integer_labels_are_read(
    tmp_path: Path, x: list[object], y: list[object], reason: str
) -> None:
    good = {"v": ([[0] * 784], [1])}
    files.leaf(tmp_path / "train" / "a.json", good)
    files.leaf(tmp_path / "test" / "a.json", good)
    leaf.image("femnist", tmp_path, 28, 62)
    files.leaf(tmp_path / "train" / "b.json", {"w": (x, y)})
    with pytest.raises(DataError, match=rf"b\.json: .*{reason}"):
        leaf.image("femnist", tmp_path, 28, 62)


def test_images_that_leaf_has_not_split_are_refused(tmp_path: Path) -> None:
    files.leaf(tmp_path / "all.json", {"w": ([[0] * 784], [1])})
    with pytest.raises(DataError, match="-t sample"):
        leaf.image("femnist", tmp_path, 28, 62)
    for half in ("train", "test"):
        files.leaf(tmp_path / half / "a.json", {"w": ([], [])})
    with pytest.raises(DataError, match="no training images"):
        leaf.image("femnist", tmp_path, 28, 62)


def test_a_user_who_is_listed_often_is_not_read_often(tmp_path: Path) -> None:
    content = {"users": ["a"] * 2, "user_data": {"a": {"x": ["hello there"], "y": [0]}}}
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="listed twice"):
        leaf.text("stackoverflow", tmp_path)


def test_sentences_and_words_by_user(tmp_path: Path) -> None:
    tokens = [["<BOS>", "how", "do"], ["I", "exit", "vim", "<EOS>", "<PAD>"]]
    files.leaf(tmp_path / "train" / "a.json", {"u": (["How do I exit?", tokens], [0, 0]), "v": (["too"], [0])})
    files.leaf(tmp_path / "test" / "a.json", {"w": ([["it", "works"]], [["works", "now"]])})
    corpus = leaf.text("stackoverflow", tmp_path)
    assert files.spoken(corpus) == [["how", "do", "i", "exit"], ["how", "do", "i", "exit", "vim"], ["it", "works"]]
    assert corpus.owners.tolist() == [0, 0, 1]
    assert corpus.held_out.tolist() == [False, False, True]


def test_windows_of_characters_are_joined_again(tmp_path: Path) -> None:
    passages = ["to be or not to be", "that is the question"]
    windows = [(text[i : i + 5], text[i + 5]) for text in passages for i in range(len(text) - 5)]
    x, y = [w for w, _ in windows], [c for _, c in windows]
    files.leaf(tmp_path / "data" / "train" / "a.json", {"hamlet": (list(x), list(y))})
    files.leaf(tmp_path / "data" / "test" / "a.json", {"ghost": (["mark me", "ark me "], [" ", "x"])})
    corpus = leaf.text("shakespeare", tmp_path)
    assert files.spoken(corpus) == [passages[0].split(), passages[1].split(), ["mark", "me", "x"]]


def test_without_halves_the_last_tenth_of_each_user_is_for_testing(tmp_path: Path) -> None:
    files.leaf(
        tmp_path / "all.json", {u: ([f"hello {u} {i}" for i in range(n)], [0] * n) for u, n in (("a", 25), ("b", 9))}
    )
    corpus = leaf.text("stackoverflow", tmp_path)
    assert np.flatnonzero(corpus.held_out).tolist() == [23, 24]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"users": ["a"], "user_data": {}}',
        '{"users": ["a"], "user_data": {"a": {"x": [1]}}}',
        '{"users": ["a"], "user_data": {"a": {"x": ["b c"], "y": []}}}',
        '{"users": ["a"], "user_data": {"a": {"x": "bc", "y": "bc"}}}',
        '{"users": ["a"], "user_data": {"a": {"x": [1], "y": [1]}}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [1]}}}',
        '{"users": ["a"], "user_data": {"a": {"x": [[[["b"]]]], "y": [1]}}}',
        '{"users": [0], "user_data": [{"x": ["b c"], "y": [1]}]}',
        '{"users": ["a"], "user_data": {"a": {"x": [' + "[" * 900 + "]" * 900 + '], "y": [1]}}}',
        json.dumps({"users": ["a"], "user_data": {"a": {"x": ["hello there"], "y": [1]}}})[:-3],
    ],
)
def test_what_is_not_leaf_is_a_data_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(DataError, match=r"x\.json"):
        leaf.text("stackoverflow", tmp_path)


def test_an_empty_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train and test"):
        leaf.text("stackoverflow", tmp_path)
