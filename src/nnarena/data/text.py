"""From text to numbers: a tokeniser, and a corpus with its vocabulary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from nnarena.core.errors import DataError
from nnarena.core.words import Corpus, Vocabulary

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")  # letters and digits; an apostrophe inside of a word belongs to it


def tokenise(text: str) -> list[str]:
    """The words of a text in small letters: `It's BIG, isn't it?` gives it's, big, isn't, it."""
    return WORD.findall(text.lower())


def make_corpus(documents: Sequence[Sequence[str]], size: int) -> Corpus:
    """Documents of words as a corpus, with a vocabulary of at most `size` words, the unknown one included."""
    counts = Counter(word for document in documents for word in document)
    if not counts:
        raise DataError("The corpus is empty: there is no word to learn.")
    vocabulary = Vocabulary.of(counts, size)
    tokens = vocabulary.encode(word for document in documents for word in document)
    lengths = [len(document) for document in documents]
    return Corpus(tokens, np.repeat(np.arange(len(lengths)), lengths), vocabulary)
