"""Words as numbers: a vocabulary, a corpus, and what a model that reads one must do. Pure Python and numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nnarena.core.errors import ArenaError, UnknownName

if TYPE_CHECKING:
    from torch.optim import Optimizer

UNKNOWN = "<unknown>"  # word 0 of every vocabulary; no tokeniser makes it


@dataclass(frozen=True)
class Vocabulary:
    """Words by number, the most frequent first; number 0 stands for every word that is not in it.

    words    words[0] is UNKNOWN
    counts   how often the corpus has each of them
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, counts: Mapping[str, int], size: int) -> Vocabulary:
        """The `size` − 1 most frequent words and the unknown one; equally frequent ones by the alphabet."""
        if size < 2:
            raise ArenaError(f"A vocabulary needs at least 2 words, the unknown one and another, not {size}.")
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if not ranked:
            raise ArenaError("The corpus is empty: there is no word to learn.")
        known, rest = ranked[: size - 1], ranked[size - 1 :]
        unknown = sum(count for _, count in rest)
        return cls((UNKNOWN, *(word for word, _ in known)), (unknown, *(count for _, count in known)))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """(N,) numbers; 0 for words that are not in the vocabulary."""
        numbers = self._numbers
        return np.fromiter((numbers.get(word, 0) for word in words), np.int64)

    def find(self, word: str) -> int:
        """The number of a word that must be known; UnknownName suggests the nearest one."""
        if word not in self._numbers:
            raise UnknownName("word in the vocabulary", word, self.words[1:])
        return self._numbers[word]


@dataclass(frozen=True)
class Corpus:
    """A text. N words, in documents that follow each other; no context reaches into the next document.

    tokens      (N,) int64, numbers of the vocabulary
    documents   (N,) int64, which document each belongs to, from 0 on and never falling
    """

    tokens: np.ndarray
    documents: np.ndarray
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        if not len(self.tokens):
            raise ArenaError("The corpus is empty: there is no word to learn.")

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def known(self) -> Corpus:
        """Without its unknown words: those around them move together, as in word2vec."""
        kept = self.tokens > 0
        return self if kept.all() else Corpus(self.tokens[kept], self.documents[kept], self.vocabulary)

    def first(self, count: int) -> Corpus:
        return Corpus(self.tokens[:count], self.documents[:count], self.vocabulary)

    def counts(self, size: int) -> np.ndarray:
        """(size,) how often each word is in it."""
        return np.bincount(self.tokens, minlength=size)


@dataclass(frozen=True)
class Lesson:
    """What a model is given to read with.

    optimizer    of its parameters; one that counts does not need it
    batch_size   central words a step
    go_on        to be called often; it may raise
    """

    optimizer: Optimizer
    batch_size: int
    go_on: Callable[[], None] = lambda: None


class Reader(Protocol):
    """A model that learns words by reading.

    Called with weights of words (B, V), it answers with the cosine (B, V) between their weighted sum and every word.
    Words are summed as vectors of length 1. `once` says that a second reading teaches nothing new.
    """

    once: bool

    def read(self, corpus: Corpus, lesson: Lesson) -> float:
        """One pass over the corpus; the loss."""
        ...


def rank(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """(N,) from 1 on, the lowest first; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]


def spearman(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> float:
    """Spearman's ρ: the correlation of the ranks. 0 where one of them is constant, and so orders nothing."""
    x, y = (rank(values) - (len(values) + 1) / 2 for values in (a, b))
    length = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / length) if length > 0 else 0.0
