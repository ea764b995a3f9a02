"""What models of words have in common: a table of vectors, and who is near to whom.

V words, D dimensions of their vectors, B mixtures of words, N words of a text.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nnarena.core.errors import BadOption, Unfit
from nnarena.core.spec import TaskSpec
from nnarena.core.words import Corpus, Lesson


class WordVectors(nn.Module):
    """A table of word vectors (V, D); a subclass says how they are learned.

    Called with weights of words x (B, V) it answers with the cosine (B, V) between their weighted sum and every word:

        y = cos(x Ê, Ê),   Ê the vectors, each of length 1

    So a word's neighbours are the largest of y where x is 1 for it alone, and Paris − France + Italy is three numbers
    of x. A vector of zeros has a cosine of 0 with everything.
    """

    once = True  # a second reading teaches nothing new

    def __init__(self, words: int, size: int, *, device: torch.device | None = None) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(words, size, device=device))

    @property
    def size(self) -> int:
        return self.vectors.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        unit = F.normalize(self.vectors, dim=1)
        return F.normalize(x @ unit, dim=1) @ unit.T

    @abstractmethod
    def read(self, corpus: Corpus, lesson: Lesson) -> float:
        """One pass over the corpus; the loss."""


def check_words(spec: TaskSpec, **sizes: int) -> int:
    """How many words the task has. Unfit if it has none; BadOption if one of `sizes` is below 1."""
    if spec.vocabulary:
        raise Unfit("it reads a corpus of words, and the task gives sequences of tokens.")
    if len(spec.input_shape) != 1:
        raise Unfit(f"it reads words (a vocabulary,), and the task gives {spec.input_shape}.")
    for name, size in sizes.items():
        if size < 1:
            raise BadOption(f"{name} must be at least 1, not {size}.")
    return spec.input_shape[0]


def count_pairs(corpus: Corpus, words: int, window: int, contexts: int) -> np.ndarray:
    """N(w, c) (V, contexts) float64: how often c stands within `window` words of w, in the same document.

    c are the first words of the vocabulary, which are its most frequent. Unknown words are left out of the text first.
    """
    tokens, documents = corpus.known.tokens, corpus.known.documents
    counts = np.zeros(words * contexts)
    for distance in range(1, window + 1):
        together = documents[distance:] == documents[:-distance]
        before, behind = tokens[:-distance][together], tokens[distance:][together]
        for word, context in ((before, behind), (behind, before)):
            counted = context < contexts
            counts += np.bincount(word[counted] * contexts + context[counted], minlength=words * contexts)
    return counts.reshape(words, contexts)
