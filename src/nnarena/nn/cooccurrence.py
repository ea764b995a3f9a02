"""Counts of the words around a word, as its vector."""

from __future__ import annotations

import torch

from nnarena.core.components import model
from nnarena.core.spec import TaskSpec
from nnarena.core.words import Corpus, Lesson
from nnarena.nn.words import WordVectors, check_words, count_pairs


class Cooccurrence(WordVectors):
    """v_w[c] = N(w, c), how often word c stands within the window around w; c are the most frequent words."""

    def __init__(self, words: int, contexts: int, window: int, *, device: torch.device | None = None) -> None:
        super().__init__(words, min(contexts, words), device=device)
        self.window = window

    @torch.no_grad()
    def read(self, corpus: Corpus, lesson: Lesson) -> float:
        self.vectors.copy_(torch.from_numpy(count_pairs(corpus, len(self.vectors), self.window, self.size)))
        return 0.0


@model("cooccurrence", reference="Lund and Burgess 1996, Producing high-dimensional semantic spaces", reads="words")
def cooccurrence(spec: TaskSpec, *, window: int = 3, contexts: int = 2000) -> Cooccurrence:
    """How often every word is around: the plain counts.

        v_w[c] = N(w, c)

    N(w, c) counts how often c is one of the `window` words before or behind w, in the same document.

    Options:
        window: words on each side
        contexts: how many of the most frequent words are counted, each a dimension
    """
    return Cooccurrence(check_words(spec, window=window, contexts=contexts), contexts, window)
