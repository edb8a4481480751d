"""Next-word examples: every word but the first of a document is predicted once, from what came before it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klms.data.text import PADDING, UNKNOWN, Document, collect, examples, words_of
from klms.errors import DataError, InvalidArgument

WORD = st.sampled_from(["to", "be", "or", "not", "that", "is"])
DOCUMENTS = st.lists(
    st.builds(Document, st.sampled_from("abc"), st.lists(WORD, max_size=9), st.booleans()), min_size=2, max_size=20
)


def usable(documents: list[Document]) -> bool:
    return {d.held_out for d in documents if len(d.words) >= 2} == {True, False}


@given(DOCUMENTS.filter(usable), st.integers(3, 9), st.integers(1, 6))
def test_every_word_but_the_first_is_predicted_once(documents: list[Document], vocabulary: int, length: int) -> None:
    data = examples(collect("x", documents), vocabulary, length)
    assert data.classes == vocabulary
    for x, y, held_out in ((data.train_x, data.train_y, False), (data.test_x, data.test_y, True)):
        assert x.shape == y.shape == (len(x), length)
        assert x.dtype == y.dtype == np.int64
        assert np.array_equal(x[:, 1:], y[:, :-1])
        assert 0 <= x.min() <= x.max() < vocabulary
        assert (y[:, 0] != PADDING).all()
        words = sum(len(d.words) - 1 for d in documents if len(d.words) >= 2 and d.held_out == held_out)
        assert np.count_nonzero(y) == words


def test_an_example_by_hand() -> None:
    documents = [
        Document("a", ["b", "a", "b", "a", "b", "c"], held_out=False),
        Document("z", ["b"], held_out=False),
        Document("y", ["d", "b"], held_out=True),
    ]
    data = examples(collect("x", documents), vocabulary=4, length=3)
    # b is 2, a is 3, c and d are unknown
    assert data.train_x.tolist() == [[2, 3, 2], [3, 2, UNKNOWN]]
    assert data.train_y.tolist() == [[3, 2, 3], [2, UNKNOWN, PADDING]]
    assert (data.test_x.tolist(), data.test_y.tolist()) == ([[UNKNOWN, 2, PADDING]], [[2, PADDING, PADDING]])
    assert data.train_owner is not None
    assert data.train_owner.tolist() == [0, 0]
    assert data.test_owner is not None
    assert data.test_owner.tolist() == [1]
    assert data.kind == "text"


def test_what_is_only_said_in_testing_does_not_choose_the_vocabulary() -> None:
    documents = [Document("a", ["x", "y"], held_out=False), Document("a", ["z"] * 50, held_out=True)]
    data = examples(collect("x", documents), vocabulary=4, length=5)
    assert (data.test_x[data.test_x != PADDING] == UNKNOWN).all()


def test_each_author_keeps_something_to_train_on() -> None:
    documents = [Document(author, ["a", "b"]) for author, n in (("p", 1), ("q", 10), ("r", 39)) for _ in range(n)]
    corpus = collect("x", documents)
    held = [int(corpus.held_out[corpus.owners == owner].sum()) for owner in range(3)]
    assert held == [0, 1, 3]
    assert corpus.held_out[-3:].all(), "the last documents of an author are held out"


def test_words() -> None:
    assert words_of("Don't, O'er_it -- déjà 2 vu's ''") == ["don't", "o'er", "it", "déjà", "2", "vu's"]


@pytest.mark.parametrize("held_out", [True, False, None])
def test_too_little_text_is_said(held_out: bool | None) -> None:
    with pytest.raises(DataError, match="too few"):
        collect("x", [Document("a", ["a", "b"], held_out)])


def test_settings_are_checked() -> None:
    corpus = collect("x", [Document("a", ["a", "b"], held_out) for held_out in (True, False)])
    for vocabulary in (2, 3.5, True):
        with pytest.raises(InvalidArgument, match="vocabulary"):
            examples(corpus, vocabulary, 20)  # type: ignore[arg-type]
    for length in (0, 1.5, 1 << 40):
        with pytest.raises(InvalidArgument, match="length"):
            examples(corpus, 20, length)  # type: ignore[arg-type]
