"""Text by author: a corpus of words, and the next-word examples that are made from it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from klms.data.dataset import Dataset, Integers
from klms.errors import DataError
from klms.numerics.checks import integer

PADDING, UNKNOWN = 0, 1
MAX_VOCABULARY, MAX_LENGTH = 1 << 31, 1 << 16
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


@dataclass(frozen=True)
class Document:
    """Consecutive words of one author, held out for testing or not; `None` leaves the decision to `collect`."""

    author: str
    words: list[str]
    held_out: bool | None = None


@dataclass(frozen=True)
class Corpus:
    """Documents as indices into `words`, which are in alphabetical order.

    The cache stores a corpus, because examples of any vocabulary and length can be made from it. Document `i` is
    `tokens[bounds[i]:bounds[i + 1]]`, its author is `owners[i]`, and it is for testing if `held_out[i]`.
    """

    name: str
    words: tuple[str, ...]
    tokens: npt.NDArray[np.int32]
    bounds: Integers
    owners: Integers
    held_out: npt.NDArray[np.bool_]


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation.

    >>> words_of("I'll call -- the bell, then beating ONE!")
    ["i'll", 'call', 'the', 'bell', 'then', 'beating', 'one']
    """
    return _WORD.findall(text.lower())


def collect(name: str, documents: Iterable[Document]) -> Corpus:
    """A corpus of the documents with two words or more; shorter documents have no word to predict.

    Where the source does not say which documents are for testing, the last tenth of each author's documents is held
    out, rounded down so that every author keeps something to train on.
    """
    index: dict[str, int] = {}
    authors: dict[str, int] = {}
    tokens: list[int] = []
    bounds, owners, decided = [0], [], []
    for document in documents:
        if len(document.words) < 2:
            continue
        tokens.extend(index.setdefault(word, len(index)) for word in document.words)
        bounds.append(len(tokens))
        owners.append(authors.setdefault(document.author, len(authors)))
        decided.append(document.held_out)
    owner = np.array(owners, np.int64)
    held_out = _last_tenth(owner) if None in decided else np.array(decided, np.bool_)
    words = tuple(sorted(index))
    place = np.empty(len(words), np.int32)
    place[[index[word] for word in words]] = np.arange(len(words))
    coded = place[np.array(tokens, np.int64)]
    return checked_corpus(Corpus(name, words, coded, np.array(bounds, np.int64), owner, held_out))


def _last_tenth(owner: Integers) -> npt.NDArray[np.bool_]:
    counts = np.bincount(owner)
    place = np.empty_like(owner)
    place[np.argsort(owner, kind="stable")] = _places(counts)
    return place >= (counts - counts // 10)[owner]


def _places(counts: Integers) -> Integers:
    """Number the entries of consecutive groups of these sizes; every group starts again at 0."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def checked_corpus(corpus: Corpus) -> Corpus:
    """Return the corpus; raise `DataError` unless its arrays match and there are documents for training and testing."""
    n = corpus.owners.size
    types = [array.dtype for array in (corpus.tokens, corpus.bounds, corpus.owners, corpus.held_out)]
    whole = (
        types == [np.int32, np.int64, np.int64, np.bool_]
        and corpus.bounds.shape == (n + 1,)
        and corpus.held_out.shape == (n,)
        and corpus.tokens.ndim == corpus.owners.ndim == 1
        and (corpus.bounds[0], corpus.bounds[-1]) == (0, corpus.tokens.size)
        and bool((np.diff(corpus.bounds) >= 2).all())
    )
    if not whole:
        raise DataError(f"{corpus.name}: the arrays of the text do not match")
    testing = np.count_nonzero(corpus.held_out)
    if not 0 < testing < n:
        raise DataError(f"{corpus.name}: {n} documents, {testing} of them for testing, are too few")
    if corpus.tokens.min() < 0 or corpus.tokens.max() >= len(corpus.words) or corpus.owners.min() < 0:
        raise DataError(f"{corpus.name}: the index of a word or of an author is out of range")
    return corpus


def examples(corpus: Corpus, vocabulary: int, length: int) -> Dataset:
    """Next-word examples of `length` words; token ids from 2 up are the most frequent words of the training documents.

    A document is cut every `length` words, and each of its words except the first is predicted once.
    """
    vocabulary = integer("vocabulary", vocabulary, 3, MAX_VOCABULARY)
    length = integer("length", length, 1, MAX_LENGTH)
    steps = np.diff(corpus.bounds) - 1
    counts = np.bincount(corpus.tokens[np.repeat(~corpus.held_out, steps + 1)], minlength=len(corpus.words))
    ranked = np.argsort(-counts, kind="stable")[: vocabulary - 2]
    ids = np.full(len(corpus.words), UNKNOWN, np.int64)
    ids[ranked] = np.arange(2, 2 + ranked.size)
    windows = -(-steps // length)
    document = np.repeat(np.arange(steps.size), windows)
    where = (corpus.bounds[document] + _places(windows) * length)[:, None] + np.arange(length + 1)
    words = ids[corpus.tokens[np.minimum(where, corpus.tokens.size - 1)]]
    words[where >= corpus.bounds[document + 1][:, None]] = PADDING
    x, y, owner, test = words[:, :-1], words[:, 1:], corpus.owners[document], corpus.held_out[document]
    return Dataset(corpus.name, x[~test], y[~test], x[test], y[test], vocabulary, owner[~test], owner[test], "text")
